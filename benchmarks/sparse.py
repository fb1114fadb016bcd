"""Where a learned support earns its keep: inputs that do not matter, and very few weights.

    python benchmarks/sparse.py [--check] [--only inputs]

`inputs`: whole inputs as clusters (`Inputs`) beside independent weights and random inputs at the
same density: how many of 784 inputs are used, accuracy, how much faster the compacted network is;
and how well posterior probabilities tell 20 inputs that matter from 1,004 that do not.

Without an option three seeds; `--check` runs one.
"""

from __future__ import annotations

import sys

from parts.shared.parts import add_only, command_line, measured

PARTS = ("inputs",)


def main() -> int:
    """Measure and print; return the exit status."""
    parser = command_line(__doc__)
    add_only(parser, PARTS)
    return measured("sparse", parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())

"""Where a learned support earns its keep: inputs that do not matter, and very few weights.

    python benchmarks/sparse.py [--check] [--only inputs]
    python benchmarks/sparse.py --only weights [--data FOLDER] [--cases CASE ...] [--record]

`inputs`: whole inputs as clusters (`Inputs`) beside independent weights and random inputs at the
same density: how many of 784 inputs are used, accuracy, how much faster the compacted network is;
and how well posterior probabilities tell 20 inputs that matter from 1,004 that do not.

`weights`: 0.5 to 2 % of the weights. A learned support whose weights return by their own data, one
without a way back, a random support at the same density, one that trains on until it has sent as
much, and magnitude pruning (`fed_prune`). Cases and settings are in `parts/sparse/settings.toml`;
`--data` is the folder of rated sentences (docs/how-to/text.md), without which the case of words is
left out. `--record` appends every run to `records/sparse.jsonl`.

Without an option three seeds; `--check` runs one.
"""

from __future__ import annotations

import sys
from pathlib import Path

from parts.shared.parts import add_only, command_line, measured

PARTS = ("inputs", "weights")


def main() -> int:
    """Measure and print; return the exit status."""
    parser = command_line(__doc__)
    add_only(parser, PARTS)
    parser.add_argument("--data", type=Path, help="folder of rated sentences")
    parser.add_argument("--cases", nargs="+", help="cases of `weights`; default: all")
    parser.add_argument("--methods", nargs="+", help="methods of `weights`; default: all")
    parser.add_argument("--seeds", type=int, nargs="+", help="of `weights`; default: 0 1 2")
    parser.add_argument("--record", action="store_true", help="append the runs of `weights`")
    return measured("sparse", parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())

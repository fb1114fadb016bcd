"""Past one machine: exact sums, ranks, faults, populations, secure sums, asynchronous rounds, and
Flower.

    python benchmarks/scale_out.py [--check] [--only PART ...]

Parts are the modules of `benchmarks/parts/scale_out`, where what each of them measures is said;
`flower`, which needs the extra of that name, runs where it is named. Times of several processes are
by the clock: nothing else should run beside them.
"""

from __future__ import annotations

import sys
from pathlib import Path

from parts.shared.parts import add_only, command_line, measured

PARTS = ("sums", "ranks", "faults", "population", "secure", "buffered")


def main() -> int:
    """Measure and print; return the exit status."""
    parser = command_line(__doc__)
    add_only(parser, PARTS, aside=["flower"])
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("results/flower"),
        help="flower: folder of its figures (default: %(default)s)",
    )
    return measured("scale_out", parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())

"""How fast the pieces are: ratios measured side by side in one run.

    python benchmarks/speed.py [--check] [--only PART ...]

Parts are the modules of `benchmarks/parts/speed`, where what each of them measures is said;
`docs/speed.md` has what they printed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from parts.shared.parts import add_only, command_line, measured

PARTS = (
    "engine",
    "cohorts",
    "scaling",
    "large",
    "coding",
    "masks",
    "compact",
    "svi_step",
    "federated_step",
    "riemannian_step",
    "refactor",
)


def main() -> int:
    """Measure and print; return the exit status."""
    parser = command_line(__doc__)
    add_only(parser, PARTS)
    parser.add_argument(
        "--peers",
        type=Path,
        default=Path("build/engines"),
        metavar="DIR",
        help="engine: environment of the peers (%(default)s)",
    )
    parser.add_argument(
        "--masks", metavar="FILE.npz", help="masks: boolean matrices beside the draws"
    )
    parser.add_argument(
        "--model",
        type=Path,
        help="compact: an MLP's or CNN's transmitted parameters, as `Result.save` writes them",
    )
    return measured("speed", parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())

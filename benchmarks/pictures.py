"""Draw the pictures of README and of the documentation from `records/`, as SVG into
`docs/pictures/`.

    python benchmarks/pictures.py [NAME ...]
    # make a record anew, where this program makes it
    python benchmarks/pictures.py --measure quickstart

A picture in README has a twin for dark pages, `NAME-dark.svg`; the site colours its own. Pictures
of tutorials are made by their pages.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from parts.pictures import (
    comparison,
    costs,
    devices,
    digits,
    front,
    over_the_air,
    rules,
    sparse,
    uncertainty,
)

DRAWN: dict[str, Callable[[], None]] = {
    "front": front.draw,
    "costs": costs.draw,
    "support_maps": digits.supports,
    "on_demand_clients": devices.draw,
    "compare_digits": comparison.draw,
    "fedrlr_curves": over_the_air.draw,
    "fidelity_forest": rules.draw,
    "how_sure": uncertainty.draw,
    "sparse": sparse.draw,
}
MEASURED: dict[str, Callable[[], None]] = {
    "quickstart": digits.measure_quickstart,
    "on_demand": devices.measure,
    "compare": comparison.measure,
    "fidelity": rules.measure,
}


def main() -> None:
    """Measure or draw what is named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"of {', '.join(DRAWN)}; with --measure of {', '.join(MEASURED)}; default: all",
    )
    parser.add_argument("--measure", action="store_true", help="make records in place of pictures")
    options = parser.parse_args()
    known = MEASURED if options.measure else DRAWN
    if unknown := set(options.names) - set(known):
        parser.error(f"no such name: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    for name in options.names or known:
        known[name]()


if __name__ == "__main__":
    main()

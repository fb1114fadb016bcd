"""How a program runs its parts: modules of its folder with ``targets(options)``, those that
`--only` names, one after the other.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence


def command_line(description: str | None) -> argparse.ArgumentParser:
    """Return the command line that every program takes."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="fewer repeats; exit 1 if a target is missed"
    )
    return parser


def add_only(
    parser: argparse.ArgumentParser, parts: Sequence[str], aside: Sequence[str] = ()
) -> None:
    """Let the command line choose among the parts; those `aside` run where they are named, in place
    of the rest.
    """
    said = f"of {', '.join([*parts, *aside])}" + (
        f"; without it all but {', '.join(aside)}" if aside else "; without it all"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=[*parts, *aside],
        default=list(parts),
        metavar="PART",
        help=said,
    )


def measured(room: str, options: argparse.Namespace) -> int:
    """Run the parts; return the exit status."""
    met = True
    for name in options.only:
        print(f"{name}:", flush=True)
        for one in importlib.import_module(f"parts.{room}.{name}").targets(options):
            met = one and met
    return 0 if met else 1

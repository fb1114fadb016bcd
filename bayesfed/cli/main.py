"""The command `bayesfed`.

A sub-command is a function ``(subparsers) -> None`` in `COMMANDS` that adds its parser and names, by ``set_defaults(run=...)``, what it does:
``(arguments) -> exit status``. Heavy imports belong into the latter, so that ``--help`` comes at once.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bayesfed import __version__
from bayesfed.errors import BayesfedError

if TYPE_CHECKING:
    SubParsers = argparse._SubParsersAction[argparse.ArgumentParser]

# Exit status: 0 all is well, 1 it was tried and failed, 2 what was asked for cannot be.
FAILED, REFUSED = 1, 2


def say(text: str) -> None:
    """Write a line on standard output, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder of results (default: results)")
    parser.add_argument("--quiet", action="store_true", help="no progress bars")


def add_run(commands: SubParsers) -> None:
    """Add `bayesfed run`."""
    parser = commands.add_parser("run", help="run an experiment, or go on with one that was interrupted")
    parser.add_argument("experiment", type=Path, metavar="EXPERIMENT.toml")
    parser.add_argument("--check", action="store_true", help="read the file, build everything, run nothing")
    _common(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from bayesfed.cli import experiment
    from bayesfed.cli.build import build, seeds
    from bayesfed.cli.compare import comparison
    from bayesfed.cli.pictures import draw
    from bayesfed.cli.results import run_file

    file = experiment.read(arguments.experiment)
    if arguments.check:
        built = [build(file, seed) for seed in seeds(file)]
        rows = f"{len(built[0].train):,} rows to train on, {len(built[0].test):,} to test on, {len(built[0].clients)} clients"
        say(
            f"{file.name}: {built[0].algorithm.name}, {rows}, {built[0].options['rounds']} rounds, seeds {[one.seed for one in built]}: fits together"
        )
        return 0
    folder = run_file(file, arguments.out, say=say, progress=not arguments.quiet)
    say(comparison({folder.path.name: folder}))
    try:
        pictures = ", ".join(path.name for path in draw(folder))
    except ImportError as problem:
        pictures = f"no pictures: {problem}"
    say(f"results: {folder.path} ({pictures})")
    return 0


def add_compare(commands: SubParsers) -> None:
    """Add `bayesfed compare`."""
    parser = commands.add_parser("compare", help="run what has not run, and print one table of several experiments")
    parser.add_argument("experiments", nargs="+", metavar="EXPERIMENT.toml", help="experiment files, or folders of results")
    _common(parser)
    parser.set_defaults(run=_compare)


def _compare(arguments: argparse.Namespace) -> int:
    from bayesfed.cli.compare import compare

    compare(arguments.experiments, arguments.out, say=say, progress=not arguments.quiet)
    return 0


def add_plot(commands: SubParsers) -> None:
    """Add `bayesfed plot`."""
    parser = commands.add_parser("plot", help="draw the pictures of a folder of results again")
    parser.add_argument("result", type=Path, metavar="RESULT")
    parser.set_defaults(run=_plot)


def _plot(arguments: argparse.Namespace) -> int:
    from bayesfed.cli.pictures import draw
    from bayesfed.cli.results import Folder

    for path in draw(Folder(arguments.result)):
        say(str(path))
    return 0


def add_list(commands: SubParsers) -> None:
    """Add `bayesfed list`."""
    parser = commands.add_parser("list", help="what an experiment file can name: recipes, data, nets, codecs, links, priors")
    parser.add_argument("name", nargs="?", help="one of them, for its keys; `experiment` for those at the top of a file")
    parser.set_defaults(run=_list)


def _list(arguments: argparse.Namespace) -> int:
    from bayesfed.cli import listing

    say(listing.one(arguments.name) if arguments.name else listing.everything())
    return 0


def add_pairs(commands: SubParsers) -> None:
    """Add `bayesfed pairs`."""
    parser = commands.add_parser("pairs", help="which recipe runs with which net, link and data: one round of each, tried now")
    parser.add_argument("tables", nargs="*", metavar="TABLE", help="net, link, data (default: all)")
    parser.set_defaults(run=_pairs)


def _pairs(arguments: argparse.Namespace) -> int:
    from bayesfed.cli import pairs

    whole = [pairs.show(axis, say) for axis in arguments.tables or pairs.AXES]
    return 0 if all(whole) else FAILED


def add_doctor(commands: SubParsers) -> None:
    """Add `bayesfed doctor`."""
    commands.add_parser("doctor", help="versions, extras and data: what is missing, and the command that gets it").set_defaults(run=_doctor)


def _doctor(arguments: argparse.Namespace) -> int:
    from bayesfed.cli import doctor

    say(doctor.report())
    return 0


# Commands with a command line of their own: their ``main(arguments)`` is given what follows the name.
ELSEWHERE = {
    "new": ("bayesfed.flower.starting", "write a bare Flower app"),
    "worker": ("bayesfed.flower.worker", "keep a client's model and data alive beside its SuperNode"),
}
COMMANDS: tuple[Callable[[SubParsers], None], ...] = (add_run, add_compare, add_plot, add_list, add_pairs, add_doctor)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    made = argparse.ArgumentParser(prog="bayesfed", description="Bayesian models learned over many devices: run and compare experiments.")
    made.add_argument("--version", action="version", version=f"bayesfed {__version__}")
    commands = made.add_subparsers(required=True, metavar="COMMAND")
    for add in COMMANDS:
        add(commands)
    for name, (_, what) in ELSEWHERE.items():
        commands.add_parser(name, help=what)
    return made


def main(given: Sequence[str] | None = None) -> int:
    """Run the command line; errors are one line on standard error and exit status 2."""
    given = sys.argv[1:] if given is None else given
    try:
        status: int
        if given and given[0] in ELSEWHERE:
            status = importlib.import_module(ELSEWHERE[given[0]][0]).main(given[1:])
        else:
            arguments = parser().parse_args(given)
            status = arguments.run(arguments)
    except BayesfedError as problem:
        sys.stderr.write(f"bayesfed: {problem}\n")
        return REFUSED
    except KeyboardInterrupt:
        sys.stderr.write("bayesfed: interrupted; the same command goes on after the last checkpoint\n")
        return FAILED
    return status


if __name__ == "__main__":
    sys.exit(main())

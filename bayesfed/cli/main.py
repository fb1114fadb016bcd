"""The command `bayesfed`.

What the commands need is imported once there is one, so that ``--help`` comes at once.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partialmethod
from pathlib import Path

from bayesfed import __version__
from bayesfed.errors import BayesfedError

# Exit status: 0 all is well, 1 it was tried and failed, 2 what was asked for cannot be.
FAILED, REFUSED = 1, 2


@contextmanager
def _no_bars() -> Iterator[None]:
    """Draw no progress bars, whoever draws them: a run, message passing, a server's step."""
    from tqdm import tqdm

    drawn = tqdm.__init__
    tqdm.__init__ = partialmethod(drawn, disable=True)  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        tqdm.__init__ = drawn  # type: ignore[method-assign]


# Commands with a command line of their own: their ``main(arguments)`` is given what follows the
# name.
ELSEWHERE = {
    "new": ("bayesfed.flower.starting", "write a minimal Flower app"),
    "worker": (
        "bayesfed.flower.worker",
        "keep a client's model and data in memory next to its SuperNode",
    ),
}


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    whole = argparse.ArgumentParser(
        prog="bayesfed",
        description="Bayesian models learned over many devices: run and compare experiments.",
    )
    whole.add_argument("--version", action="version", version=f"bayesfed {__version__}")
    commands = whole.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, run: str, what: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=what)
        command.set_defaults(run=run, quiet=False)
        return command

    run = add("run", "run", "run an experiment, or continue an interrupted one")
    run.add_argument("experiment", type=Path, metavar="EXPERIMENT.toml")
    run.add_argument(
        "--check", action="store_true", help="read the file and build everything, but run nothing"
    )
    run.add_argument(
        "--ranks",
        action="store_true",
        help="share the clients among the processes of torchrun, which starts this command",
    )
    compare = add(
        "compare", "compare", "run what has not run yet, and print one table of several experiments"
    )
    compare.add_argument(
        "experiments",
        nargs="+",
        metavar="EXPERIMENT.toml",
        help="experiment files, or folders of results",
    )
    compare.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE[,VALUE...]",
        help="a key of every file, such as recipe.bits=4,8: one experiment for each combination",
    )
    compare.add_argument(
        "--workers",
        type=int,
        default=1,
        help="processes that experiments run in (default: 1)",
    )
    for command in (run, compare):
        command.add_argument(
            "--out", type=Path, default=Path("results"), help="folder of results (default: results)"
        )
        command.add_argument("--quiet", action="store_true", help="no progress bars")
    plot = add("plot", "plot", "redraw the pictures of a folder of results")
    plot.add_argument("result", type=Path, metavar="RESULT")
    plot.add_argument(
        "--format",
        nargs="+",
        choices=["png", "pdf", "svg"],
        default=["png"],
        help="formats of the pictures (default: png)",
    )
    report = add(
        "report",
        "report",
        "write a self-contained HTML page about folders of results",
    )
    report.add_argument("results", type=Path, nargs="+", metavar="FOLDER")
    report.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="the page (default: report.html in the folder, or beside several folders)",
    )
    listed = add(
        "list",
        "names",
        "list what an experiment file can name: recipes, data, nets, codecs, links, priors",
    )
    listed.add_argument(
        "name",
        nargs="?",
        help="a name, to list its keys; `experiment` for the keys at the top of a file",
    )
    add(
        "doctor",
        "doctor",
        "show versions, extras and data: what is missing, and how to install it",
    ).add_argument(
        "--estimate",
        type=Path,
        metavar="EXPERIMENT.toml",
        help="bytes, seconds and memory of a run, from its first two rounds",
    )
    for name, (_, what) in ELSEWHERE.items():
        commands.add_parser(name, help=what)
    return whole


def main(given: Sequence[str] | None = None) -> int:
    """Run the command line; errors are one line on standard error and exit status 2."""
    given = sys.argv[1:] if given is None else given
    try:
        if given and given[0] in ELSEWHERE:
            return int(importlib.import_module(ELSEWHERE[given[0]][0]).main(given[1:]))
        arguments = parser().parse_args(given)
        with _no_bars() if arguments.quiet else nullcontext():
            commands = importlib.import_module("bayesfed.cli.commands")
            if text := getattr(commands, arguments.run)(arguments):
                commands.say(text)
        return 0
    except BayesfedError as problem:
        sys.stderr.write(f"bayesfed: {problem}\n")
        return REFUSED
    except KeyboardInterrupt:
        sys.stderr.write(
            "bayesfed: interrupted; the same command goes on after the last checkpoint\n"
        )
        return FAILED
    except BrokenPipeError:
        # Whoever read the output, such as `head`, has enough. Nothing must be written at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


if __name__ == "__main__":
    sys.exit(main())

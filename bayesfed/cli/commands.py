"""The commands: each is a function of its arguments, and returns what is to be said at its end."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from pathlib import Path

from bayesfed.cli import comparing, listing, runs
from bayesfed.cli import doctor as installation
from bayesfed.errors.plurals import plural
from bayesfed.running import Folder, comparison
from bayesfed.running import report as page
from bayesfed.running.experiments import experiment
from bayesfed.running.experiments.build import build, seeds
from bayesfed.running.experiments.experiment import ExperimentFile
from bayesfed.running.experiments.sweeps import SWEEP


def say(text: str) -> None:
    """Write a line on standard output, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def run(arguments: Namespace) -> str:
    """Run an experiment, or build it alone."""
    file = _one(arguments.experiment)
    if arguments.check:
        built = [build(file, seed) for seed in seeds(file)]
        first, tried = built[0], [one.seed for one in built]
        rows = (
            f"{plural(len(first.train), 'row to train on', ',')}, {len(first.test):,} to test on, "
            f"{plural(len(first.clients), 'client')}"
        )
        return (
            f"{file.name}: {first.algorithm.name}, {rows}, "
            f"{plural(first.options['rounds'], 'round')}, seeds {tried}: fits together"
        )
    folder = runs.run_file(
        file, arguments.out, say=say, progress=not arguments.quiet, ranks=arguments.ranks
    )
    if arguments.ranks and int(os.environ.get("RANK", "0")):
        # Rank 0 says and draws what there is to see.
        return ""
    say(comparison({folder.path.name: folder}))
    return f"results: {folder.path} ({runs.drawn(folder)})"


def compare(arguments: Namespace) -> str:
    """Run what has not run, and compare."""
    into = comparing.compare(
        arguments.experiments,
        arguments.out,
        say=say,
        settings=arguments.set,
        workers=arguments.workers,
        progress=not arguments.quiet,
    )
    return f"{', '.join(sorted(path.name for path in into.iterdir()))}: {into}"


def plot(arguments: Namespace) -> str:
    """Draw the pictures of a folder of results again."""
    return "\n".join(map(str, runs.draw(Folder(arguments.result), arguments.format)))


def report(arguments: Namespace) -> str:
    """Write a page on folders of results."""
    first: Path = arguments.results[0]
    default = first if len(arguments.results) == 1 else first.resolve().parent
    return str(page(arguments.results, arguments.out or default / "report.html"))


def names(arguments: Namespace) -> str:
    """Say what an experiment file can name."""
    return listing.one(arguments.name) if arguments.name else listing.everything()


def doctor(arguments: Namespace) -> str:
    """Say what is installed and what is missing, or what a run will cost."""
    if arguments.estimate:
        return installation.estimate(_one(arguments.estimate))
    return installation.report()


def _one(path: Path) -> ExperimentFile:
    """Return the experiment of a file that is no sweep."""
    file = experiment.read(path)
    if SWEEP in file.tree:
        hint = f"bayesfed compare {path}"
        raise file.error((SWEEP,), "one experiment", "a sweep", hint)
    return file

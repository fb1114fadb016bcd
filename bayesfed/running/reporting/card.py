"""A model card beside the results: what was learned, of whom, how well, and what is not known; and
the folder of a run made in Python, with its card.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from scipy.stats import binomtest

from bayesfed import __version__
from bayesfed.data import Dataset
from bayesfed.data.files import write_whole, writing
from bayesfed.errors import ArgumentError
from bayesfed.federated import InProcess, checkpoint
from bayesfed.federated.engine.metrics import accuracy, score
from bayesfed.inspect import PersonalScores
from bayesfed.inspect.at_clients import Rows
from bayesfed.inspect.tables import markdown
from bayesfed.running.comparison import LEGEND, Comparison
from bayesfed.running.folders import CHECKPOINTS, Folder, save
from bayesfed.running.reporting.page import template
from bayesfed.running.settings import note_versions

if TYPE_CHECKING:
    from bayesfed.running.result import Result


def write_card(folder: Folder, result: Result, test: Rows) -> None:
    """Write ``card.md`` into a folder of results, anew with each seed: method, scores of all seeds,
    rows of clients, privacy that is promised, health, limits.

    The interval of the accuracy is Wilson's for the rows `test`, where the run has an accuracy of
    rows; labels of one row depend on each other.
    """
    seed, health = result.snapshot.seed, result.health
    interval = None
    scored = "accuracy" in folder.metrics(seed)
    if scored and isinstance(test, Dataset) and test.targets.ndim == 1:
        share = score(result.model, test, accuracy)
        ends = binomtest(round(share * len(test)), len(test)).proportion_ci(method="wilson")
        interval = {"share": share, "low": ends.low, "high": ends.high}
    # Those of a population are not loaded.
    profiles = InProcess(result.data).profiles if result.data else ()
    text = template("card.md").render(
        name=folder.path.resolve().name,
        version=__version__,
        method=result.algorithm.name,
        rounds=len(result.history),
        seed=seed,
        seeds=len(folder.finished),
        scores=markdown(*Comparison({folder.path.resolve().name: folder}).cells),
        legend=LEGEND,
        tested=test,
        interval=interval,
        clients={one.name: one.samples for one in profiles},
        epsilon=health.epsilon,
        delta=health.delta,
        health=str(health),
        posterior=result.algorithm.posterior,
        unheard=result.unheard or (),
    )
    write_whole(folder.path / "card.md", text.encode())


def save_new(result: Result, folder: Path, test: Rows, own: PersonalScores | None) -> Path:
    """Save a run of one seed; see `Result.save`."""
    into = folder / f"seed-{result.snapshot.seed}"
    for taken in (into / "metrics.json", folder / "experiment.toml"):
        if taken.exists():
            expected, actual = "a folder without this run", f"{taken} exists"
            raise ArgumentError("Result.save", expected, actual, "another folder")
    with writing("Result.save", folder):
        note_versions(folder)
        checkpoint(into / CHECKPOINTS).save(result.snapshot)
        missing = save(into, result, test, result.snapshot.seed, own)
    if missing:
        warnings.warn(f"{into}: no posterior.nc: {missing}", stacklevel=3)
    write_card(Folder(folder), result, test)
    return into

"""The pictures of one folder of results, made from its figures; `bayesfed plot` makes them
again.
"""

from __future__ import annotations

from pathlib import Path

from bayesfed.errors import ArgumentError
from bayesfed.federated import newest
from bayesfed.inference.evaluation.scoring import CalibrationBins, calibration_bins
from bayesfed.inspect import plot_partition, plot_reliability, save
from bayesfed.inspect.learning_curves import plot_curves
from bayesfed.running import Folder
from bayesfed.running.experiments.build import Built, build
from bayesfed.running.scores import predictive


def draw(folder: Folder) -> list[Path]:
    """Draw curves over all finished seeds, and of an experiment file with classes the first seed's
    partition and calibration; return the files.

    Raises
    ------
    ArgumentError
        If no seed is finished.
    MissingExtraError
        If matplotlib is not installed.
    """
    if not (done := folder.finished):
        raise ArgumentError(
            str(folder.path), "a finished seed", "none", "bayesfed run, which goes on"
        )
    into = folder.path / "pictures"
    into.mkdir(exist_ok=True)
    plot_curves({folder.path.name: [folder.history(seed) for seed in done]}).savefig(
        into / "curves.png", dpi=110
    )
    if folder.file is None:
        return [into / "curves.png"]
    built = build(folder.file, done[0])
    if not built.test.targets.is_floating_point():
        partition = plot_partition(built.clients)
        partition.set_title(f"seed {built.seed}", loc="left", fontsize=9)
        save(partition, into / "partition.png")
        if bins := _bins(folder, built):
            save(plot_reliability({f"seed {built.seed}": bins}), into / "reliability.png")
    return sorted(into.glob("*.png"))


def _bins(folder: Folder, built: Built) -> CalibrationBins | None:
    snapshot = newest(folder.seed(built.seed) / "checkpoints")
    if snapshot is None:
        return None
    found = predictive(
        built.algorithm,
        snapshot.state,
        built.test,
        built.likelihood,
        draws=built.draws,
        seed=built.seed,
    )
    return calibration_bins(found.probabilities.mean(0), built.test.targets) if found else None

"""`bayesfed compare`: several experiments in one table and one picture, from their folders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from bayesfed.cli.runs import run_file
from bayesfed.data.files import write_whole
from bayesfed.errors import ArgumentError
from bayesfed.federated import newest
from bayesfed.inference.evaluation.scoring import CalibrationBins, calibration_bins
from bayesfed.inspect import plot_partition, plot_reliability, save
from bayesfed.inspect.learning_curves import plot_curves
from bayesfed.running import Folder
from bayesfed.running.comparison import comparison, curves_csv
from bayesfed.running.experiments import experiment
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


def compare(
    given: Sequence[str | Path], out: Path, *, say: Callable[[str], None], progress: bool = True
) -> Path:
    """Run what has not run, read all folders, print a table; return the new folder with table,
    curves and picture.

    Folders of experiments that are given as files get their own pictures, as by `bayesfed run`.

    Parameters
    ----------
    given
        Experiment files, and folders of results.
    out
        Folder of all results.

    Raises
    ------
    ArgumentError
        If there is nothing to compare, or two have the same name.
    BayesfedError
        As `run_file`.
    """
    paths = [Path(one) for one in given]
    files = {path: experiment.read(path) for path in paths if not path.is_dir()}
    folders = [
        run_file(files[path], out, say=say, progress=progress) if path in files else Folder(path)
        for path in paths
    ]
    named = {folder.path.name: folder for folder in folders}
    if len(named) != len(folders) or not folders:
        hint = "experiment files of different names"
        raise ArgumentError(
            "compare", "experiments of different names", [f.path.name for f in folders], hint
        )
    if missing := [name for name, folder in named.items() if not folder.finished]:
        raise ArgumentError(
            "compare", "a finished seed of each", f"none of {missing}", "bayesfed run FILE"
        )
    text = comparison(named)
    say(text)
    taken = {path.name for path in out.glob("compare*")}
    into = out / next(
        name
        for name in ("compare", *(f"compare-{number}" for number in range(2, len(taken) + 3)))
        if name not in taken
    )
    into.mkdir(parents=True)
    write_whole(into / "table.txt", (text + "\n").encode())
    runs = {
        name: [folder.history(seed) for seed in folder.finished] for name, folder in named.items()
    }
    write_whole(into / "curves.csv", curves_csv(runs).encode())
    plot_curves(runs).savefig(into / "curves.png", dpi=110)
    for path, folder in zip(paths, folders, strict=True):
        if path in files:
            draw(folder)
    say(f"table, curves and picture: {into}")
    return into

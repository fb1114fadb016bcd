"""Several experiments in one table and one picture, from their folders."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bayesfed.cli.files import experiment
from bayesfed.cli.pictures import draw
from bayesfed.cli.results import Folder, run_file
from bayesfed.data.files import write_whole
from bayesfed.errors import ArgumentError, complain
from bayesfed.inspect.learning_curves import AGAINST, LABELS, Runs, curve, plot_curves
from bayesfed.inspect.tables import table

# Heading, key of metrics.json, factor, digits after the point.
COLUMNS = (
    ("accuracy %", "accuracy", 100.0, 2),
    ("RMSE", "rmse", 1.0, 4),
    ("NLL", "nll", 1.0, 3),
    ("ECE", "ece", 1.0, 3),
    ("own %", "own_accuracy", 100.0, 2),
    ("worst own %", "worst_accuracy", 100.0, 2),
    ("own NLL", "own_nll", 1.0, 3),
    ("MB down", "bits_down", 1 / 8e6, 3),
    ("MB up", "bits_up", 1 / 8e6, 3),
    ("channel uses", "channel_uses", 1.0, 0),
    ("joules", "energy_j", 1.0, 1),
    ("device s", "latency_s", 1.0, 1),
    ("clock s", "seconds", 1.0, 1),
)
# Without a channel or devices these are not 0 but absent.
SOMETIMES = ("channel_uses", "energy_j", "latency_s")
LEGEND = (
    "accuracy: of the transmitted model; NLL (nats a row), ECE: of the posterior predictive where there is a posterior; "
    "own: of each client's model on its held-out rows, mean and worst tenth; all at the last round"
)


def compare(given: Sequence[str | Path], out: Path, *, say: Callable[[str], None], progress: bool = True) -> Path:
    """Run what has not run, read all folders, print a table; return the new folder with table, curves and picture.

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
    folders = [run_file(files[path], out, say=say, progress=progress) if path in files else Folder(path) for path in paths]
    named = {folder.path.name: folder for folder in folders}
    if len(named) != len(folders) or not folders:
        hint = "experiment files of different names"
        raise ArgumentError(complain("compare", expected="experiments of different names", actual=[f.path.name for f in folders], hint=hint))
    if missing := [name for name, folder in named.items() if not folder.finished]:
        raise ArgumentError(complain("compare", expected="a finished seed of each", actual=f"none of {missing}", hint="bayesfed run FILE"))
    text = comparison(named)
    say(text)
    taken = {path.name for path in out.glob("compare*")}
    into = out / next(name for name in ("compare", *(f"compare-{number}" for number in range(2, len(taken) + 3))) if name not in taken)
    into.mkdir(parents=True)
    write_whole(into / "table.txt", (text + "\n").encode())
    runs = {name: [folder.history(seed) for seed in folder.finished] for name, folder in named.items()}
    write_whole(into / "curves.csv", curves(runs).encode())
    plot_curves(runs).savefig(into / "curves.png", dpi=110)
    for path, folder in zip(paths, folders, strict=True):
        if path in files:
            draw(folder)
    say(f"table, curves and picture: {into}")
    return into


def comparison(named: Mapping[str, Folder]) -> str:
    """Return the aligned table: a line for each experiment, mean and standard deviation over its seeds."""
    figures = {name: [folder.metrics(seed) for seed in folder.finished] for name, folder in named.items()}
    shown = [column for column in COLUMNS if any(metrics.get(column[1]) for several in figures.values() for metrics in several)]
    rows = []
    for name, several in figures.items():
        known = {key: [one[key] for one in several if key in one and (one[key] or key not in SOMETIMES)] for _, key, *_ in shown}
        cells = [_cell([value * factor for value in known[key]], digits) for _, key, factor, digits in shown]
        rows.append([name, str(len(several)), str(int(several[0]["rounds"])), *cells])
    return table(["experiment", "seeds", "rounds", *(heading for heading, *_ in shown)], rows) + f"\n{LEGEND}"


def _cell(values: Sequence[float], digits: int) -> str:
    if not values:
        return "-"
    mean = f"{statistics.fmean(values):,.{digits}f}"
    return f"{mean} ± {statistics.stdev(values):,.{digits}f}" if len(values) > 1 else mean


def curves(runs: Runs) -> str:
    """Return every curve as CSV: experiment, metric, against, x, mean, sd, seeds."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["experiment", "metric", "against", "x", "mean", "sd", "seeds"])
    for name, histories in runs.items():
        drawn = {(metric, against): curve(histories, metric, against) for metric in LABELS for against in AGAINST}
        for key, one in drawn.items():
            if one is not None:
                points = zip(one.x, one.mean, one.sd, strict=True)
                writer.writerows([name, *key, *(f"{figure:.8g}" for figure in point), one.seeds] for point in points)
    return out.getvalue()

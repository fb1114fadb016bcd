"""`bayesfed compare`: experiments, and sweeps of their keys, in one table and one picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from bayesfed.cli.runs import drawn, numbered, run_file, silent
from bayesfed.data.files import write_whole
from bayesfed.errors.checks import check, whole
from bayesfed.inspect.learning_curves import plot_curves, scored
from bayesfed.running import Folder
from bayesfed.running.comparison import Comparison
from bayesfed.running.experiments import experiment
from bayesfed.running.experiments.experiment import ExperimentFile
from bayesfed.running.experiments.sweeps import swept
from bayesfed.running.folders import named_folders


def compare(
    given: Sequence[str | Path],
    out: Path,
    *,
    say: Callable[[str], None],
    settings: Sequence[str] = (),
    workers: int = 1,
    progress: bool = True,
) -> Path:
    """Run what has not run, read all folders, print a table; return the new folder with the table
    as text, CSV, Markdown and LaTeX, and the curves of what has scores as PNG, PDF and SVG.

    Folders of experiments that are given as files get their own pictures, as by `bayesfed run`.

    Parameters
    ----------
    given
        Experiment files, and folders of results.
    out
        Folder of all results.
    settings
        As of `swept`: every file becomes an experiment for each combination.
    workers
        Processes that experiments run in, each one whole; results are those of one process.

    Raises
    ------
    ArgumentError
        If there is nothing to compare, two have the same name, or there are no workers.
    BayesfedError
        As `run_file` and `swept`.
    """
    check("compare, --workers", workers, whole(1, "1"))
    paths = list(map(Path, given))
    parts = [[] if path.is_dir() else swept(experiment.read(path), settings) for path in paths]
    ran = iter(_run([file for files in parts for file in files], out, say, workers, progress))
    folders = [
        folder
        for path, files in zip(paths, parts, strict=True)
        for folder in ([next(ran) for _ in files] if files else [Folder(path)])
    ]
    made = Comparison(named_folders("compare", folders))
    say(str(made))
    into = next(path for path in numbered(out / "compare") if not path.exists())
    into.mkdir(parents=True)
    for ending, text in made.written().items():
        write_whole(into / f"table.{ending}", text.encode())
    runs = {name: folder.histories() for name, folder in made.named.items()}
    if shown := {name: histories for name, histories in runs.items() if scored(histories)}:
        curves = plot_curves(shown)
        for ending in ("png", "pdf", "svg"):
            curves.savefig(into / f"curves.{ending}", dpi=110)
    for folder in folders:
        if folder.path not in paths:
            say(f"results: {folder.path} ({drawn(folder)})")
    return into


def _run(
    files: Sequence[ExperimentFile],
    out: Path,
    say: Callable[[str], None],
    workers: int,
    progress: bool,
) -> list[Folder]:
    if workers == 1:
        return [run_file(file, out, say=say, progress=progress) for file in files]
    one = partial(run_file, out=out, say=silent, progress=False)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        folders = []
        for folder in pool.map(one, files):
            say(f"{folder.path}: finished")
            folders.append(folder)
    return folders

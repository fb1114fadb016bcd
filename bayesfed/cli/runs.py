"""`bayesfed run`: all seeds of an experiment, continued where they stopped; `bayesfed plot`: the
pictures of one folder of results.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from bayesfed.data.files import write_whole, writing
from bayesfed.errors import ArgumentError, BayesfedError, needs
from bayesfed.federated import Callback, ClientPool, Ranks, Snapshot, checkpoint, newest
from bayesfed.federated.clients import led, one_thread
from bayesfed.inference.evaluation.scoring import CalibrationBins, calibration_bins
from bayesfed.inspect import plot_partition, plot_reliability, save
from bayesfed.inspect.learning_curves import plot_curves, scored
from bayesfed.inspect.tables import latex
from bayesfed.models.regression.frames import Frame
from bayesfed.running import Folder, run, scoring
from bayesfed.running import open as opened
from bayesfed.running.experiments.build import Built, build, seeds
from bayesfed.running.experiments.experiment import ExperimentFile
from bayesfed.running.folders import CHECKPOINTS
from bayesfed.running.folders import save as save_run
from bayesfed.running.formulas.fitted import Regression, plot_coefficients
from bayesfed.running.formulas.refits import Refits
from bayesfed.running.reporting.card import write_card
from bayesfed.running.scores import further_scores, predictive
from bayesfed.running.settings import note_versions, read_json, write_json

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def numbered(path: Path) -> Iterator[Path]:
    """Yield NAME, NAME-2, NAME-3, ..."""
    yield path
    for number in itertools.count(2):
        yield path.with_name(f"{path.name}-{number}")


def folder_of(file: ExperimentFile, out: Path) -> Folder:
    """Return the folder of an experiment under `out`: its own if there is one, else the first free
    one of NAME, NAME-2, NAME-3.
    """

    def is_own(settings: Path) -> bool:
        return settings.is_file() and read_json(settings).get("digest") == file.digest

    places = numbered(out / file.name)
    return Folder(
        next(path for path in places if not path.exists() or is_own(path / "settings.json"))
    )


def run_file(
    file: ExperimentFile,
    out: Path,
    *,
    say: Callable[[str], None],
    progress: bool = True,
    ranks: bool = False,
) -> Folder:
    """Run all seeds of an experiment that have not run; continue one that was interrupted.

    Everything runs on one intra-op thread, server steps included: results do not depend on the
    number of cores. With `ranks`, the clients are shared among the processes of a job
    (`bayesfed.federated.Ranks`), of which rank 0 alone says anything and writes files.

    Raises
    ------
    BayesfedError
        As `build` and `bayesfed.run`.
    """
    with one_thread():
        wanted = seeds(file)
        # A wrong file is refused before anything is written.
        built = build(file, wanted[0])
        pool: ClientPool = Ranks(built.pool) if ranks else built.pool
        if isinstance(pool, Ranks) and pool.group.rank:
            say = silent
        folder = led(pool, partial(_prepared, file, out))
        for seed in wanted:
            if led(pool, (folder.seed(seed) / "metrics.json").is_file):
                say(f"{folder.seed(seed)}: finished before")
                continue
            if seed != built.seed:
                built = build(file, seed)
                pool = Ranks(built.pool) if ranks else built.pool
            _run(folder, built, pool, say, progress=progress)
    return folder


def silent(text: str) -> None:
    """Say nothing."""


def _prepared(file: ExperimentFile, out: Path) -> Folder:
    folder = folder_of(file, out)
    with writing("out", out):
        folder.path.mkdir(parents=True, exist_ok=True)
    if not (folder.path / "settings.json").is_file():
        write_whole(folder.path / "experiment.toml", file.text.encode())
        settings = {
            "name": file.name,
            "folder": str(file.path.parent.resolve()),
            "digest": file.digest,
            "settings": file.tree,
        }
        write_json(folder.path / "settings.json", settings)
    note_versions(folder.path)
    return folder


def _run(
    folder: Folder, built: Built, pool: ClientPool, say: Callable[[str], None], *, progress: bool
) -> None:
    path = folder.seed(built.seed)

    def begun() -> Snapshot | None:
        path.mkdir(exist_ok=True)
        resume = newest(path / CHECKPOINTS)
        if resume is not None:
            say(f"{path}: going on after round {resume.round - 1}")
        return resume

    resume = led(pool, begun)

    test, likelihood, draws, seed = built.test, built.likelihood, built.draws, built.seed
    last = (built.options["rounds"] or 0) - 1
    callbacks: list[Callback] = [checkpoint(path / CHECKPOINTS, every=built.save_every)]
    if built.regression is None:
        callbacks[:0] = [
            scoring(test, likelihood, draws=draws, seed=seed),
            further_scores(
                built.scores, built.own, test, likelihood, last=last, draws=draws, seed=seed
            ),
        ]
    result = run(
        built.algorithm,
        pool,
        test=None if built.regression or test.targets.is_floating_point() else test,
        seed=seed,
        callbacks=callbacks,
        progress=progress,
        resume=resume,
        **built.options,
    )

    def saved() -> None:
        scores = partial(result.personal_scores, likelihood=likelihood, draws=draws, seed=seed)
        own = scores(built.own) if built.own else None
        if built.regression:
            section, made = built.regression
            refits = Refits(made, seed, progress)
            fit = Regression(made.design, made.model, result, refits=refits)
            say(str(fit).partition("\n")[0])
            for name, table in fit.tables(section.new()).items():
                write_whole(path / f"{name}.csv", table.to_csv().encode())
                say(f"{path / name}.csv\n{table.round(3).head(20)}")
            rows = [
                [name, *(f"{one:.3g}" for one in rest)] for name, *rest in fit.table().itertuples()
            ]
            text = latex(["", "mean", "sd", "5 %", "95 %"], rows)
            write_whole(path / "coefficients.tex", text.encode())
        if missing := save_run(path, result, test if len(test) else None, seed, own):
            say(f"{path}: no posterior.nc: {missing}")
        write_card(folder, result, test if len(test) else None)

    led(pool, saved)


def draw(folder: Folder, formats: Sequence[str] = ("png",)) -> list[Path]:
    """Draw curves over all finished seeds, of an experiment file with classes the first seed's
    partition and calibration, of a regression its coefficients; return the files.

    Raises
    ------
    ArgumentError
        If no seed is finished, or a regression has more coefficients than a picture.
    MissingExtraError
        If matplotlib is not installed.
    """
    if not (done := folder.finished):
        raise ArgumentError(
            str(folder.path), "a finished seed", "none", "bayesfed run, which goes on"
        )
    files = []
    for name, axes in _pictures(folder, done[0]):
        for ending in formats:
            files.append(folder.path / "pictures" / f"{name}.{ending}")
            save(axes, files[-1])
    return files


def drawn(folder: Folder) -> str:
    """Draw the pictures of a run; return their names, or why there are none."""
    try:
        return ", ".join(path.name for path in draw(folder)) or "tables"
    except BayesfedError as problem:
        return f"no pictures: {problem}"


def _pictures(folder: Folder, seed: int) -> Iterator[tuple[str, Axes]]:
    if scored(histories := folder.histories()):
        yield "curves", plot_curves({folder.path.name: histories}).axes[0]
    if folder.file is None:
        return
    built = build(folder.file, seed)
    if built.regression:
        # Fits without a site that a run made are in its table, and are not made again.
        if (table := _coefficients(folder.seed(seed))) is None:
            yield "coefficients", cast(Regression, opened(folder.path, seed=seed)).plot()
        else:
            yield "coefficients", plot_coefficients(table)
    elif not built.test.targets.is_floating_point():
        partition = plot_partition(built.clients)
        partition.set_title(f"seed {seed}", loc="left", fontsize=9)
        yield "partition", partition
        if bins := _bins(folder, built):
            yield "reliability", plot_reliability({f"seed {seed}": bins})


def _coefficients(path: Path) -> Frame | None:
    """Return the coefficients that a run of a regression wrote, as `Regression.tables`; None where
    they are not there, or without the status of each fit.
    """
    file = path / "coefficients.csv"
    if not file.is_file():
        return None
    # A site may be called "NA".
    read = needs("pandas", "formulas").read_csv
    table = read(file, index_col="coefficient", keep_default_na=False, dtype={"without": str})
    return table if "status" in table else None


def _bins(folder: Folder, built: Built) -> CalibrationBins | None:
    snapshot = newest(folder.seed(built.seed) / CHECKPOINTS)
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

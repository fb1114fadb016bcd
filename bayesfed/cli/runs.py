"""`bayesfed run`: all seeds of an experiment, continued where they stopped."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bayesfed.data.files import write_whole
from bayesfed.federated import Callback, ClientPool, RoundReport, Snapshot, checkpoint, newest
from bayesfed.federated.clients.ranks import Ranks, led
from bayesfed.federated.clients.turn import one_thread
from bayesfed.federated.engine.files.records import to_line
from bayesfed.running import run
from bayesfed.running.experiments.build import Built, build, seeds
from bayesfed.running.experiments.experiment import ExperimentFile
from bayesfed.running.folders import Folder, note_versions, save
from bayesfed.running.scores import further_scores, scoring


def folder_of(file: ExperimentFile, out: Path) -> Folder:
    """Return the folder of an experiment under `out`: its own if there is one, else the first free
    one of NAME, NAME-2, NAME-3.
    """
    for number in itertools.count(1):
        path = out / (file.name if number == 1 else f"{file.name}-{number}")
        settings = path / "settings.json"
        if not path.exists() or (
            settings.is_file() and json.loads(settings.read_text()).get("digest") == file.digest
        ):
            break
    return Folder(path)


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
        first = build(file, wanted[0])
        pool: ClientPool = Ranks(first.pool) if ranks else first.pool
        leads = not isinstance(pool, Ranks) or pool.group.rank == 0

        def prepared() -> Folder:
            folder = folder_of(file, out)
            _prepare(folder, file)
            return folder

        folder = led(pool, prepared)
        for seed in wanted:
            if led(pool, partial(_finished, folder, seed)):
                if leads:
                    say(f"{folder.seed(seed)}: finished before")
                continue
            built = first if seed == wanted[0] else build(file, seed)
            if seed != wanted[0]:
                pool = Ranks(built.pool) if ranks else built.pool
            _run(folder, built, pool, say if leads else _silent, progress=progress)
    return folder


def _finished(folder: Folder, seed: int) -> bool:
    return (folder.seed(seed) / "metrics.json").is_file()


def _silent(text: str) -> None:
    """Say nothing."""


def _prepare(folder: Folder, file: ExperimentFile) -> None:
    folder.path.mkdir(parents=True, exist_ok=True)
    if not (folder.path / "settings.json").is_file():
        write_whole(folder.path / "experiment.toml", file.text.encode())
        settings = {
            "name": file.name,
            "folder": str(file.path.parent.resolve()),
            "digest": file.digest,
            "settings": file.tree,
        }
        write_whole(
            folder.path / "settings.json", json.dumps(settings, indent=1, default=str).encode()
        )
    note_versions(folder.path)


def _run(
    folder: Folder, built: Built, pool: ClientPool, say: Callable[[str], None], *, progress: bool
) -> None:
    path = folder.seed(built.seed)

    def begun() -> Snapshot | None:
        path.mkdir(exist_ok=True)
        resume = newest(path / "checkpoints")
        if resume is not None:
            say(f"{path}: going on after round {resume.round - 1}")
        write_whole(
            path / "rounds.jsonl",
            b"".join(to_line(record) for record in resume.history) if resume else b"",
        )
        return resume

    resume = led(pool, begun)

    def log(report: RoundReport) -> None:
        with (path / "rounds.jsonl").open("ab") as file:
            file.write(to_line(report.record))

    scores = scoring(built.test, built.likelihood, draws=built.draws, seed=built.seed)
    more = {"rounds": built.options["rounds"], "draws": built.draws, "seed": built.seed}
    further = further_scores(built.scores, built.test, built.own, built.likelihood, **more)
    callbacks: list[Callback] = [
        scores,
        further,
        log,
        checkpoint(path / "checkpoints", every=built.save_every),
    ]
    test = None if built.test.targets.is_floating_point() else built.test
    options = {
        "seed": built.seed,
        "callbacks": callbacks,
        "progress": progress,
        "resume": resume,
        **built.options,
    }
    result = run(built.algorithm, pool, test=test, **options)

    def saved() -> None:
        own = (
            result.personal_scores(
                built.own, likelihood=built.likelihood, draws=built.draws, seed=built.seed
            )
            if built.own
            else None
        )
        if missing := save(path, result, built.test, built.seed, own):
            say(f"{path}: no posterior.nc: {missing}")

    led(pool, saved)

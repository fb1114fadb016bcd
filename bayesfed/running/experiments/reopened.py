"""`open`: what a finished run returned, from its folder of results, or from a folder with
checkpoints, as the server app over Flower writes it.
"""

from __future__ import annotations

from pathlib import Path

from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import check, checked, one_of
from bayesfed.federated import Algorithm, Snapshot, load, newest
from bayesfed.federated.engine.round_loop import check_same
from bayesfed.running.experiments.build import build
from bayesfed.running.folders import CHECKPOINTS, Folder
from bayesfed.running.formulas.fitted import Regression
from bayesfed.running.formulas.prepared import Prepared
from bayesfed.running.formulas.records import REGRESSION, of_record
from bayesfed.running.launch import run
from bayesfed.running.result import Result


@checked()
def open(
    folder: str | Path, *, seed: int | None = None, algorithm: Algorithm | None = None
) -> Result | Regression:
    """Open a folder of results again: return what `run`, or `regression`, returned, with model,
    posterior, history, and a snapshot to go on from.

    No round is run, so a regression cannot ask its sites again (`Regression.without`), and nothing
    is unpickled. But Python files that the experiment of the folder names
    (``kind = "file.py:function"``) are run, as by ``bayesfed run``: read them before you open a
    folder from somebody else.

    Parameters
    ----------
    folder
        A folder of `bayesfed run` or of `Result.save`; or one with checkpoints, as the server app
        over Flower (``out``) or the callback `checkpoint` writes, which is opened at its last
        round, finished or not.
    seed
        Seed of the run. Default: the first that is finished.
    algorithm
        The algorithm, for a run made in Python: an experiment file says it itself, and checkpoints
        of a regression hold it. The result then has no rows of clients.

    Raises
    ------
    ArgumentError
        If there is no such folder or finished run, or the algorithm is not that of the run: another
        method, another network, also of the same shapes, or other settings.
    CheckpointError
        If the state of the run is not there or damaged.
    """
    found = Folder(Path(folder))
    if (saved := _only_checkpoints(found)) is not None:
        return _opened(load(saved), found.path, seed, algorithm)
    known = found.finished
    if not known:
        hint = f"bayesfed run FILE --out {found.path.parent}"
        raise ArgumentError(f"open, {found.path}", "a finished run", "none", hint)
    seed = known[0] if seed is None else seed
    check("open, seed", seed, one_of(known))
    snapshot = load(found.seed(seed) / CHECKPOINTS)
    if algorithm is not None or found.file is None:
        return _opened(snapshot, found.path, seed, algorithm)
    built = build(found.file, seed)
    result = run(built.algorithm, built.pool, rounds=snapshot.round, resume=snapshot, seed=seed)
    if built.regression:
        _, made = built.regression
        return Regression(made.design, made.model, result)
    return result


def _only_checkpoints(found: Folder) -> Path | None:
    """Return where the checkpoints of a folder are that has nothing else to open: in it or in
    ``checkpoints``.
    """
    if (found.path / "experiment.toml").is_file() or (found.path / "versions.json").is_file():
        return None
    for path in (found.path / CHECKPOINTS, found.path):
        if path.is_dir() and newest(path) is not None:
            return path
    return None


def _opened(
    snapshot: Snapshot, path: Path, seed: int | None, algorithm: Algorithm | None
) -> Result | Regression:
    """Return the result of a snapshot: of a regression, which says what it is, the fit."""
    check("open, seed", snapshot.seed if seed is None else seed, one_of([snapshot.seed]))
    fitted, origin = None, snapshot.origin if algorithm is None else algorithm.origin
    if REGRESSION in origin:
        record = origin[REGRESSION]
        fitted = Prepared(*of_record(record), {}, record.get("least_rows"), record.get("secure"))
        algorithm = algorithm or fitted.algorithm
    if algorithm is None:
        expected = "the algorithm of a run made in Python, or a regression"
        actual, hint = f"one of {snapshot.algorithm!r}", "open(folder, algorithm=algorithm)"
        raise ArgumentError(f"open, {path}", expected, actual, hint)
    check_same(algorithm, snapshot)
    result = run(algorithm, {}, rounds=snapshot.round, resume=snapshot, seed=snapshot.seed)
    return Regression(fitted.design, fitted.model, result) if fitted else result

"""`open`: what a finished run returned, from its folder of results."""

from __future__ import annotations

from pathlib import Path

from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import check, checked, one_of
from bayesfed.federated import Algorithm, load
from bayesfed.running.experiments.build import build
from bayesfed.running.folders import CHECKPOINTS, Folder
from bayesfed.running.formulas.fitted import Regression
from bayesfed.running.launch import run
from bayesfed.running.result import Result


@checked()
def open(
    folder: str | Path, *, seed: int | None = None, algorithm: Algorithm | None = None
) -> Result | Regression:
    """Open a folder of results again: return what `run`, or `regression`, returned, with model,
    posterior, history, and a snapshot to go on from. Nothing runs.

    Parameters
    ----------
    folder
        A folder of `bayesfed run` or of `Result.save`.
    seed
        Seed of the run. Default: the first that is finished.
    algorithm
        The algorithm, for a run made in Python: an experiment file says it itself. The result then
        has no rows of clients.

    Raises
    ------
    ArgumentError
        If there is no such folder or finished run, or the algorithm is not that of the run.
    CheckpointError
        If the state of the run is not there or damaged.
    """
    found = Folder(Path(folder))
    known = found.finished
    if not known:
        hint = f"bayesfed run FILE --out {found.path.parent}"
        raise ArgumentError(f"open, {found.path}", "a finished run", "none", hint)
    seed = known[0] if seed is None else seed
    check("open, seed", seed, one_of(known))
    snapshot = load(found.seed(seed) / CHECKPOINTS)
    if algorithm is not None:
        return run(algorithm, {}, rounds=snapshot.round, resume=snapshot, seed=seed)
    if found.file is None:
        expected = "the algorithm of a run made in Python"
        hint = "open(folder, algorithm=algorithm)"
        raise ArgumentError(f"open, {found.path}", expected, algorithm, hint)
    built = build(found.file, seed)
    result = run(built.algorithm, built.pool, rounds=snapshot.round, resume=snapshot, seed=seed)
    if built.regression:
        _, made = built.regression
        return Regression(made.design, made.model, result)
    return result

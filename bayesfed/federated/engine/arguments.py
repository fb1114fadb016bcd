"""Checks of what a run is given, before its first round: what is wrong is named here, with what to
pass instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from torch import Tensor

from bayesfed.data import Dataset, Population
from bayesfed.errors import ArgumentError, PosteriorError
from bayesfed.errors.checks import WHOLE, a, check, shown
from bayesfed.errors.roles import Role, role_of
from bayesfed.federated.clients import ClientPool
from bayesfed.federated.core import Algorithm
from bayesfed.federated.engine.reports import Snapshot
from bayesfed.keys import Key, forked

SAMPLER = "everyone, fraction(0.5), or (round, names, key) -> names"
POSTERIOR = ("constants", "axes", "draw", "draw_prior", "observe")


def check_call(algorithm: object, rounds: object, sampler: object, resume: object) -> None:
    """Check the arguments that `rounds` and `run` share.

    Raises
    ------
    ArgumentError
        If one of them is of another kind.
    """
    check(
        "run, algorithm",
        algorithm,
        a(Algorithm, "an algorithm", "fed_avg(net): a recipe called with a network"),
    )
    if rounds is not None or cast(Algorithm, algorithm).finished is None:
        check("rounds", rounds, Role(WHOLE.fits, "a whole number", "rounds=10"))
    check("sampler", sampler, Role(callable, "a function that chooses clients", SAMPLER))
    if resume is not None:
        check("resume", resume, a(Snapshot, "a snapshot", "result.snapshot, or newest(folder)"))


def check_clients(clients: object) -> None:
    """Check that clients are data sets by name, or a pool.

    Raises
    ------
    ArgumentError
        If they are anything else; the message names the client.
    """
    hint = "{'name': data_set, ...}, federate(train, iid(len(train), 10, key)), or a pool"
    if not isinstance(clients, Mapping):
        expected = "a data set for each client by name, or a pool"
        check("run, clients", clients, Role(role_of(ClientPool).fits, expected, hint))
        return
    if isinstance(clients, Population):
        return
    for name, data in clients.items():
        if not isinstance(name, str) or not isinstance(data, Dataset):
            actual = shown(data) if isinstance(name, str) else f"the name {name!r}"
            hint = "{'name': Dataset(inputs, targets)}"
            raise ArgumentError(f"run, client {name!r}", "a Dataset by a name", actual, hint)


def check_posterior(algorithm: Algorithm, state: Mapping[str, Tensor]) -> None:
    """Check, at the start and not after training, that a method's posterior has all that is asked
    of it later.

    Raises
    ------
    ArgumentError
        If a member is missing.
    """
    if algorithm.posterior is None:
        return
    posterior = algorithm.posterior(dict(state))
    # Properties are not read.
    known = {*dir(type(posterior)), *vars(posterior)}
    if missing := [name for name in POSTERIOR if name not in known]:
        where = f"{algorithm.name!r}, posterior"
        actual = f"{type(posterior).__name__}, which has no {', '.join(missing)}"
        raise ArgumentError(where, "a Posterior", actual, f"a property or method {missing[0]}")


def check_test(algorithm: Algorithm, test: object, pool: ClientPool) -> None:
    """Check that the model takes the test set, and that its accuracy means something.

    Raises
    ------
    ArgumentError
        If it is no data set or empty, the model does not take its inputs, or its targets are no
        labels of the model's classes.
    """
    if not isinstance(test, Dataset) or not len(test):
        actual = shown(test) if not isinstance(test, Dataset) else "an empty set"
        hint = "test=Dataset(inputs, targets)"
        if isinstance(test, Mapping) and any(isinstance(rows, Dataset) for rows in test.values()):
            hint = "test=data.concatenated(list(test.values())), or Result.personal_scores(test)"
        raise ArgumentError("run, test", "a data set to score on", actual, hint)
    if test.targets.is_floating_point():
        hint = (
            "callbacks=[evaluate(test, metric=lambda outputs, targets: (outputs[:, 0] - "
            "targets).square(), name='mse')]"
        )
        expected = "class labels, whose accuracy is scored"
        raise ArgumentError("run, test", expected, shown(test.targets), hint)
    try:
        with forked(Key(0, "run", "test")):
            outputs = algorithm.predictor(algorithm.initial)(test.inputs[:2])
    except PosteriorError:
        raise
    except Exception as problem:
        expected = "inputs that the model takes"
        for rows in getattr(pool, "data", {}).values():
            if len(rows):
                expected = f"inputs like those of the clients, {described(rows)}"
                break
        actual = f"{described(test)} ({str(problem.__cause__ or problem).splitlines()[0]})"
        hint = "the test set prepared as the rows are"
        raise ArgumentError("run, test", expected, actual, hint) from problem
    most, classes = int(test.targets.max()), outputs.shape[1] if outputs.ndim == 2 else 0
    if test.targets.ndim != 1 or (classes and most >= classes):
        expected = "one label a row" + (f", 0 to {classes - 1}" if classes else "")
        actual = f"labels up to {most}, shape {tuple(test.targets.shape)}"
        hint = "classes=train.classes when reading the test set"
        raise ArgumentError("run, test", expected, actual, hint)


def described(data: Dataset) -> str:
    """Return the shape of a row and the type of a data set's inputs."""
    return f"rows {tuple(data.inputs.shape[1:])} of {str(data.inputs.dtype).removeprefix('torch.')}"

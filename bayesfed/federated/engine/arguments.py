"""Checks of what a run is given, before its first round: what is wrong is named here, with what to
pass instead.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import cast

from torch import Tensor

from bayesfed.data import Dataset, Population
from bayesfed.data.population import check_classes
from bayesfed.errors import ArgumentError, DataError, PosteriorError
from bayesfed.errors.checks import WHOLE, a, check, shown
from bayesfed.errors.roles import Role, role_of, takes
from bayesfed.federated.clients import ClientPool
from bayesfed.federated.core import Algorithm
from bayesfed.federated.engine.reports import Snapshot
from bayesfed.federated.training.likelihoods import trained_with
from bayesfed.keys import Key, forked
from bayesfed.models import Categorical, Labels

CHOOSING = Role(
    lambda sampler: callable(sampler) and takes(sampler, 3),
    "a function that chooses clients",
    "everyone, fraction(0.5), or (round, names, key) -> names",
)
# As many rows as there must be for each class before one without rows is worth a word.
ROWS_A_CLASS = 4
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
    check("sampler", sampler, CHOOSING)
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
            raise ArgumentError(
                f"run, client {name!r}",
                "a Dataset by a name",
                shown(data) if isinstance(name, str) else f"the name {name!r}",
                "{'name': Dataset(inputs, targets)}",
            )


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
        raise ArgumentError(
            f"{algorithm.name!r}, posterior",
            "a Posterior",
            f"{type(posterior).__name__}, which has no {', '.join(missing)}",
            f"a property or method {missing[0]}",
        )


def check_labels(clients: Mapping[str, Dataset], scored: Mapping[str, Dataset]) -> None:
    """Check that class numbers mean the same at all clients and in the sets that are scored. Warn
    if most classes below the largest, or class 0 alone, have no row at any client, although there
    are rows enough: labels may be codes, or begin at 1.

    Raises
    ------
    ArgumentError
        If class numbers do not mean the same.
    """
    check_classes("run", clients, scored)
    if isinstance(clients, Population):
        return
    parts = [data.targets for data in clients.values() if len(data)]
    if any(one.ndim > 1 or one.is_floating_point() for one in parts) or any(
        data.classes for data in clients.values()
    ):
        return
    held = {label for one in parts for label in one.unique().tolist()}
    count = max(held, default=0) + 1
    without = [str(label) for label in range(count) if label not in held]
    odd = 2 * len(without) > count or without == ["0"]
    if odd and ROWS_A_CLASS * count <= sum(map(len, parts)):
        told = ", ".join(without[:5]) + ", ..." * (len(without) > 5)
        warnings.warn(
            f"{len(without)} of the classes 0 to {count - 1} have no row at any client: {told}; "
            "try labels.unique(return_inverse=True)[1] of all rows, if labels are codes",
            stacklevel=4,
        )


def check_test(algorithm: Algorithm, test: object, clients: Mapping[str, Dataset]) -> None:
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
        hint = "callbacks=[evaluate(test, metric='mse')]"
        expected = "class labels, whose accuracy is scored"
        raise ArgumentError("run, test", expected, shown(test.targets), hint)
    if algorithm.finished:
        # It has no model before its end.
        return
    try:
        with forked(Key(0, "run", "test")):
            outputs = algorithm.predictor(algorithm.initial)(test.inputs[:2])
    except Exception as problem:
        like = next((described(rows) for rows in clients.values() if len(rows)), "")
        own = isinstance(problem, PosteriorError | ArgumentError)
        if own or like in ("", described(test)):
            # No fault of the test set.
            raise
        expected = f"inputs like those of the clients, {like}"
        actual = f"{described(test)} ({str(problem.__cause__ or problem).splitlines()[0]})"
        hint = "the test set prepared as the rows are"
        raise ArgumentError("run, test", expected, actual, hint) from problem
    trained = trained_with(algorithm, test.targets)
    scored = trained if isinstance(trained, Labels) else Categorical()
    try:
        scored.check(outputs.new_zeros(()).expand(len(test), *outputs.shape[1:]), test.targets)
    except DataError as problem:
        raise ArgumentError(f"run, test: {problem}") from problem


def described(data: Dataset) -> str:
    """Return the shape of a row and the type of a data set's inputs."""
    return f"rows {tuple(data.inputs.shape[1:])} of {str(data.inputs.dtype).removeprefix('torch.')}"

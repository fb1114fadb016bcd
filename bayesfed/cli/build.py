"""From an experiment file and a seed to what `bayesfed.run` takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from bayesfed.cli.adapters import Scope, batch
from bayesfed.cli.experiment import ExperimentError, ExperimentFile
from bayesfed.cli.schema import Reader
from bayesfed.cli.splits import split_rows
from bayesfed.data.dataset import Dataset
from bayesfed.data.partition import federate, iid
from bayesfed.errors import BayesfedError
from bayesfed.federated.clients.pools import InProcess
from bayesfed.federated.core.algorithm import Algorithm
from bayesfed.keys import Key
from bayesfed.models.priors.likelihoods import Categorical, Likelihood, Normal

CLIENTS = 10


@dataclass(frozen=True)
class Built:
    """One run, ready to go.

    Parameters
    ----------
    options
        What `bayesfed.run` takes further: rounds, sampler, who is left out.
    likelihood
        Of the method's point predictions.
    """

    algorithm: Algorithm
    pool: InProcess
    clients: Mapping[str, Dataset]
    train: Dataset
    test: Dataset
    seed: int
    options: Mapping[str, Any]
    likelihood: Likelihood
    draws: int
    save_every: int


def seeds(file: ExperimentFile) -> list[int]:
    """Return the seeds of an experiment.

    Raises
    ------
    ExperimentError
        If there are none, or one twice, or one below 0.
    """
    found = list(Reader(file, Scope(0, 0)).section("seeds"))
    if not found or len(set(found)) != len(found) or min(found) < 0:
        raise file.refuse(("seeds",), expected="different whole numbers from 0", actual=found, hint="[0, 1, 2]")
    return found


def build(file: ExperimentFile, seed: int) -> Built:
    """Make data, partition, network, recipe and clients of an experiment.

    Raises
    ------
    ExperimentError
        With file and line, if the file says what it cannot, or its parts do not fit.
    """
    scope = Scope(seed, 0)
    reader = Reader(file, scope)
    reader.check_top()
    scope.rounds = _least(reader, file, "rounds", 1)
    draws, save_every, least = (_least(reader, file, name, 1) for name in ("draws", "save_every", "least"))
    found = reader.section("data")
    scope.train, scope.test = train, test = split_rows(found, Key(seed, "data")) if isinstance(found, Dataset) else found
    parts = reader.section("partition") or iid(len(train), CLIENTS, Key(seed, "partition"))
    scope.net, scope.link = reader.section("net"), reader.section("link")
    if scope.net is not None:
        train, test = _fitted(file, scope.net, train, test, scope)
        scope.train, scope.test = train, test
    clients = federate(train, parts)
    scope.clients = sorted(clients)
    devices = {name: device.figures() for name, device in reader.section("devices").items()}
    scope.used.clear()
    algorithm: Algorithm = reader.section("recipe")
    _check_used(file, scope, algorithm)
    options = {"rounds": scope.rounds, "sampler": reader.section("sampler"), "on_client_error": reader.section("on_client_error"), "least": least}
    pool = _pool(reader, file, clients, devices)
    likelihood = scope.likelihood or (Normal() if train.targets.is_floating_point() else Categorical())
    return Built(algorithm, pool, clients, train, test, seed, options, likelihood, draws, save_every)


def _least(reader: Reader, file: ExperimentFile, name: str, least: int) -> int:
    found: int = reader.section(name)
    if found < least:
        raise file.refuse((name,), expected=f"a whole number from {least}", actual=found, hint=f"{name} = {max(least, 10)}")
    return found


def _fitted(file: ExperimentFile, net: nn.Module, train: Dataset, test: Dataset, scope: Scope) -> tuple[Dataset, Dataset]:
    """Try a network on two rows, so that what does not fit is said here and not by a client in round 0; return the rows as it has them."""
    shape, numbers, training = tuple(train.inputs.shape[1:]), train.targets.is_floating_point(), net.training
    wanted = tuple(train.targets.shape[1:]) if numbers else (scope.classes,)
    of = f"with targets of shape {wanted}" if numbers else f"in {scope.classes} classes"
    rows = f"rows of the data are {shape}, {train.inputs[0].numel()} numbers each, {of}"
    try:
        with torch.no_grad():
            out = net.eval()(batch(train))
    except (RuntimeError, TypeError, ValueError, IndexError, BayesfedError) as problem:
        actual = f"{type(problem).__name__}: {str(problem).splitlines()[0]}"
        hint = f"{_sizes(file, train, wanted)}; {rows}"
        raise file.refuse(("net",), expected="a network that takes the data", actual=actual, hint=hint) from problem
    finally:
        net.train(training)
    found = tuple(out.shape[1:])
    if numbers and (found, wanted) == ((1,), ()):
        # A layer of one output makes a column.
        return replace(train, targets=train.targets[:, None]), replace(test, targets=test.targets[:, None])
    if found != wanted and (numbers or len(found) != 1 or found[0] < scope.classes):
        raise file.refuse(("net",), expected=f"outputs {wanted} a row", actual=f"{found}", hint=f"{_sizes(file, train, wanted)}; {rows}")
    return train, test


def _sizes(file: ExperimentFile, train: Dataset, wanted: tuple[int, ...]) -> str:
    """Return the widths that would do, of a network that has widths; inputs in front and outputs at the end."""
    table = file.tree.get("net")
    if not isinstance(table, dict) or table.get("kind") != "mlp" or not isinstance(table.get("widths"), list) or len(wanted) > 1:
        return "other sizes"
    return f"widths = {[train.inputs[0].numel(), *table['widths'][1:-1], *(wanted or (1,))]}"


def _check_used(file: ExperimentFile, scope: Scope, algorithm: Algorithm) -> None:
    if scope.link is not None and "link" not in scope.used:
        expected = f"no [link]: {algorithm.name} has its own way up, messages one by one"
        raise file.refuse(("link",), expected=expected, actual="one", hint="leaving it out, or fed_avg, d_turbo_vbi, fed_rlr, ...")
    if scope.net is not None and "net" not in scope.used:
        raise file.refuse(("net",), expected=f"no [net]: {algorithm.name} builds its own", actual="one", hint="leaving it out")


def _pool(reader: Reader, file: ExperimentFile, clients: Mapping[str, Dataset], devices: Mapping[str, Mapping[str, float]]) -> InProcess:
    table = file.tree.get("pool", {})
    if not isinstance(table, dict):
        raise file.refuse(("pool",), expected="a table, [pool]", actual=table, hint="[pool] and workers = 2 below it")
    if own := [name for name in ("data", "devices", "secrets") if name in table]:
        raise file.refuse(("pool", own[0]), expected="workers, kind or deadline_s", actual=f"`{own[0]}`", hint="leaving it out")
    found = reader.call(InProcess, table, ("pool",), left=("data", "devices", "secrets"))
    try:
        made: InProcess = found(clients, devices=devices)
    except BayesfedError as problem:
        raise ExperimentError(f"{file.where(('pool',))}: {problem}") from problem
    return made

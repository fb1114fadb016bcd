"""From an experiment file and a seed to the arguments of `bayesfed.run`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from bayesfed.data import Dataset, concatenated, federate, iid, split_rows
from bayesfed.data.population import check_classes
from bayesfed.errors import BayesfedError, DataError
from bayesfed.errors.plurals import plural
from bayesfed.federated import Algorithm, InProcess
from bayesfed.federated.training.likelihoods import likelihoods_of
from bayesfed.inference.objectives.likelihood import check_data
from bayesfed.keys import Key
from bayesfed.models import Categorical, Likelihood, Normal
from bayesfed.models.modules import evaluating
from bayesfed.running.experiments.experiment import ExperimentFile, Settings
from bayesfed.running.experiments.kinds import POOL
from bayesfed.running.experiments.reader import Reader
from bayesfed.running.experiments.regressions import BESIDE, RegressionOf
from bayesfed.running.experiments.scope import Scope
from bayesfed.running.experiments.words import missing
from bayesfed.running.formulas.prepared import Prepared
from bayesfed.running.scores import Further, check_further

CLIENTS = 10
COUNTS = ("rounds", "draws", "save_every", "least")
PLAIN = (*COUNTS, "on_client_error", "own_rows", "scores", "pool")
# Sections that belong in the file only if something asks for them.
UNUSED = {"link": "has its own way up, messages one by one", "net": "builds its own"}


@dataclass(frozen=True)
class Built:
    """One run, ready to go.

    Parameters
    ----------
    options
        Further arguments of `bayesfed.run`: rounds, sampler, and what happens to clients that fail.
    likelihood
        Likelihood of the method's point predictions.
    own
        Rows of each client to score its own model on; empty where the file asks for none.
    scores
        Names of further scores.
    regression
        The section of a regression by formula, and what it made.
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
    own: Mapping[str, Dataset]
    scores: Sequence[Further] = ()
    regression: tuple[RegressionOf, Prepared] | None = None


def seeds(file: ExperimentFile) -> list[int]:
    """Return the seeds of an experiment.

    Raises
    ------
    ExperimentError
        If there are none, or one twice, or one below 0.
    """
    listed = list(Reader(file, Scope(0)).section("seeds"))
    if not listed or len(set(listed)) != len(listed) or min(listed) < 0:
        raise file.error(("seeds",), "different whole numbers from 0", listed, "[0, 1, 2]")
    return listed


def build(file: ExperimentFile, seed: int) -> Built:
    """Make data, partition, network, recipe and clients of an experiment.

    Raises
    ------
    ExperimentError
        With file and line, if a key is wrong or the parts do not fit together.
    """
    scope = Scope(seed)
    reader = Reader(file, scope)
    if "regression" in file.tree:
        return _regression(reader, file, seed)
    # What needs nothing else first, so that it is refused at once.
    plain = {name: reader.section(name) for name in PLAIN}
    for name in COUNTS:
        if plain[name] is not None and plain[name] < 1:
            raise file.error((name,), "a whole number from 1", plain[name], f"{name} = 10")
    scope.rounds, share, scores = plain["rounds"], plain["own_rows"], tuple(plain["scores"])
    if not 0 <= share < 1:
        raise file.error(("own_rows",), "a share from 0 to below 1", share, "own_rows = 0.25")
    rows = reader.section("data")
    scope.train, scope.test = (
        split_rows(rows, key=Key(seed, "data")) if isinstance(rows, Dataset) else rows
    )
    parts = reader.section("partition") or iid(len(scope.train), CLIENTS, Key(seed, "partition"))
    scope.net, scope.link = reader.section("net"), reader.section("link")
    train, test = scope.train, scope.test = _fitted(file, scope)
    check_classes("data", {"training rows": train, "test rows": test})
    clients = federate(train, parts)
    own: Mapping[str, Dataset] = {}
    if share:
        clients, own = split_rows(clients, share, key=Key(seed, "own rows"))
        train = scope.train = concatenated(list(clients.values()))
    try:
        check_further(scores, test, own)
    except BayesfedError as problem:
        raise file.error(("scores",), problem=problem) from problem
    scope.clients = sorted(clients)
    devices = {name: device.figures() for name, device in reader.section("devices").items()}
    scope.used.clear()
    algorithm: Algorithm = reader.section("recipe")
    _scored(file, scope, algorithm)
    if plain["rounds"] is None and algorithm.finished is None:
        raise file.error(("rounds",), *missing("rounds", Settings))
    for name, why in UNUSED.items():
        if getattr(scope, name) is not None and name not in scope.used:
            hint = "leaving it out" + (
                ", or fed_avg, d_turbo_vbi, fed_rlr, ..." if name == "link" else ""
            )
            raise file.error((name,), f"no [{name}]: {algorithm.name} {why}", "one", hint)
    options = {"sampler": reader.section("sampler")} | {
        name: plain[name] for name in ("on_client_error", "rounds", "least")
    }
    made = reader.call(InProcess, plain["pool"], ("pool",), left=POOL)
    try:
        pool: InProcess = made(data=clients, devices=devices, secrets=None)
    except BayesfedError as problem:
        raise file.error(("pool",), problem=problem) from problem
    likelihood = scope.likelihood or (
        Normal() if train.targets.is_floating_point() else Categorical()
    )
    draws, every = plain["draws"], plain["save_every"]
    return Built(
        algorithm, pool, clients, train, test, seed, options, likelihood, draws, every, own, scores
    )


def _regression(reader: Reader, file: ExperimentFile, seed: int) -> Built:
    """Make a regression by formula: it ends by itself, and has tables in place of scores."""
    for name in file.tree:
        if name not in ("regression", *BESIDE):
            expected = f"[regression] beside none but {', '.join(BESIDE)}"
            raise file.error((name,), expected, f"`{name}`", "leaving it out")
    section: RegressionOf = reader.section("regression")
    try:
        made = section.prepared()
        plain = {name: reader.section(name) for name in BESIDE}
        pool: InProcess = reader.call(InProcess, plain["pool"], ("pool",), left=POOL)(
            data=made.clients, devices={}, secrets=None
        )
    except BayesfedError as problem:
        raise file.error(("regression",), problem=problem) from problem
    rows = concatenated(list(made.clients.values()))
    options, likelihood = {"rounds": None}, Normal()
    return Built(
        made.algorithm,
        pool,
        made.clients,
        rows,
        rows[:0],
        seed,
        options,
        likelihood,
        1,
        plain["save_every"],
        {},
        regression=(section, made),
    )


def _fitted(file: ExperimentFile, scope: Scope) -> tuple[Dataset, Dataset]:
    """Try the network on two rows, so that a misfit is told here and not by a client in round 0;
    return the rows in the shape of its outputs.
    """
    train, test, net = scope.train, scope.test, scope.net
    if net is None:
        return train, test
    shape = tuple(train.inputs.shape[1:])
    numbers = train.targets.is_floating_point()
    wanted = tuple(train.targets.shape[1:]) if numbers else (scope.classes,)
    of = f"with targets of shape {wanted}" if numbers else f"in {plural(scope.classes, 'class')}"
    hint = (
        f"{_sizes(file, train, wanted)}; rows of the data are {shape}, "
        f"{plural(train.inputs[0].numel(), 'number')} each, {of}"
    )
    try:
        with torch.no_grad(), evaluating(net):
            rows = train.inputs[[0, min(1, len(train) - 1)]]
            outputs = tuple(net(rows).shape[1:])
    except Exception as problem:
        raise file.error(
            ("net",),
            "a network that takes the data",
            f"{type(problem).__name__}: {str(problem).splitlines()[0]}",
            hint,
        ) from problem
    if numbers and (outputs, wanted) == ((1,), ()):
        # A layer of one output makes a column.
        columns = [replace(part, targets=part.targets[:, None]) for part in (train, test)]
        return columns[0], columns[1]
    if outputs != wanted and (numbers or len(outputs) != 1 or outputs[0] < scope.classes):
        raise file.error(("net",), f"outputs {wanted} a row", f"{outputs}", hint)
    return train, test


def _scored(file: ExperimentFile, scope: Scope, algorithm: Algorithm) -> None:
    """Score a row by the likelihoods that the method trains with, so that one that does not take
    the targets is told here and not by a client in round 0.
    """
    if scope.net is None:
        return
    try:
        with evaluating(scope.net):
            for scored in likelihoods_of([algorithm]):
                check_data(scope.net, scored, {}, scope.train)
    except DataError as problem:
        raise file.error(("recipe",), problem=problem) from problem


def _sizes(file: ExperimentFile, train: Dataset, wanted: tuple[int, ...]) -> str:
    """Return the widths of an `mlp` that would do: inputs in front and outputs at the end."""
    match file.tree.get("net"):
        case {"kind": "mlp", "widths": [_, *hidden, _]} if len(wanted) < 2:
            return f"widths = {[train.inputs[0].numel(), *hidden, *(wanted or (1,))]}"
    return "other sizes"

"""Clients after a run: the model or posterior that each one predicts with, and scores on its own
rows.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyro.distributions import TorchDistribution
from torch import Tensor

from bayesfed.data import Dataset
from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import check, one_of
from bayesfed.federated import Algorithm, Personal, Posterior, Predictor, Record, Snapshot
from bayesfed.federated.training.likelihoods import trained_with
from bayesfed.inference.evaluation.predictive import Predictive
from bayesfed.inspect.at_clients import own_posterior, with_rows
from bayesfed.inspect.tables import table
from bayesfed.keys import Key
from bayesfed.models import Likelihood
from bayesfed.trees import Tree

# Scores that are better the larger they are.
LARGER = frozenset({"accuracy"})
SCORES = ("accuracy", "nll", "ece", "rmse")
# What is counted, and no score.
COUNTS = ("rows", "rounds")
# A leaf that a pool names instead of a memory which lies at the client (`bayesfed.flower`).
ELSEWHERE = "slot.round"


@dataclass(frozen=True)
class Point:
    """A network without a posterior, as a posterior of one draw.

    Parameters
    ----------
    model
        The network.
    likelihood
        Distribution of the targets given its outputs.
    """

    model: Predictor
    likelihood: Likelihood

    def draw(self, key: Key) -> Tree:
        """Return nothing."""
        return {}

    def observe(self, draw: Tree, inputs: Tensor, key: Key) -> TorchDistribution:
        """Return the distribution of the targets, batch ``(B,)``."""
        return self.likelihood.distribution(self.model(inputs))


@dataclass(frozen=True)
class Client:
    """One client after a run.

    Parameters
    ----------
    name
        Name of the client.
    rounds
        Number of rounds that it took part in.
    model
        What it predicts with: its own model where the method is personal, else the transmitted one.
    posterior
        Its own posterior, or that of all clients; None where the method has none.
    """

    name: str
    rounds: int
    model: Predictor
    posterior: Posterior | None = None


@dataclass(frozen=True)
class PersonalScores:
    """Scores of clients on their own rows. Every client counts alike, however many rows it has.

    Parameters
    ----------
    clients
        By client: ``rows`` that were scored, ``rounds`` that the client took part in, and its
        scores.
    """

    clients: Mapping[str, Mapping[str, float]]

    def values(self, score: str) -> list[float]:
        """Return a score of every client.

        Raises
        ------
        ArgumentError
            If there is no such score.
        """
        if missing := [name for name, scores in self.clients.items() if score not in scores]:
            check("PersonalScores", score, one_of(sorted(self.clients[missing[0]])))
        return [scores[score] for scores in self.clients.values()]

    def mean(self, score: str = "accuracy") -> float:
        """Return the mean of a score over clients."""
        return statistics.fmean(self.values(score))

    def worst_decile(self, score: str = "accuracy") -> float:
        """Return the mean of a score over the tenth of the clients for which it is worst, at least
        one client.
        """
        ordered = sorted(self.values(score), reverse=score not in LARGER)
        return statistics.fmean(ordered[: math.ceil(len(ordered) / 10)])

    def figures(self) -> dict[str, float]:
        """Return mean and worst decile of every score, as ``own_SCORE`` and ``worst_SCORE``."""
        names = [name for name in next(iter(self.clients.values())) if name not in COUNTS]
        return {f"own_{name}": self.mean(name) for name in names} | {
            f"worst_{name}": self.worst_decile(name) for name in names
        }

    def table(self) -> str:
        """Return an aligned table: a line for each client, then the mean and the worst decile."""
        names = list(next(iter(self.clients.values())))
        rows: list[list[str | float | int]] = [
            [client, *(int(own[name]) if name in COUNTS else own[name] for name in names)]
            for client, own in self.clients.items()
        ]
        for heading, figure in (("mean", self.mean), ("worst decile", self.worst_decile)):
            rows.append([heading, *("" if name in COUNTS else figure(name) for name in names)])
        return table(["client", *names], rows)


def client_of(
    algorithm: Algorithm,
    snapshot: Snapshot,
    history: Sequence[Record],
    name: str,
    rows: Dataset | None = None,
) -> Client:
    """Return a client as it is after a run; one that never took part has what a new client gets.

    Parameters
    ----------
    algorithm, snapshot, history
        Method, last snapshot and records of the run.
    name
        Name of the client.
    rows
        Rows that its posterior is to predict, which local latents may depend on.

    Raises
    ------
    ArgumentError
        If the method is personal, or a part of its posterior stays with clients, and what the
        client keeps is not here.
    """
    memory = dict(snapshot.memories.get(name, {}))
    if algorithm.personal is not None:
        if ELSEWHERE in memory:
            raise ArgumentError(
                f"client {name!r}",
                "its memory",
                "one that is kept at the client",
                "a run in process, or scoring at the client",
            )
        own = algorithm.personal(snapshot.state, memory)
    else:
        posterior = algorithm.posterior(snapshot.state) if algorithm.posterior else None
        if posterior is not None:
            posterior = own_posterior(posterior, snapshot.memories, name, rows, "Result.clients")
        own = Personal(algorithm.predictor(snapshot.state), posterior)
    return Client(name, sum(name in record.clients for record in history), own.model, own.posterior)


def personal_scores(
    algorithm: Algorithm,
    snapshot: Snapshot,
    history: Sequence[Record],
    data: Mapping[str, Dataset],
    *,
    likelihood: Likelihood | None = None,
    draws: int = 100,
    seed: int = 0,
) -> PersonalScores:
    """Score what every client predicts with on its own rows.

    Parameters
    ----------
    algorithm, snapshot, history
        Method, last snapshot and records of a run.
    data
        Rows of each client by name, rows that were not trained on. Clients without rows are left
        out.
    likelihood
        Likelihood of point models. Default: the one that the method trains with, if it names one;
        else `Categorical()` for classes and `Normal()` for numbers.
    draws, seed
        Number of posterior draws, and the seed that names them.

    Raises
    ------
    ArgumentError
        If there are no rows, or no client of that name took part in the run.
    """
    where, parts = "Result.personal_scores", with_rows(data)
    if not parts:
        raise ArgumentError(
            where, "clients with rows", "no rows", "train, test = split_rows(clients, 0.25)"
        )
    took_part = {name for record in history for name in record.clients}
    if not took_part & parts.keys():
        raise ArgumentError(
            where,
            f"clients of the run: {sorted(took_part)[:3]}, ...",
            sorted(parts)[:3],
            "their names",
        )
    scores: dict[str, dict[str, float]] = {}
    for name, rows in parts.items():
        client = client_of(algorithm, snapshot, history, name, rows)
        scored = likelihood or trained_with(algorithm, rows.targets)
        of = Point(client.model, scored) if client.posterior is None else client.posterior
        count = 1 if client.posterior is None else draws
        key = Key(seed, "personal", name)
        found = Predictive(of, rows.inputs, key, count).scores(rows.targets)
        counts = {"rows": float(len(rows)), "rounds": float(client.rounds)}
        scores[name] = counts | {key: found[key] for key in SCORES if key in found}
    return PersonalScores(scores)

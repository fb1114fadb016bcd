"""Runs of one method on one problem, and its strength by held-out rows."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass

from parts.pooling.problems import Problem
from torch import nn

import bayesfed as bf
from bayesfed.federated import Algorithm

ROUNDS, DRAWS = 30, 50
Scores = Mapping[str, float]


@dataclass(frozen=True)
class Chosen:
    """One method at its chosen strength: NLL on held-out rows, and NLL of every client on test
    rows.
    """

    strength: str
    held: float
    own: Scores
    unseen: Scores


def work(steps: int, rate: float) -> bf.Training:
    """Return steps of SGD with all rows of a client."""
    return bf.Training(steps=steps, batch_size=64, optimiser=bf.Sgd(rate))


def run(algorithm: Algorithm, problem: Problem, rounds: int) -> bf.Result:
    """Run one method; two workers share the clients."""
    with bf.InProcess(problem.train, workers=2) as pool:
        return bf.run(algorithm, pool, rounds=rounds, seed=problem.seed, progress=False)


def with_parameters(net: nn.Module, result: bf.Result) -> nn.Module:
    """Return a copy of the network that begins where a run ended."""
    copy = deepcopy(net)
    copy.load_state_dict(dict(result.model.parameters))
    return copy


def nll(result: bf.Result, rows: Mapping[str, bf.Dataset]) -> dict[str, float]:
    """Return the NLL of every client on its rows."""
    return {
        name: scores["nll"]
        for name, scores in result.personal_scores(rows, draws=DRAWS).clients.items()
    }


def best(
    candidates: Iterable[tuple[str, Callable[[], bf.Result]]], problem: Problem
) -> tuple[Chosen, bf.Result]:
    """Return the candidate with the least NLL on held-out rows, every client counting alike."""
    tried = []
    for strength, make in candidates:
        result = make()
        tried.append((statistics.fmean(nll(result, problem.held).values()), strength, result))
    held, strength, result = min(tried, key=lambda one: one[0])
    scores = nll(result, {**problem.test, **problem.unseen})
    return Chosen(strength, held, part(scores, problem.test), part(scores, problem.unseen)), result


def part(scores: Scores, names: Iterable[str]) -> Scores:
    """Return the scores of some clients."""
    return {name: scores[name] for name in names}

"""What is predicted for clients that were never seen: given some of their inputs without labels,
its controls, and FedAvg at its temperature.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

import torch
from parts.pooling.problems import Problem
from parts.pooling.runs import ROUNDS, Chosen, best, run
from torch import Tensor
from torch.nn.functional import cross_entropy

import bayesfed as bf
from bayesfed.algorithms.after_training.calibration.model import CalibratedModel
from bayesfed.algorithms.personal.pooled.covariates import GivenInputsModel
from bayesfed.algorithms.personal.pooled.unlabelled import UnseenModel
from bayesfed.federated import Predictor

Outputs = Callable[[Tensor], Tensor]
Training = Callable[[float], bf.Training]


def given_inputs(
    model: Predictor, base: Chosen, problem: Problem, training: Training, rates: Iterable[float]
) -> dict[str, Chosen]:
    """Return what is predicted for clients that were never seen from inputs without labels, and its
    controls.
    """
    if isinstance(model, UnseenModel):
        flat = UnseenModel(model.net, model.parameters, model.base, torch.ones_like(model.base))
        # Both weights were best on held-out rows, of 1, 0.3, 0.1 and 0.03 at seeds 0 and 1.
        return {
            "pooled, inputs seen": replace(
                base,
                strength="weight 0.1",
                unseen=by_halves(partial(model.adapted, weight=0.1), problem.unseen),
            ),
            "the same, flat prior": replace(
                base,
                strength="weight 1",
                unseen=by_halves(partial(flat.adapted, weight=1.0), problem.unseen),
            ),
        }
    if not isinstance(model, GivenInputsModel):
        return {}
    names = list(problem.unseen)
    others = {
        name: problem.unseen[other]
        for name, other in zip(names, names[1:] + names[:1], strict=True)
    }
    return {
        "pooled, inputs seen": replace(base, unseen=by_halves(model.adapted, problem.unseen)),
        "the same, inputs of another": replace(
            base, unseen=by_halves(model.adapted, problem.unseen, others)
        ),
        "FedAvg, covariates as inputs": beside(model, problem, training, rates),
    }


def by_halves(
    adapted: Callable[[Tensor], Outputs],
    rows: Mapping[str, bf.Dataset],
    seen: Mapping[str, bf.Dataset] | None = None,
) -> dict[str, float]:
    """Return the NLL of each client's halves, each by a model for the inputs of the other half; of
    `seen`, if these are others.
    """

    def score(name: str) -> float:
        half = len(rows[name]) // 2
        first, last = slice(0, half), slice(half, len(rows[name]))
        shown = (seen or rows)[name].inputs
        return statistics.fmean(
            nll_of(adapted(shown[told]), rows[name][part])
            for told, part in ((first, last), (last, first))
        )

    return {name: score(name) for name in rows}


def nll_of(model: Outputs, data: bf.Dataset) -> float:
    """Return the NLL of a model."""
    return float(cross_entropy(model(data.inputs), data.targets))


def beside(
    model: GivenInputsModel, problem: Problem, training: Training, rates: Iterable[float]
) -> Chosen:
    """Return FedAvg, to whose network a client's covariates are further inputs; of clients that
    were never seen those of the other half.
    """

    def joined(inputs: Tensor, seen: Tensor) -> Tensor:
        return torch.cat([inputs.flatten(1), model.expected(seen).expand(len(inputs), -1)], 1)

    def told(rows: Mapping[str, bf.Dataset]) -> dict[str, bf.Dataset]:
        return {
            name: bf.Dataset(joined(data.inputs, problem.train[name].inputs), data.targets)
            for name, data in rows.items()
        }

    def adapted(seen: Tensor) -> Outputs:
        return lambda inputs: plain.model(joined(inputs, seen))

    wide = replace(
        problem,
        train=told(problem.train),
        held=told(problem.held),
        test=told(problem.test),
        unseen={},
    )
    net = bf.mlp(
        [wide.train[next(iter(wide.train))].inputs.shape[1], *problem.widths[1:]],
        bf.Key(problem.seed, "beside"),
    )
    found, plain = best(
        [
            (f"rate {rate}", partial(run, bf.fed_avg(net, training=training(rate)), wide, ROUNDS))
            for rate in rates
        ],
        wide,
    )
    return replace(found, unseen=by_halves(adapted, problem.unseen))


def tempered(plain: bf.Result, base: Chosen, problem: Problem) -> Chosen:
    """Return the network at the temperature that held-out rows of all clients chose."""
    model = bf.run(bf.calibrated(plain.model), problem.held, rounds=1, progress=False).model
    assert isinstance(model, CalibratedModel)

    def scores(rows: Mapping[str, bf.Dataset]) -> dict[str, float]:
        return {name: nll_of(model, data) for name, data in rows.items()}

    return Chosen(
        f"{base.strength}, T {model.temperature:.2f}",
        statistics.fmean(scores(problem.held).values()),
        scores(problem.test),
        scores(problem.unseen),
    )

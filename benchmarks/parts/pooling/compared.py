"""Every method on one problem, each at the strength that held-out rows chose."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

from parts.pooling.problems import Problem
from parts.pooling.runs import ROUNDS, Chosen, best, run, with_parameters, work
from parts.pooling.unseen import given_inputs, tempered
from torch import nn

import bayesfed as bf

Local = Literal["head", "offsets", "classes", "factors"]
Shared = Literal["trained", "fixed"]
Covariates = Literal["inputs"]
Factors = tuple[int, int, Covariates | None]


@dataclass(frozen=True)
class Grids:
    """What is tried: rates of FedAvg, steps and rates of fine-tuning, steps alone, Ditto's lambda,
    parts of `pooled`, and its factors.

    Factors are their number, the draw of their first loadings, and their covariates; their rate was
    chosen at seeds 0 and 1. `steps` are those of a round.
    """

    rates: tuple[float, ...] = (0.1, 0.3, 1.0)
    tuned: tuple[tuple[int, float], ...] = tuple(
        (steps, rate) for steps in (10, 20, 40, 80) for rate in (0.03, 0.1)
    )
    alone: tuple[int, ...] = (30, 100, 300)
    ditto: tuple[float, ...] = (0.1, 0.3, 1.0, 3.0)
    parts: tuple[tuple[Local, Shared], ...] = (
        ("classes", "trained"),
        ("head", "fixed"),
        ("offsets", "trained"),
    )
    factors: tuple[Factors, ...] = (
        *((2, draw, None) for draw in range(5)),
        *((count, draw, "inputs") for count in (2, 3) for draw in range(2)),
    )
    factor_rate: float = 0.3
    steps: int = 20


def compared(problem: Problem, grids: Grids) -> dict[str, Chosen]:
    """Return every method at the strength that held-out rows chose."""
    net, methods = problem.net, dict[str, Chosen]()
    begun: dict[float, nn.Module] = {}

    def fed_avg(rate: float) -> bf.Result:
        algorithm = partial(bf.fed_avg, training=work(grids.steps, rate))
        begun[rate] = with_parameters(net, run(algorithm(net), problem, 2 * ROUNDS // 3))
        return run(algorithm(begun[rate]), problem, ROUNDS // 3)

    methods["FedAvg"], plain = best(
        [(f"rate {rate}", partial(fed_avg, rate)) for rate in grids.rates], problem
    )
    rate = float(methods["FedAvg"].strength.split()[1])
    last, two_thirds = with_parameters(net, plain), begun[rate]
    methods["FedAvg, temperature"] = tempered(plain, methods["FedAvg"], problem)

    def tuned(begun: nn.Module, steps: int, own: float) -> bf.Result:
        return run(
            bf.personalised(
                bf.fed_avg(begun, training=work(1, rate)), steps=steps, optimiser=bf.Sgd(own)
            ),
            problem,
            1,
        )

    def ditto(strength: float) -> bf.Result:
        return run(bf.ditto(last, strength=strength, training=work(100, 0.1)), problem, 1)

    def pooled(local: Local, shared: Shared) -> bf.Result:
        return run(
            bf.pooled(
                two_thirds,
                local=local,
                shared=shared,
                initial_sd=0.2,
                training=work(grids.steps, rate),
            ),
            problem,
            ROUNDS // 3,
        )

    def factors(count: int, draw: int, given: Covariates | None) -> bf.Result:
        key, training = bf.Key(draw, "factors"), work(grids.steps, grids.factor_rate)
        return run(
            bf.pooled(
                net, local="factors", factors=count, covariates=given, key=key, training=training
            ),
            problem,
            ROUNDS,
        )

    methods["FedAvg, fine-tuned"], _ = best(
        [
            (f"{steps} steps at {own}", partial(tuned, last, steps, own))
            for steps, own in grids.tuned
        ],
        problem,
    )
    methods["local only"], _ = best(
        [(f"{steps} steps at 0.1", partial(tuned, net, steps, 0.1)) for steps in grids.alone],
        problem,
    )
    methods["Ditto"], _ = best(
        [(f"lambda {strength}", partial(ditto, strength)) for strength in grids.ditto], problem
    )
    tried = [
        (f"{local}, the rest {shared}", partial(pooled, local, shared))
        for local, shared in grids.parts
    ]
    tried += [
        (
            f"{count} factors, {'by inputs, ' if given else ''}draw {draw}",
            partial(factors, count, draw, given),
        )
        for count, draw, given in grids.factors
    ]
    methods["pooled"], chosen = best(tried, problem)
    methods |= given_inputs(
        chosen.model, methods["pooled"], problem, partial(work, grids.steps), grids.rates
    )
    return methods

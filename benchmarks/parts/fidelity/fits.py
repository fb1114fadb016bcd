"""Fits of `fidelity.py`: how each fusion rule is run on each problem, through the engine, in two
processes.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from parts.fidelity.problems import (
    Gaussian,
    linear,
    linear_model,
    logistic,
    logistic_model,
    odd,
    pooled,
    schools,
    schools_model,
)
from pyro.infer.autoguide import AutoMultivariateNormal, AutoNormal
from tqdm import tqdm

import bayesfed as bf
from bayesfed.federated.training.optimisers import Schedule, constant
from bayesfed.inference.variational.fusion import Fusion
from bayesfed.inference.variational.posterior import FittedGuide

Clients = Mapping[str, bf.Dataset]
ACCURATE, TOO_WIDE, BIASED = "", "bad: too wide", "bad: biased mean"


@dataclass(frozen=True)
class Plan:
    """How a rule is run: rounds, and the local work of each."""

    fusion: Fusion
    rounds: int
    steps: int
    optimiser: Any = bf.Adam(0.02)
    schedule: Schedule = constant


@dataclass(frozen=True)
class Job:
    """One fit through the engine.

    Parameters
    ----------
    count
        Clients.
    effort
        A factor on the steps of PVI on the linear problem.
    """

    problem: str
    split: str
    count: int
    rule: str
    effort: int = 1


PROBLEMS: dict[str, tuple[Callable[[str, int], Clients], Callable[..., None]]] = {
    "linear": (lambda split, count: linear(0, count, split), linear_model),
    "odd": (lambda split, count: odd(split), linear_model),
    "logistic": (lambda split, count: logistic(count, split), logistic_model),
    "schools": (lambda split, count: schools(count), schools_model),
}


def falling(steps: int, start: int) -> Schedule:
    """Keep a natural-gradient rate of 0.15 for some rounds, then let it fall as 2 / steps since:
    noise averages out over all these rounds.
    """
    return lambda round: (
        1.0 if round < start else min(1.0, 2 / (0.15 * steps * (round - start + 1)))
    )


def careful(fusion: Fusion, rounds: int, steps: int) -> Plan:
    """Natural-gradient steps, three fifths of the rounds at a fixed rate, the others at a falling
    one.
    """
    return Plan(
        fusion, rounds, steps, bf.federated.NaturalGradient(0.15), falling(steps, 3 * rounds // 5)
    )


def plan(job: Job) -> Plan:
    """Return how a rule is run on a problem; the work of all clients together hardly depends on
    their number.
    """
    steps = 200 * job.effort // job.count if job.problem == "linear" else 40
    match job.rule:
        case "PVI" if job.problem == "schools":
            return Plan(bf.PVI(damping=0.3), 50, 40, bf.Adam(0.03), bf.federated.cosine(0.05, 50))
        case "PVI":
            return careful(bf.PVI(damping=0.5), 45, steps)
        case "PVI, full covariance":
            return Plan(bf.PVI(damping=0.3), 30, 25, bf.Adam(0.03), bf.federated.cosine(0.05, 30))
        case "summed gradients":
            return Plan(bf.SummedGradients(0.1), 300, 4, schedule=bf.federated.cosine(0.005, 300))
        case "product of experts":
            return careful(bf.inference.ProductOfExperts(), 3, 60)
        case rule:
            rules: dict[str, Fusion] = {
                "Wasserstein": bf.inference.Wasserstein(),
                "reverse KL": bf.inference.ReverseKL(),
                "mean parameters": bf.inference.MeanParameters(),
            }
            return careful(rules[rule.partition(",")[0]], 10, 20)


RULES = {
    "PVI": ACCURATE,
    "summed gradients": ACCURATE,
    "product of experts": BIASED,
    "Wasserstein, local": TOO_WIDE,
    "Wasserstein, global": BIASED,
    "reverse KL, local": TOO_WIDE,
    "reverse KL, global": BIASED,
    "mean parameters, global": BIASED,
}


def solve(job: Job) -> Gaussian:
    """Fit through the engine; return the Gaussian over the shared draws in the guide's space,
    blocks in the model's order.
    """
    torch.set_num_threads(1)
    make, model = PROBLEMS[job.problem]
    clients = make(job.split, job.count)
    rows = pooled(clients)
    guide: Any = (
        partial(AutoMultivariateNormal, init_scale=0.3) if "full" in job.rule else AutoNormal
    )
    how = plan(job)
    algorithm = bf.federated_svi(
        model,
        guide,
        fusion=how.fusion,
        scale="global" if job.rule.endswith("global") else "local",
        observations=len(rows),
        example=rows[:3],
        training=bf.Training(
            steps=how.steps, batch_size=None, optimiser=how.optimiser, schedule=how.schedule
        ),
    )
    return gaussian(bf.run(algorithm, clients, rounds=how.rounds, progress=False).posterior)


def gaussian(posterior: Any) -> Gaussian:
    """Return the Gaussian of a fitted guide's blocks."""
    assert isinstance(posterior, FittedGuide)
    usual = [block.read(posterior.pair, posterior.parameters) for block in posterior.layout.blocks]
    factors = [
        u["scale_tril"] if "scale_tril" in u else u["scale"].reshape(-1).diag() for u in usual
    ]
    covariance = torch.block_diag(*(factor.double() @ factor.double().T for factor in factors))
    return Gaussian(torch.cat([u["loc"].double().reshape(-1) for u in usual]), covariance)


def side_by_side(function: Callable[[Any], Any], jobs: Sequence[Any], what: str) -> dict[Any, Any]:
    """Run jobs in two processes, each on one thread."""
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as workers:
        return dict(zip(jobs, tqdm(workers.map(function, jobs), what, len(jobs)), strict=True))

"""Two figures of `fedrlr.py` without a federation: ranks by step (Fig. 2) and inference time (Fig.
10).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from parts.fedrlr.runs import model, network
from parts.shared.targets import interleaved, ratio
from torch import Tensor, nn
from tqdm import trange

import bayesfed as bf
from bayesfed.geometry import from_dense, metric_retraction, project, random_point, to_dense
from bayesfed.inference.objectives.proximal_operators import SingularThreshold


@dataclass(frozen=True)
class Ranks:
    """Ranks and relative errors ``||X - X*|| / ||X*||`` after each step of one method."""

    ranks: list[int]
    errors: list[float]


def ranks(settings: Mapping[str, Any]) -> dict[str, Ranks]:
    """Recover one matrix of low rank from noisy random entries by proximal and by Riemannian
    gradient steps; return their ranks by step.

    Minimises ``1/2 ||mask (X - Y)||^2 / share`` from the same point, the share of entries being
    seen; Y has rank R and noise on top. The rank is that of the matrix of every iterate, counted by
    singular values above rounding.
    """
    rows, columns, rank, steps = (settings[name] for name in ("rows", "columns", "rank", "steps"))
    key, share = bf.Key(settings["seed"], "ranks"), float(settings["share"])
    truth = to_dense(random_point(rows, columns, rank, key.child("truth"), std=1.0))
    generator = key.child("seen").generator()
    mask: Tensor = (torch.rand(rows, columns, generator=generator) < share).float()
    seen: Tensor = mask * (
        truth + settings["noise"] * torch.randn(rows, columns, generator=generator)
    )

    def gradient(matrix: Tensor) -> Tensor:
        slope: Tensor = (mask * matrix - seen) / share
        return slope

    def error(matrix: Tensor) -> float:
        return float((matrix - truth).norm() / truth.norm())

    rate, found = settings["rate"], dict[str, Ranks]()
    start = from_dense(seen / share, rank)
    for strength in settings["strengths"]:
        shrink, matrix, run = SingularThreshold(strength), to_dense(start), Ranks([], [])
        for _ in trange(steps, desc=f"nuclear norm, {strength:g}", unit="step"):
            matrix = shrink(matrix - rate * gradient(matrix), rate)
            run.ranks.append(shrink.rank(matrix))
            run.errors.append(error(matrix))
        found[f"nuclear norm, lambda {strength:g}"] = run
    point, run = start, Ranks([], [])
    for _ in trange(steps, desc="manifold", unit="step"):
        slope = gradient(to_dense(point))
        point = metric_retraction(
            point, -rate * project(point, slope @ point.v, slope.mT @ point.u)
        )
        run.ranks.append(int(torch.linalg.matrix_rank(to_dense(point))))
        run.errors.append(error(to_dense(point)))
    found[f"manifold of rank {rank}"] = run
    return found


@dataclass(frozen=True)
class Inference:
    """Milliseconds a batch of one network, and how many times longer the dense one takes, the
    median over pairs.
    """

    network: str
    batch: int
    milliseconds: float
    ratio: float


def inference(
    settings: Mapping[str, Any],
    ranked: Sequence[int],
    batches: Sequence[int],
    samples: Tensor,
    repeats: int,
) -> list[Inference]:
    """Time the dense network and those of fixed rank in turn, on one thread; a time is that of
    enough calls to last milliseconds.
    """
    nets = {"dense": network(tuple(settings["widths"]), 0)}
    nets |= {f"R = {rank}": model({**settings, "rank": rank}, 0) for rank in ranked}
    found = list[Inference]()
    for batch in batches:
        calls = max(1, 16384 // batch)
        seconds = interleaved(
            {name: partial(_often, net, samples[:batch], calls) for name, net in nets.items()},
            repeats,
        )
        for name, values in seconds.items():
            found.append(
                Inference(
                    name,
                    batch,
                    1e3 * statistics.median(values) / calls,
                    ratio(seconds["dense"], values),
                )
            )
    return found


@torch.no_grad()
def _often(net: nn.Module, samples: Tensor, calls: int) -> None:
    for _ in range(calls):
        net(samples)

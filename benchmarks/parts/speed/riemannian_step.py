"""What a Riemannian step on one layer costs beside a step that forms the gradient and truncates by
an SVD.

    python benchmarks/speed.py --only riemannian_step [--check]

4096 x 4096, rank 16, batch 64, one thread. The Riemannian step reads ``G V`` and ``G^T U`` from
autograd on thin factors, projects and retracts; the dense one takes ``W - eta G`` and keeps its
best rank-16 approximation, by `torch.linalg.svd` and by `torch.svd_lowrank`. With small steps all
three do the same to first order, which is printed. Memory is what PyTorch's operations formed in a
step; workspaces within LAPACK are not seen.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from parts.shared.targets import interleaved, ratio, target, tiny
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import bayesfed as bf
from bayesfed.geometry import FixedRank, distance, metric_retraction, random_point, to_dense
from bayesfed.models import FixedRankLayer, probes, tangents

ROWS, COLUMNS, RANK, BATCH, STEPS, RATE = 4096, 4096, 16, 64, 20, 1e-3
THIN, FULL, LOW = "Riemannian", "dense gradient, full SVD", "dense gradient, svd_lowrank"
Step = Callable[[], FixedRank]


def targets(options: argparse.Namespace) -> Iterator[bool]:
    """Measure and print; yield whether each target is met."""
    check = options.check
    torch.set_num_threads(1)
    generator = bf.Key(0, "batch").generator()
    inputs, wanted = (torch.randn(BATCH, size, generator=generator) for size in (COLUMNS, ROWS))
    point = random_point(ROWS, COLUMNS, RANK, bf.Key(0, "point"), dtype=torch.float32)
    steps = {
        THIN: riemannian(point, inputs, wanted),
        FULL: dense(point, inputs, wanted, svd),
        LOW: dense(point, inputs, wanted, svd_lowrank),
    }

    found = {}
    formed = {name: Formed() for name in steps}
    for name, step in steps.items():
        with formed[name]:
            found[name] = step()
    length = float(distance(point, found[THIN]))
    unit = (ROWS + COLUMNS) * RANK
    for name, seen in formed.items():
        apart = (
            ""
            if name == THIN
            else f"; ends {float(distance(found[name], found[THIN])) / length:.1e} of a step away"
        )
        print(
            f"{name:<28} largest {seen.largest / unit:6.2f}, all {seen.total / unit:6.2f} "
            f"times (M + N) R{apart}"
        )

    many = {
        name: (lambda step=step: [step() for _ in range(STEPS)]) if name == THIN else step
        for name, step in steps.items()
    }
    seconds = interleaved(many, 1 if check else 3)
    seconds[THIN] = [value / STEPS for value in seconds[THIN]]
    for name, values in seconds.items():
        print(f"{name:<28} median {1e3 * statistics.median(values):10.2f} ms a step")
    print(f"Riemannian step / svd_lowrank step: {ratio(seconds[THIN], seconds[LOW]):.4f}")
    yield tiny(
        "Riemannian step / dense step with full SVD", ratio(seconds[THIN], seconds[FULL]), 0.1
    )
    yield target(
        "largest tensor of a Riemannian step / (M + N) R numbers", formed[THIN].largest / unit, 4.0
    )


def riemannian(point: FixedRank, inputs: Tensor, wanted: Tensor) -> Step:
    """Return a step that forms nothing of M x N."""
    layer = FixedRankLayer(nn.Linear(COLUMNS, ROWS, bias=False, device="meta"), point)
    layer.requires_grad_(False)

    def step() -> FixedRank:
        probe = probes({"": point})
        error = loss(functional_call(layer, probe, (inputs,)), wanted)
        found = torch.autograd.grad(error, list(probe.values()))
        with torch.no_grad():
            gradients = dict(zip(probe, found, strict=True))
            return metric_retraction(point, -RATE * tangents({"": point}, gradients)[""])

    return step


def dense(
    point: FixedRank,
    inputs: Tensor,
    wanted: Tensor,
    truncated: Callable[[Tensor], tuple[Tensor, Tensor, Tensor]],
) -> Step:
    """Return a step on the whole matrix."""
    weight = to_dense(point).requires_grad_()

    def step() -> FixedRank:
        (gradient,) = torch.autograd.grad(loss(inputs @ weight.T, wanted), weight)
        with torch.no_grad():
            u, s, v = truncated(weight - RATE * gradient)
            return FixedRank(u, s.diag(), v)

    return step


def loss(outputs: Tensor, wanted: Tensor) -> Tensor:
    """Return half the squared error, a mean over rows."""
    return (outputs - wanted).square().sum() / (2 * BATCH)


def svd(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Truncate exactly."""
    u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
    return u[:, :RANK], s[:RANK], vh[:RANK].T


def svd_lowrank(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Truncate by a randomised range finder with as many columns again and two power iterations."""
    u, s, v = torch.svd_lowrank(matrix, q=2 * RANK, niter=2)
    return u[:, :RANK], s[:RANK], v[:, :RANK]


class Formed(TorchDispatchMode):
    """Note the numbers in new memory of every operation's results, backward included: the largest,
    and all of them, which no peak exceeds.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.largest = self.total = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run the operation and look at what is new."""
        result = func(*args, **(kwargs or {}))
        held = {
            leaf.untyped_storage().data_ptr()
            for leaf in tree_leaves((args, kwargs))
            if isinstance(leaf, Tensor)
        }
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.untyped_storage().data_ptr() not in held:
                count = leaf.untyped_storage().nbytes() // leaf.element_size()
                self.largest, self.total = max(self.largest, count), self.total + count
        return result

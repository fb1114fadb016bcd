"""IVON, natural-gradient variational inference at about the cost of two plain passes (Shen et al.,
2024, "Variational learning is effective ...").

With W rows at the temperature, loss per row l, posterior ``N(m, 1 / P)``, and prior terms
``h0 theta - P0 theta^2 / 2`` a step is

    d = eps / sqrt(P),   g = (grad l(m + d) + grad l(m - d)) / 2,
    c = (grad l(m + d) - grad l(m - d)) d P / 2
    G <- b G + (1 - b) g,   m <- m - a clip((W G / (1 - b^t) + P0 m - h0) / P)

and P moves towards ``W mean(c) + P0`` once for every block of steps, in which d keeps its scale.
Each of the mirrored passes takes half of the batch: together they cost one pass and a little. In
the paper P = lambda (h + delta), W = lambda, P0 = lambda delta.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass

import torch
from torch import Generator, Tensor

from bayesfed.trees import Tree

Gradient = Callable[[Sequence[Tensor], int], Sequence[Tensor]]
"""``(weights, 0 or 1) -> gradients`` of the mean loss per row on the first or the second half of a
batch.
"""

# Steps after which precisions move.
BLOCK = 10
# No block takes more than this share of a precision away: an estimate from few rows may be
# negative.
MOST_LOST = 0.5


@dataclass(eq=False)
class IvonSteps:
    """Steps on independent Gaussians.

    Parameters
    ----------
    means, precisions
        Trees by the names of the weights; not changed.
    prior
        By name: linear and quadratic terms (h0, P0) of what else is known of the weights: prior and
        cavity.
    rows
        W, the number of rows that the loss per row stands for, over the temperature.
    rate
        Step size a of the mean.
    curvature_rate
        Share of the way of the precisions in a step.
    momentum
        b, of the gradients' running mean.
    clip
        Largest step of a mean over `rate`; infinity for none.
    generator
        Source of the draws.
    noise
        Whether weights are drawn. False: gradients are taken at the means, and precisions stay.
    """

    means: Mapping[str, Tensor]
    precisions: Mapping[str, Tensor]
    prior: Mapping[str, tuple[Tensor, Tensor]]
    _: KW_ONLY
    rows: float
    rate: float
    curvature_rate: float
    momentum: float
    clip: float
    generator: Generator
    noise: bool = True

    def __post_init__(self) -> None:
        self.shapes = [leaf.shape for leaf in self.means.values()]
        self.mean = _flat(self.means.values())
        self.precision = _flat(self.precisions[name] for name in self.means)
        self.linear, self.quadratic = (
            _flat(self.prior[name][part].expand_as(leaf) for name, leaf in self.means.items())
            for part in (0, 1)
        )
        self.centred = not bool(self.linear.any())
        self.drawn, self.at, self.gradient, self.curvature, self.move = (
            torch.zeros_like(self.mean) for _ in range(5)
        )
        # Draws are cut from a pool at a place of their own: a new normal number for every weight
        # and step costs as much as half a pass.
        self.pool = torch.empty(2 * len(self.mean), dtype=self.mean.dtype, device=self.mean.device)
        self.weights = self._split(self.at)
        self.done = 0
        self._begin_block()

    def step(self, gradient: Gradient) -> None:
        """Take one step."""
        with torch.no_grad():
            start = int(
                torch.randint(
                    len(self.mean) + 1, (), generator=self.generator, device=self.generator.device
                )
            )
            torch.mul(self.pool[start : start + len(self.mean)], self.sd, out=self.drawn)
            torch.add(self.mean, self.drawn, out=self.at)
        above = gradient(self.weights, 0)
        with torch.no_grad():
            torch.sub(self.mean, self.drawn, out=self.at)
        below = gradient(self.weights, 1)
        with torch.no_grad():
            self._moved(above, below)

    def result(self) -> tuple[Tree, Tree]:
        """Return means and precisions."""
        if self.done % BLOCK:
            self._end_block(self.done % BLOCK)
        means, precisions = (
            dict(zip(self.means, self._split(flat), strict=True))
            for flat in (self.mean, self.precision)
        )
        return means, precisions

    def _moved(self, above: Sequence[Tensor], below: Sequence[Tensor]) -> None:
        self.done += 1
        share = (1 - self.momentum) / 2
        self.gradient.mul_(self.momentum)
        for total, curvature, drawn, first, second in zip(
            self._split(self.gradient),
            self._split(self.curvature),
            self._split(self.drawn),
            above,
            below,
            strict=True,
        ):
            total.add_(first, alpha=share).add_(second, alpha=share)
            curvature.addcmul_(first.sub_(second), drawn)
        torch.mul(self.quadratic, self.mean, out=self.move)
        if not self.centred:
            self.move.sub_(self.linear)
        self.move.add_(self.gradient, alpha=self.rows / (1 - self.momentum**self.done)).mul_(
            self.variance
        ).clamp_(-self.clip, self.clip)
        self.mean.sub_(self.move, alpha=self.rate)
        if self.done % BLOCK == 0:
            self._end_block(BLOCK)
            self._begin_block()

    def _begin_block(self) -> None:
        self.variance = self.precision.reciprocal()
        self.sd = self.variance.sqrt()
        self.curvature.zero_()
        if self.noise:
            self.pool.normal_(generator=self.generator)
        else:
            self.pool.zero_()

    def _end_block(self, steps: int) -> None:
        if not self.noise:
            return
        towards = self.curvature * (self.precision * (self.rows / (2 * steps))) + self.quadratic
        share = 1 - (1 - self.curvature_rate) ** steps
        self.precision = torch.maximum(
            torch.lerp(self.precision, towards, share), (1 - MOST_LOST) * self.precision
        )

    def _split(self, flat: Tensor) -> list[Tensor]:
        sizes = [shape.numel() for shape in self.shapes]
        return [
            part.view(shape) for part, shape in zip(flat.split(sizes), self.shapes, strict=True)
        ]


def _flat(leaves: Iterable[Tensor]) -> Tensor:
    return torch.cat([leaf.reshape(-1) for leaf in leaves])

"""A site's own latents, integrated at the site, so that the server sees the shared ones alone.

At given shared values, own values that no term of the log density has in common are independent:
they are integrated group by group, each about its conditional mode, by 30 Gauss-Hermite nodes where
a group is one value, else by quasi-random points whose second moments are exact. Which terms a
value enters is found by moving it. The estimate is a function of the shared values that can be
differentiated twice, centre and scale of the nodes included: two Newton steps from the mode make
the centre one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from scipy.sparse.csgraph import connected_components
from torch import Tensor
from torch.func import grad, jacrev, vmap
from torch.nn.functional import logsigmoid

from bayesfed.data import Dataset
from bayesfed.errors import PosteriorError
from bayesfed.inference.exact import points
from bayesfed.inference.exact.asking import AT_ONCE, sound
from bayesfed.inference.exact.placed import Level
from bayesfed.inference.exact.traced import Traced
from bayesfed.trees import Tree

# Nodes of one value; points of several.
NODES, POINTS = 30, 64
# Newton steps from the start to the conditional mode, and to the first start; lengths of a step.
STEPS, FIRST = 6, 30
LENGTHS = (1.0, 0.0, 2.0, 0.5, 0.2, 0.05)
# Nats between two estimates of a site's integrals, in all, of which none is trusted.
OFF = 0.2
# How much wider the nodes of the second are; less by the root of the number of values.
WIDER = 0.6
# Least curvature; points from which an own draw is chosen, and the scale of their logistic
# distribution, whose tails are heavier than a Gaussian's.
FLOOR, CHOICE, WIDTH = 1e-8, 64, 0.6

Values = Callable[[Tensor], Tensor]
Terms = Callable[[Tensor, Tensor], Tensor]


class Part(NamedTuple):
    """Groups of one size k: places of their values, ``(G, k)``; the number of the group of every
    term, G for those of none, ``(E,)``; nodes ``(Q, k)`` and their log weights.
    """

    places: Tensor
    member: Tensor
    nodes: Tensor
    logs: Tensor


def over(function: Callable[..., Tensor], *batches: Tensor, at_once: int | None = None) -> Tensor:
    """Return a function of every entry of batches, one by one where it cannot be vectorised."""
    try:
        found: Tensor = vmap(function, chunk_size=at_once)(*batches)
    except (RuntimeError, ValueError):
        found = torch.stack([function(*each) for each in zip(*batches, strict=True)])
    return found


@dataclass(frozen=True)
class Inside:
    """The log density of a site's rows with its own values integrated out.

    Parameters
    ----------
    traced
        The model.
    rows
        The site's rows.
    start
        Own values from which modes are searched, ``(m,)``.
    parts
        The groups by their size.
    free
        Places of the terms that no own value enters.
    """

    traced: Traced
    rows: Dataset
    start: Tensor
    parts: tuple[Part, ...]
    free: Tensor

    @property
    def cost(self) -> int:
        """Number of rows that one value of the log density is worth."""
        return len(self.rows) * sum(len(part.nodes) for part in self.parts)

    def log_rows(self, point: Tensor) -> Tensor:
        """Return the log density of the rows at shared values."""
        total = torch.stack([self.integrals(part, point).sum() for part in self.parts]).sum()
        if len(self.free):
            total = total + self.traced.terms(self.rows, point, self.start)[self.free].sum()
        return total

    def integrals(self, part: Part, point: Tensor) -> Tensor:
        """Return the log integral over every group, ``(G,)``."""
        centre, root = self._frame(part, point)
        values = partial(self._values, part, point)
        found = over(values, centre + spread(root, part.nodes[:, None]))
        logs = (found + part.logs[:, None]).logsumexp(0)
        return logs - root.diagonal(dim1=1, dim2=2).log().sum(1)

    def check(self, near: Tensor) -> None:
        """Check the integrals by other points.

        Raises
        ------
        PosteriorError
            If they are not near at these shared values.
        """
        for part in self.parts:
            size = part.places.shape[1]
            again = part._replace(**dict(zip(("nodes", "logs"), nodes(size, 1), strict=True)))
            off = self.integrals(part, near) - self.integrals(again, near)
            if not float(off.norm()) < OFF:
                expected = f"integrals over {size} own values to {OFF} nats"
                hint = "fewer own values that a term ties; or a class of guide, AutoNormal"
                raise PosteriorError("own latents", expected, f"{float(off.norm()):.2g}", hint)

    def draws(self, batch: Tensor, generator: torch.Generator) -> Tree:
        """Return an independent draw of every own site at each of some shared points, ``(n, ...)``:
        chosen from 64 points by their importance weights.
        """
        count, size = len(batch), len(self.start)
        shape = (count, CHOICE, size)
        even = torch.rand(shape, dtype=torch.float64, generator=generator)
        chosen = torch.rand(count, size, dtype=torch.float64, generator=generator)
        away = WIDTH * even.clamp(1e-12, 1 - 1e-12).logit()
        at_once = max(1, AT_ONCE // (CHOICE * len(self.rows)))
        drawn = over(self._drawn, batch, away, chosen, at_once=at_once)
        found: Tree = vmap(self._sites, chunk_size=at_once)(batch, drawn)
        return found

    def _sites(self, point: Tensor, own: Tensor) -> Tree:
        run = self.traced.run(self.rows, point, own)
        return run.values(run.own)

    def _drawn(self, point: Tensor, away: Tensor, chosen: Tensor) -> Tensor:
        own = self.start
        for part in self.parts:
            values = partial(self._values, part, point)
            centre, root = self._frame(part, point)
            own_away = away[:, part.places]
            tried = centre + spread(root, own_away)
            less = logsigmoid(own_away / WIDTH) + logsigmoid(-own_away / WIDTH)
            ratios = over(values, tried) - less.sum(2)
            total = sound(ratios - ratios.amax(0)).exp().cumsum(0)
            below = total < chosen[part.places[:, 0]] * total[-1]
            place = below.sum(0).clamp_max(CHOICE - 1)
            found = torch.take_along_dim(tried, place[None, :, None], 0)[0]
            own = own.scatter(0, part.places.reshape(-1), found.reshape(-1))
        return own

    def _values(self, part: Part, point: Tensor, own: Tensor) -> Tensor:
        """Return the log density of every group at its own values ``(G, k)``."""
        whole = self.start.scatter(0, part.places.reshape(-1), own.reshape(-1))
        # Where a model has no density, it is 0.
        terms = sound(self.traced.terms(self.rows, point, whole))
        return terms.new_zeros(len(own) + 1).index_add(0, part.member, terms)[:-1]

    def _frame(self, part: Part, point: Tensor) -> tuple[Tensor, Tensor]:
        """Return the conditional mode of every group, ``(G, k)``, and the factor of the negative
        Hessian there.
        """
        values, fixed = (partial(self._values, part, at) for at in (point, point.detach()))
        mode = climbed(fixed, self.start[part.places], STEPS)
        curved = None
        for _ in range(2):
            slope, precision = slopes(values, mode)
            curved = _made(precision) if curved is None else curved
            mode = mode + torch.linalg.solve(curved, slope[..., None])[..., 0]
        precision = slopes(values, mode)[1]
        made = precision + (_made(precision) - precision).detach()
        # It does not raise, so that one point without a density stops no other.
        return mode, torch.linalg.cholesky_ex(made).L


def spread(root: Tensor, nodes: Tensor) -> Tensor:
    """Return nodes ``(..., k)`` with the covariances that factors of precisions have."""
    found: Tensor = torch.linalg.solve_triangular(root.mT, nodes[..., None], upper=True)
    return found[..., 0]


def slopes(values: Values, own: Tensor) -> tuple[Tensor, Tensor]:
    """Return gradient ``(G, k)`` and negative Hessian ``(G, k, k)`` of every group. Reverse over
    reverse.
    """
    first = grad(lambda at: values(at).sum())

    def summed(at: Tensor) -> tuple[Tensor, Tensor]:
        slope = first(at)
        return slope.sum(0), slope

    curve, slope = jacrev(summed, has_aux=True)(own)
    return slope, -curve.transpose(0, 1)


def _made(precision: Tensor) -> Tensor:
    """Return positive definite matrices for symmetric ones."""
    sizes, axes = torch.linalg.eigh(sound(precision.detach()))
    made: Tensor = (axes * sizes.abs().clamp_min(FLOOR)[..., None, :]) @ axes.mT
    return made


def climbed(values: Values, own: Tensor, steps: int) -> Tensor:
    """Return every group's mode after some Newton steps."""
    lengths = torch.tensor(LENGTHS, dtype=torch.float64)[:, None, None]
    for _ in range(steps):
        slope, precision = slopes(values, own)
        step = torch.linalg.solve(_made(precision), sound(slope)[..., None])[..., 0]
        tried = own + lengths * step
        best = sound(over(values, tried)).argmax(0)
        own = torch.take_along_dim(tried, best[None, :, None], 0)[0].detach()
    return own


def inside(traced: Traced, rows: Dataset, near: Tensor) -> Inside:
    """Look at which terms each own value enters, and return the integrated log density.

    Parameters
    ----------
    traced
        The model.
    rows
        The site's rows.
    near
        Shared values from whose conditional mode others are searched.
    """
    size = max(slot.end for slot in traced.run(rows, near, Level(0.0)).own.values())
    start = torch.zeros(size, dtype=torch.float64)
    terms = partial(traced.terms, rows)
    entered = _entered(terms, len(near), size)
    shared = entered.double() @ entered.double().T
    groups = connected_components(shared.numpy(), directed=False)[1]
    found, any_own = dict[int, list[Tensor]](), entered.any(0)
    for number in range(groups.max() + 1):
        group = torch.from_numpy(np.flatnonzero(groups == number))
        found.setdefault(len(group), []).append(group)
    parts = list[Part]()
    for count, several in sorted(found.items()):
        places = torch.stack(several)
        member = torch.full_like(any_own, len(places), dtype=torch.int64)
        for number, group in enumerate(places):
            member[entered[group].any(0)] = number
        parts.append(Part(places, member, *nodes(count)))
    made = Inside(traced, rows, start, tuple(parts), (~any_own).nonzero()[:, 0])
    for part in parts:
        values, mode, before = partial(made._values, part, near), start[part.places], None
        for _ in range(FIRST):
            if before is None or not torch.allclose(mode, before, 1e-9, 1e-9):
                before, mode = mode, climbed(values, mode, 1)
        start = start.scatter(0, part.places.reshape(-1), mode.reshape(-1))
    return replace(made, start=start)


def _entered(terms: Terms, shared: int, size: int) -> Tensor:
    """Return which own values enter which terms, ``(m, E)``."""
    at_point = partial(terms, torch.linspace(-0.3, 0.4, shared))
    found = torch.tensor(False)
    for base in (0.1, -0.2):
        at = base + 0.1 * torch.arange(size, dtype=torch.float64).cos()
        moved = over(at_point, at + 0.3 * torch.eye(size, dtype=torch.float64))
        found = found | (moved != at_point(at))
    return found


def nodes(size: int, other: int = 0) -> tuple[Tensor, Tensor]:
    """Return nodes for the standard normal, ``(Q, k)``, and log weights of a function's values
    there for its integral; or other ones, which are wider.
    """
    if size == 1:
        places, shares = np.polynomial.hermite.hermgauss(NODES + other)
        made = 2**0.5 * torch.from_numpy(places)[:, None]
        return made, torch.from_numpy(np.log(shares) + places**2) + np.log(2) / 2
    count, wide = POINTS * -(-size // 8), (1 + WIDER / size**0.5) ** other
    drawn = points.normal(count, size, 11 + other)
    root = torch.linalg.cholesky(drawn.T @ drawn / count)
    drawn = torch.linalg.solve_triangular(root, drawn.T, upper=False).T
    logs = drawn.square().sum(1) / 2 + size * np.log(wide * (2 * np.pi) ** 0.5) - np.log(count)
    return wide * drawn, logs

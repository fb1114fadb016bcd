"""What clients of fixed rank send of a weight matrix, and what the server makes of the sum.

==================  ========================  ==============================  ====================================================
transmission        sent                      numbers                         the sum is
==================  ========================  ==============================  ====================================================
`Tangents`          P_T(Theta_k - Theta_0)    R (M + N) + R^2                 the mean change in the tangent space at Theta_0
`Factors`           U F_k, V F_k              R (M + N)                       the mean and cross terms, of mean zero (24)-(26)
`Points`            Theta_k                   R (M + N) + R^2                 none: kept apart, the best rank-R mean (20)
==================  ========================  ==============================  ====================================================

Equations are those of FedRLR (Xue and Lau). Theta_0, the broadcast model, is known to all; tangents at it form a linear space, so they add without
precoder and without cross terms, and with the orthographic retraction one client's change is carried without loss however far it went.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from bayesfed.errors import ArgumentError, complain
from bayesfed.federated.core.update import Kind
from bayesfed.geometry import FixedRank, Tangent, difference, from_factors, metric_retraction, sum_points, to_factors, to_tangent
from bayesfed.keys import Key
from bayesfed.trees import Shapes, Tree

Retraction = Callable[[FixedRank, Tangent], FixedRank]


class Transmission(Protocol):
    """How one weight matrix travels."""

    @property
    def kind(self) -> Kind:
        """What the numbers mean."""
        ...

    @property
    def adds(self) -> bool:
        """Whether the sum is enough; False: the server needs every client's own."""
        ...

    @property
    def weighs(self) -> bool:
        """Whether clients may have different weights."""
        ...

    def shapes(self, base: FixedRank) -> Shapes:
        """Return names and shapes of what is sent."""
        ...

    def send(self, base: FixedRank, own: FixedRank, key: Key) -> Tree:
        """Return what a client at `own` sends that received `base`."""
        ...

    def receive(self, base: FixedRank, totals: Sequence[Tree], weights: Sequence[float]) -> FixedRank:
        """Return the next point from weighted sums and their weights: one of each if the transmission adds."""
        ...


@dataclass(frozen=True)
class Tangents:
    """Send tangent vectors at the broadcast point; the channel adds them as they are.

    The change of a weight ``(M, N)`` travels as core ``(R, R)``, up ``(M, R)`` and vp ``(N, R)``.

    Parameters
    ----------
    retraction
        The server's way back: `metric_retraction` (default), or `orthographic_retraction`, nearer to the best rank-R mean for clients that went
        far, but undefined where noise makes a core singular.
    """

    retraction: Retraction = metric_retraction
    kind: Kind = "tangent"
    adds: bool = True
    weighs: bool = True

    def shapes(self, base: FixedRank) -> Shapes:
        """Return those of core, up and vp."""
        (rows, columns), rank = base.shape, base.rank
        return {"core": (rank, rank), "up": (rows, rank), "vp": (columns, rank)}

    def send(self, base: FixedRank, own: FixedRank, key: Key) -> Tree:
        """Return the projection of the change."""
        change = difference(base, own)
        return {"core": change.core, "up": change.up, "vp": change.vp}

    def receive(self, base: FixedRank, totals: Sequence[Tree], weights: Sequence[float]) -> FixedRank:
        """Retract the mean; what noise put outside the tangent space is projected off."""
        (total,), (weight,) = totals, weights
        return self.retraction(base, to_tangent(base, Tangent(*(total[name] / weight for name in ("core", "up", "vp")))))


@dataclass(frozen=True)
class Factors:
    """Send both factors of (21), each times the client's own random matrix F: the paper's scheme.

    The server multiplies the two sums (31). With the Rademacher F of (25), ``E F F^T = I`` only: a client's own term ``U F F^T V^T`` is off by noise
    of energy ``((sum s)^2 - sum s^2) / R``, s its singular values: up to ``(R - 1) / R`` of the signal's, where they are alike. An orthogonal F has
    ``F F^T = I`` in every draw. Cross terms of different clients have mean zero under both. Clients weigh alike.
    Over the air the link's power control must be unbiased for products, `Gbma("product")`, under which what is sent as it is, biases and dense
    layers, comes back too small by ``sqrt(pi) / 2`` in the mean: their learning rate is smaller by that.

    Parameters
    ----------
    precoder
        "rademacher", "orthogonal" (Haar) or "none", whose cross terms stay.
    """

    precoder: Literal["rademacher", "orthogonal", "none"] = "rademacher"
    kind: Kind = "factors"
    adds: bool = True
    weighs: bool = False

    def __post_init__(self) -> None:
        if self.precoder not in ("rademacher", "orthogonal", "none"):
            raise ArgumentError(complain("Factors", expected="'rademacher', 'orthogonal' or 'none'", actual=repr(self.precoder), hint="'orthogonal'"))

    def shapes(self, base: FixedRank) -> Shapes:
        """Return those of left and right."""
        return {"left": (base.shape[0], base.rank), "right": (base.shape[1], base.rank)}

    def send(self, base: FixedRank, own: FixedRank, key: Key) -> Tree:
        """Return the precoded factors (26)."""
        left, right = to_factors(own)
        precoder = self.draw(own.rank, key).to(left)
        return {"left": left @ precoder, "right": right @ precoder}

    def receive(self, base: FixedRank, totals: Sequence[Tree], weights: Sequence[float]) -> FixedRank:
        """Multiply the sums and keep the rank (31)."""
        (total,), (weight,) = totals, weights
        return from_factors(total["left"] / math.sqrt(weight), total["right"] / math.sqrt(weight), base.rank)

    def draw(self, rank: int, key: Key) -> Tensor:
        """Return a client's F of a round, ``(R, R)``, float64."""
        generator = key.child("precoder").generator()
        if self.precoder == "rademacher":
            return (2.0 * torch.randint(2, (rank, rank), generator=generator).double() - 1) / math.sqrt(rank)
        if self.precoder == "orthogonal":
            q, r = torch.linalg.qr(torch.randn(rank, rank, generator=generator, dtype=torch.float64))
            # Haar: the signs of R's diagonal are not left to the algorithm (Mezzadri, 2007).
            haar: Tensor = q * r.diagonal().sign()
            return haar
        return torch.eye(rank, dtype=torch.float64)


@dataclass(frozen=True)
class Points:
    """Send points as they are, one client at a time; the server finds the best rank-R mean (20) by thin QRs. For digital links.

    A weight ``(M, N)`` travels as u ``(M, R)``, s ``(R, R)`` and v ``(N, R)``.
    """

    kind: Kind = "value"
    adds: bool = False
    weighs: bool = True

    def shapes(self, base: FixedRank) -> Shapes:
        """Return those of u, s and v."""
        (rows, columns), rank = base.shape, base.rank
        return {"u": (rows, rank), "s": (rank, rank), "v": (columns, rank)}

    def send(self, base: FixedRank, own: FixedRank, key: Key) -> Tree:
        """Return the point."""
        return {"u": own.u, "s": own.s, "v": own.v}

    def receive(self, base: FixedRank, totals: Sequence[Tree], weights: Sequence[float]) -> FixedRank:
        """Add factors side by side and truncate."""
        found = [FixedRank(*(total[name] / weight for name in ("u", "s", "v"))) for total, weight in zip(totals, weights, strict=True)]
        return sum_points(found, [weight / sum(weights) for weight in weights], base.rank)

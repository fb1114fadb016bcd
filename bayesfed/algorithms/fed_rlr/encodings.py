"""What clients of fixed rank send for a weight matrix, and what the server computes from the sum.

============  ======================  ===============  =============================================
transmission  sent                    numbers          the sum is
============  ======================  ===============  =============================================
`Tangents`    P_T(Theta_k - Theta_0)  R (M + N) + R^2  the mean change in the tangent space at
                                                       Theta_0
`Factors`     U F_k, V F_k            R (M + N)        the mean and cross terms, of mean zero
                                                       (24)-(26)
`Points`      Theta_k                 R (M + N) + R^2  none: kept apart, the best rank-R mean (20)
============  ======================  ===============  =============================================

Equations are those of FedRLR (Xue and Lau). All clients know Theta_0, the broadcast model. Tangents
at it form a linear space, so they add without precoder and without cross terms. With the
orthographic retraction, the change of a single client is carried without loss at any distance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from bayesfed.errors.checks import checked_class
from bayesfed.federated import Kind
from bayesfed.geometry import (
    FixedRank,
    Tangent,
    difference,
    from_factors,
    metric_retraction,
    sum_points,
    to_factors,
    to_tangent,
)
from bayesfed.geometry.thin import signed_qr
from bayesfed.keys import Key
from bayesfed.trees import Shapes, Tree

Retraction = Callable[[FixedRank, Tangent], FixedRank]


class Transmission(Protocol):
    """How one weight matrix travels."""

    @property
    def kind(self) -> Kind:
        """What the numbers mean."""

    @property
    def adds(self) -> bool:
        """Whether the sum is enough; False if the server needs every client's payload."""

    @property
    def weighs(self) -> bool:
        """Whether clients may have different weights."""

    def shapes(self, base: FixedRank) -> Shapes:
        """Return names and shapes of what is sent."""

    def send(self, base: FixedRank, own: FixedRank, key: Key) -> Tree:
        """Return what a client sends that received `base` and is at `own`."""

    def receive(
        self, base: FixedRank, totals: Sequence[Tree], weights: Sequence[float]
    ) -> FixedRank:
        """Return the next point from weighted sums and their weights; one of each if the
        transmission adds.
        """


@checked_class()
@dataclass(frozen=True)
class Tangents:
    """Send tangent vectors at the broadcast point; the channel adds them as they are.

    The change of a weight ``(M, N)`` travels as core ``(R, R)``, up ``(M, R)`` and vp ``(N, R)``.

    Parameters
    ----------
    retraction
        The server's retraction: `metric_retraction` (default), or `orthographic_retraction`, which
        is nearer to the best rank-R mean for clients that moved far, but undefined where noise
        makes a core singular.
    """

    retraction: Retraction = metric_retraction
    kind: Kind = "tangent"
    adds: bool = True
    weighs: bool = True

    def shapes(self, base: FixedRank) -> Shapes:
        """Return the shapes of core, up and vp."""
        (rows, columns), rank = base.shape, base.rank
        return {"core": (rank, rank), "up": (rows, rank), "vp": (columns, rank)}

    def send(self, base: FixedRank, own: FixedRank, key: Key) -> Tree:
        """Return the projection of the change."""
        return dict(vars(difference(base, own)))

    def receive(
        self, base: FixedRank, totals: Sequence[Tree], weights: Sequence[float]
    ) -> FixedRank:
        """Retract the mean, after noise outside the tangent space is projected out."""
        (total,), (weight,) = totals, weights
        mean = Tangent(*(total[name] / weight for name in ("core", "up", "vp")))
        return self.retraction(base, to_tangent(base, mean))


@checked_class()
@dataclass(frozen=True)
class Factors:
    """Send both factors of (21), each times the client's own random matrix F: the paper's scheme.

    The server multiplies the two sums (31). The Rademacher F of (25) satisfies ``F F^T = I`` in the
    mean only: a client's own term ``U F F^T V^T`` has noise of energy ``((sum s)^2 - sum s^2) / R``
    for singular values s, up to ``(R - 1) / R`` of the signal's where they are equal. An orthogonal
    F satisfies it in every draw. Cross terms of different clients have mean zero under both.
    Clients weigh alike. Over the air, the power control must be unbiased for products,
    `Gbma("product")`. Biases and dense layers, which are sent without a precoder, are then too
    small by ``sqrt(pi) / 2`` in the mean, and so is their learning rate.

    Parameters
    ----------
    precoder
        "rademacher", "orthogonal" (Haar) or "none", which keeps cross terms.
    """

    precoder: Literal["rademacher", "orthogonal", "none"] = "rademacher"
    kind: Kind = "factors"
    adds: bool = True
    weighs: bool = False

    def shapes(self, base: FixedRank) -> Shapes:
        """Return the shapes of left and right."""
        return {"left": (base.shape[0], base.rank), "right": (base.shape[1], base.rank)}

    def send(self, base: FixedRank, own: FixedRank, key: Key) -> Tree:
        """Return the precoded factors (26)."""
        left, right = to_factors(own)
        precoder = self.draw(own.rank, key).to(left)
        return {"left": left @ precoder, "right": right @ precoder}

    def receive(
        self, base: FixedRank, totals: Sequence[Tree], weights: Sequence[float]
    ) -> FixedRank:
        """Multiply the sums and keep the rank (31)."""
        (total,), (weight,) = totals, weights
        return from_factors(
            total["left"] / math.sqrt(weight), total["right"] / math.sqrt(weight), base.rank
        )

    def draw(self, rank: int, key: Key) -> Tensor:
        """Return the F of a client and round, ``(R, R)``, in float64."""
        generator = key.child("precoder").generator()
        if self.precoder == "rademacher":
            signs = 2.0 * torch.randint(2, (rank, rank), generator=generator).double() - 1
            return signs / math.sqrt(rank)
        if self.precoder == "orthogonal":
            normal = torch.randn(rank, rank, generator=generator, dtype=torch.float64)
            # With the signs of R's diagonal fixed the distribution is Haar (Mezzadri, 2007).
            return signed_qr(normal)[0]
        return torch.eye(rank, dtype=torch.float64)


@checked_class()
@dataclass(frozen=True)
class Points:
    """Send points as they are. The server computes the best rank-R mean (20) by thin QRs. For
    digital links.

    A weight ``(M, N)`` travels as u ``(M, R)``, s ``(R, R)`` and v ``(N, R)``.
    """

    kind: Kind = "value"
    adds: bool = False
    weighs: bool = True

    def shapes(self, base: FixedRank) -> Shapes:
        """Return the shapes of u, s and v."""
        (rows, columns), rank = base.shape, base.rank
        return {"u": (rows, rank), "s": (rank, rank), "v": (columns, rank)}

    def send(self, base: FixedRank, own: FixedRank, key: Key) -> Tree:
        """Return the point."""
        return dict(vars(own))

    def receive(
        self, base: FixedRank, totals: Sequence[Tree], weights: Sequence[float]
    ) -> FixedRank:
        """Put factors side by side and truncate."""
        sent = [
            FixedRank(*(total[name] / weight for name in ("u", "s", "v")))
            for total, weight in zip(totals, weights, strict=True)
        ]
        return sum_points(sent, [weight / sum(weights) for weight in weights], base.rank)

"""Denoisers of approximate message passing, and the threshold that needs no prior.

In the limit of large Gaussian A, the n numbers that AMP denoises are the truth plus independent
noise, ``R = X + tau Z``, Z ~ N(0, 1).

References
----------
Donoho, Maleki, Montanari, Message-passing algorithms for compressed sensing, PNAS 2009 (DMM).
Bayati, Montanari, The LASSO risk for Gaussian matrices, IEEE Trans. Inf. Theory 2012.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from bayesfed.errors import ArgumentError

# Thresholds are sought up to this many standard deviations; noise exceeds 8 of them in one entry of
# 10^15.
LARGEST_ALPHA = 8.0
# Above this m / n the minimax threshold falls to zero, where nothing is shrunk and AMP makes no
# progress.
LARGEST_DELTA = 0.9


class Denoiser(Protocol):
    """A denoiser eta of the scalar channel."""

    def __call__(self, observed: Tensor, deviation: Tensor) -> tuple[Tensor, Tensor]:
        """Return the estimate of x ``(..., n)`` and the mean of the derivative over the last axis
        ``(..., 1)``.

        Parameters
        ----------
        observed
            ``(..., n)``, ``x + deviation * noise``.
        deviation
            ``(..., 1)``, tau.
        """
        ...


@dataclass(frozen=True)
class SoftThreshold:
    """``eta(r; tau) = sign(r) max(|r| - alpha tau, 0)``: AMP's fixed points are then LASSO
    solutions (DMM; Bayati and Montanari 2012, eq. 1.11).

    Parameters
    ----------
    alpha
        Threshold in standard deviations of the scalar noise, >= 0; `minimax_alpha` needs no prior.

    Raises
    ------
    ArgumentError
        If alpha is negative or not finite.
    """

    alpha: float

    def __post_init__(self) -> None:
        if not 0 <= self.alpha < math.inf:
            raise ArgumentError(
                "SoftThreshold", "a finite alpha >= 0", self.alpha, "minimax_alpha(delta)"
            )

    def __call__(self, observed: Tensor, deviation: Tensor) -> tuple[Tensor, Tensor]:
        """Shrink every entry towards zero by ``alpha * deviation``; the derivative is 1 where the
        result is not zero.
        """
        threshold = self.alpha * deviation
        estimate = observed - observed.clamp(-threshold, threshold)
        return estimate, (estimate != 0).to(observed.dtype).mean(dim=-1, keepdim=True)


def minimax_alpha(delta: float) -> float:
    """Return the alpha that recovers the densest x exactly, whatever its non-zero entries are (DMM,
    eq. 5 and after).

    It maximises ``(1 - M(z) / delta) / (1 + z^2 - M(z))``,
    ``M(z) = 2 [(1 + z^2) Phi(-z) - z phi(z)]``: Donoho and Tanner's curve, the largest k / m.

    Parameters
    ----------
    delta
        m / n > 0; values above 0.9 count as 0.9.

    Raises
    ------
    ArgumentError
        If delta is not positive.
    """
    from scipy.optimize import minimize_scalar

    if not 0 < delta < math.inf:
        raise ArgumentError("minimax_alpha", "m / n > 0", delta, "delta = m / n")
    share = min(delta, LARGEST_DELTA)

    def loss(z: float) -> float:
        bell = 2 * z * math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
        missed = (1 + z * z) * math.erfc(z / math.sqrt(2)) - bell
        return (missed / share - 1) / (1 + z * z - missed)

    best = minimize_scalar(loss, bounds=(1e-3, LARGEST_ALPHA), method="bounded")
    return float(best.x)

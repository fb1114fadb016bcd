"""The soft threshold of approximate message passing, and the size of it that needs no prior.

In the limit of large Gaussian A, the n numbers that AMP denoises are the truth plus independent
noise, ``R = X + tau Z``, Z ~ N(0, 1).

References
----------
Donoho, Maleki, Montanari, Message-passing algorithms for compressed sensing, PNAS 2009 (DMM).
"""

from __future__ import annotations

import math

from torch import Tensor

# Thresholds are sought up to this many standard deviations; noise exceeds 8 of them in one entry of
# 10^15.
LARGEST_ALPHA = 8.0
# Above this m / n the minimax threshold falls to zero, where nothing is shrunk and AMP makes no
# progress.
LARGEST_DELTA = 0.9


def soft_threshold(observed: Tensor, threshold: Tensor) -> Tensor:
    """Shrink every entry towards zero: ``sign(r) max(|r| - threshold, 0)``."""
    return observed - observed.clamp(-threshold, threshold)


def minimax_alpha(delta: float) -> float:
    """Return the alpha that recovers the densest x exactly, whatever its non-zero entries are (DMM,
    eq. 5 and after).

    It maximises ``(1 - M(z) / delta) / (1 + z^2 - M(z))``,
    ``M(z) = 2 [(1 + z^2) Phi(-z) - z phi(z)]``: Donoho and Tanner's curve, the largest k / m.

    Parameters
    ----------
    delta
        m / n > 0; values above 0.9 count as 0.9.
    """
    from scipy.optimize import minimize_scalar

    share = min(delta, LARGEST_DELTA)

    def loss(z: float) -> float:
        bell = 2 * z * math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
        missed = (1 + z * z) * math.erfc(z / math.sqrt(2)) - bell
        return (missed / share - 1) / (1 + z * z - missed)

    best = minimize_scalar(loss, bounds=(1e-3, LARGEST_ALPHA), method="bounded")
    return float(best.x)

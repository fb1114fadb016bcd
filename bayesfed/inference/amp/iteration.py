"""Approximate message passing: a sparse x from few random projections of it, ``y = A x + w``.

With z the residual, ``tau = |z| / sqrt(m)``, delta = m / n (DMM, eqs. 1 and 2)::

    x' = eta(x + A^T z; alpha tau)
    z' = y - A x' + z <eta'> / delta

with eta the soft threshold, so fixed points are LASSO solutions (Bayati and Montanari, eq. 1.11).
The last term is Onsager's. It removes from the residual its correlation with the estimate, so that
the noise at eta's input stays Gaussian and its variance follows a recursion, state evolution. Each
row of a batch is a problem of its own with the same A.

References
----------
Donoho, Maleki, Montanari, Message-passing algorithms for compressed sensing, PNAS 2009 (DMM).
Bayati, Montanari, The LASSO risk for Gaussian matrices, IEEE Trans. Inf. Theory 2012.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesfed.inference.amp.thresholds import minimax_alpha, soft_threshold

# An iteration whose residual is this many times that of the zero estimate has diverged.
HOPELESS = 10.0


@dataclass(frozen=True)
class Recovery:
    """The result of `amp` for B problems, and how far to trust it.

    Parameters
    ----------
    estimate
        ``(B, n)``, the estimate of x. For a problem that diverged, the one with the smallest
        residual: the zero vector if none was better.
    residual_sd
        ``(T + 1, B)``, tau of every iteration, that of the zero estimate first, in units of x.
        For columns of A of unit length, its square estimates noise variance + mean squared error /
        delta. Problems that stopped earlier repeat their last value.
    settled, diverged
        ``(B,)``: whether the estimate stopped moving; whether the residual ended above that of the
        zero estimate. Neither: out of iterations.
    """

    estimate: Tensor
    residual_sd: Tensor
    settled: Tensor
    diverged: Tensor


def amp(
    matrix: Tensor,
    measured: Tensor,
    alpha: float | None = None,
    *,
    max_iterations: int = 200,
    tol: float = 1e-6,
    damping: float = 0.0,
) -> Recovery:
    """Estimate x from ``measured = matrix @ x + noise``.

    Parameters
    ----------
    matrix
        A ``(m, n)``, independent entries of mean zero, at any scale: it is first divided by the
        root mean square length of its columns.
    measured
        y ``(B, m)``, finite, of A's dtype and device.
    alpha
        Threshold in standard deviations of the noise. Default: `minimax_alpha`, which needs neither
        the density of x nor the noise.
    max_iterations
        Largest number of iterations.
    tol
        Stop when the estimate moves by no more than this share of its length; 0 makes all
        iterations.
    damping
        Share of the old estimate and residual that is kept, in [0, 1); for matrices that are not
        random enough. State evolution holds for 0.
    """
    rows, columns = matrix.shape
    alpha = minimax_alpha(rows / columns) if alpha is None else alpha
    scale = matrix.norm() / math.sqrt(columns)
    a, y = matrix / scale, measured / scale
    batch = len(y)
    x, z, sd = y.new_zeros(batch, columns), y.clone(), _deviation(y)
    first, best, best_sd, history = sd, x, sd, [sd.squeeze(-1)]
    estimate = x.clone()
    settled, diverged = torch.zeros(2, batch, dtype=torch.bool, device=y.device)
    # Problems that are done leave the working set: each stops on its own.
    live = torch.arange(batch, device=y.device)
    for step in range(1, max_iterations + 1):
        if not len(live):
            break
        target = soft_threshold(x + z @ a, alpha * sd)
        slope = (target != 0).to(target.dtype).mean(dim=-1, keepdim=True)
        moved = ((target - x).norm(dim=-1) <= tol * target.norm(dim=-1)) & (tol > 0)
        x = torch.lerp(target, x, damping)
        z = torch.lerp(y - x @ a.T + z * slope * (columns / rows), z, damping)
        sd = _deviation(z)
        better = sd < best_sd
        best, best_sd = torch.where(better, x, best), torch.where(better, sd, best_sd)
        lost, done = ~(sd <= HOPELESS * first).squeeze(-1), moved
        if step == max_iterations:
            lost = lost | ((sd > first).squeeze(-1) & ~moved)
            done = torch.ones_like(moved)
        done = done | lost
        history.append(history[-1].index_copy(0, live, sd.squeeze(-1)))
        out = live[done]
        estimate[out] = torch.where(lost[:, None], best, x)[done]
        settled[out], diverged[out] = (moved & ~lost)[done], lost[done]
        live, x, z, y, sd, first, best, best_sd = (
            part[~done] for part in (live, x, z, y, sd, first, best, best_sd)
        )
    return Recovery(estimate, torch.stack(history), settled, diverged)


def _deviation(residual: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(residual, dim=-1, keepdim=True)
    return length / math.sqrt(residual.shape[-1])

"""Approximate message passing: a sparse x from few random projections of it, ``y = A x + w``.

With z the residual, ``tau = |z| / sqrt(m)``, delta = m / n (DMM, eqs. 1 and 2)::

    x' = eta(x + A^T z; tau)
    z' = y - A x' + z <eta'> / delta

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
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesfed.errors import ArgumentError, ConvergenceWarning
from bayesfed.inference.amp.denoisers import Denoiser, SoftThreshold, minimax_alpha
from bayesfed.trees import is_finite

# An iteration whose residual is this many times that of the zero estimate has diverged.
HOPELESS = 10.0


@dataclass(frozen=True)
class Recovery:
    """The result of `amp`, and how far to trust it.

    Parameters
    ----------
    estimate
        ``(..., n)``, the estimate of x. For a problem that diverged, the one with the smallest
        residual: the zero vector if none was better.
    residual_sd
        ``(T + 1, ...)``, tau of every iteration, that of the zero estimate first, in units of x.
        For columns of A of unit length, its square estimates noise variance + mean squared error /
        delta. Problems that stopped earlier repeat their last value.
    settled, diverged
        ``(...)``: whether the estimate stopped moving; whether the residual ended above that of the
        zero estimate. Neither: out of iterations.
    """

    estimate: Tensor
    residual_sd: Tensor
    settled: Tensor
    diverged: Tensor


def amp(
    matrix: Tensor,
    measured: Tensor,
    denoiser: Denoiser | None = None,
    *,
    max_iterations: int = 200,
    tol: float = 1e-6,
    damping: float = 0.0,
    warn: bool = True,
) -> Recovery:
    """Estimate x from ``measured = matrix @ x + noise``.

    Parameters
    ----------
    matrix
        A ``(m, n)``, independent entries of mean zero, at any scale: it is first divided by the
        root mean square length of its columns.
    measured
        y ``(..., m)``, of A's dtype and device.
    denoiser
        eta. Default: a soft threshold of `minimax_alpha`, which needs neither the density of x nor
        the noise.
    max_iterations
        Largest number of iterations.
    tol
        Stop when the estimate moves by no more than this share of its length; 0 makes all
        iterations.
    damping
        Share of the old estimate and residual that is kept, in [0, 1); for matrices that are not
        random enough. State evolution holds for 0.
    warn
        Whether to warn about problems that did not settle; the result has them in any case.

    Raises
    ------
    ArgumentError
        If shapes, dtypes or devices do not fit, m or n is 0, a number is not finite, A is zero, or
        a setting is out of range.

    Warns
    -----
    ConvergenceWarning
        If a problem diverged or ran out of iterations.
    """
    _check(matrix, measured, max_iterations, tol, damping)
    rows, columns = matrix.shape
    denoiser = SoftThreshold(minimax_alpha(rows / columns)) if denoiser is None else denoiser
    scale = matrix.norm() / math.sqrt(columns)
    a, y = matrix / scale, measured.reshape(-1, rows) / scale
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
        target, slope = denoiser(x + z @ a, sd)
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
    if warn and not bool(settled.all()):
        text = (
            f"amp: of {batch} problems {int(diverged.sum())} diverged and "
            f"{int((~settled & ~diverged).sum())} ran out of iterations"
        )
        warnings.warn(
            f"{text}; try more measurements, damping=0.3, or more iterations",
            ConvergenceWarning,
            stacklevel=2,
        )
    lead = measured.shape[:-1]
    return Recovery(
        estimate.reshape(*lead, columns),
        torch.stack(history).reshape(len(history), *lead),
        settled.reshape(lead),
        diverged.reshape(lead),
    )


def _deviation(residual: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(residual, dim=-1, keepdim=True)
    return length / math.sqrt(residual.shape[-1])


def _check(
    matrix: Tensor, measured: Tensor, max_iterations: int, tol: float, damping: float
) -> None:
    if (
        matrix.ndim != 2
        or not matrix.numel()
        or measured.ndim < 1
        or measured.shape[-1] != matrix.shape[0]
    ):
        actual = f"{tuple(matrix.shape)} and {tuple(measured.shape)}"
        raise ArgumentError(
            "amp", "a matrix (m, n), m, n >= 1, and numbers (..., m)", actual, "A and y of y = A x"
        )
    if not matrix.is_floating_point() or (matrix.dtype, matrix.device) != (
        measured.dtype,
        measured.device,
    ):
        actual = f"{matrix.dtype} on {matrix.device} and {measured.dtype} on {measured.device}"
        raise ArgumentError(
            "amp", "one floating-point dtype and one device", actual, "measured.to(matrix)"
        )
    for name, value in (("matrix", matrix), ("measured", measured)):
        if not is_finite(value):
            actual = f"{int((~value.isfinite()).sum())} NaN or Inf"
            raise ArgumentError(f"amp, {name}", "finite numbers", actual, "leaving that client out")
    if not bool(matrix.any()):
        raise ArgumentError(
            "amp, matrix",
            "a matrix that is not zero",
            "all zeros",
            "Projection(key, m, n).matrix()",
        )
    if not (max_iterations >= 1 and 0 <= tol < 1 and 0 <= damping < 1):
        settings = (max_iterations, tol, damping)
        raise ArgumentError(
            "amp", "max_iterations >= 1, tol and damping in [0, 1)", settings, "(200, 1e-6, 0.0)"
        )

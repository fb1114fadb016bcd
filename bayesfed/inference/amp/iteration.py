"""Approximate message passing: a sparse x from few random projections of it, ``y = A x + w``.

With z the residual, ``tau = |z| / sqrt(m)``, delta = m / n (DMM, eqs. 1 and 2)::

    x' = eta(x + A^T z; tau)
    z' = y - A x' + z <eta'> / delta

The last term is Onsager's. It removes from the residual its correlation with the estimate, so that
the noise at eta's input stays Gaussian and `bayesfed.inference.amp.state_evolution` holds. Each row
of a batch is a problem of its own with the same A.

References
----------
Donoho, Maleki, Montanari, Message-passing algorithms for compressed sensing, PNAS 2009 (DMM).
Bayati, Montanari, The LASSO risk for Gaussian matrices, IEEE Trans. Inf. Theory 2012. Xue, Lau,
Riemannian low-rank model compression for federated learning with over-the-air aggregation,
baselines 2 and 3: `Projection`.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesfed.errors import ArgumentError, ConvergenceWarning
from bayesfed.inference.amp.state_evolution import Denoiser, SoftThreshold, minimax_alpha
from bayesfed.keys import Key
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
    iterations
        ``(...)``, number of iterations of each problem.
    settled, diverged
        ``(...)``: whether the estimate stopped moving; whether the residual ended above that of the
        zero estimate. Neither: out of iterations.
    penalty
        ``(...)``. With a soft threshold, a settled estimate minimises
        ``|y - A x|^2 / 2 + penalty |x|_1``; the penalty is ``alpha tau (1 - <eta'> / delta)`` for
        columns of unit length (Bayati and Montanari 2012, eq. 1.9). NaN with other denoisers and
        for problems that diverged.
    """

    estimate: Tensor
    residual_sd: Tensor
    iterations: Tensor
    settled: Tensor
    diverged: Tensor
    penalty: Tensor


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
    x, z, slope = y.new_zeros(batch, columns), y.clone(), y.new_zeros(batch, 1)
    sd = _deviation(z)
    first, best, best_sd = sd, x, sd
    history = [sd.squeeze(-1)]
    estimate, last_slope = x.clone(), slope.clone()
    iterations = torch.zeros(batch, dtype=torch.long, device=y.device)
    settled, diverged = (
        torch.zeros_like(iterations, dtype=torch.bool),
        torch.zeros_like(iterations, dtype=torch.bool),
    )
    # Problems that are done leave the working set: each stops on its own.
    live = torch.arange(batch, device=y.device)
    for step in range(1, max_iterations + 1):
        if not len(live):
            break
        target, slope = denoiser(x + z @ a, sd)
        moved = (
            (target - x).norm(dim=-1) <= tol * target.norm(dim=-1)
            if tol
            else torch.zeros_like(live, dtype=torch.bool)
        )
        x = torch.lerp(target, x, damping)
        z = torch.lerp(y - x @ a.T + z * slope * (columns / rows), z, damping)
        sd = _deviation(z)
        better = sd < best_sd
        best, best_sd = torch.where(better, x, best), torch.where(better, sd, best_sd)
        lost = ~(sd <= HOPELESS * first).squeeze(-1)
        if step == max_iterations:
            lost = lost | ((sd > first).squeeze(-1) & ~moved)
        done = moved | lost if step < max_iterations else torch.ones_like(moved)
        history.append(history[-1].index_copy(0, live, sd.squeeze(-1)))
        out = live[done]
        estimate[out] = torch.where(lost[:, None], best, x)[done]
        last_slope[out], iterations[out], settled[out], diverged[out] = (
            slope[done],
            step,
            (moved & ~lost)[done],
            lost[done],
        )
        keep = ~done
        live, x, z, y, sd, first, best, best_sd = (
            part[keep] for part in (live, x, z, y, sd, first, best, best_sd)
        )
    lead = measured.shape[:-1]
    deviations = torch.stack(history)
    penalty = torch.full_like(deviations[-1], math.nan)
    if isinstance(denoiser, SoftThreshold):
        calibrated = (
            denoiser.alpha
            * deviations[-1]
            * (1 - last_slope.squeeze(-1) * (columns / rows))
            * scale.square()
        )
        penalty = torch.where(diverged, penalty, calibrated)
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
    return Recovery(
        estimate.reshape(*lead, columns),
        deviations.reshape(len(history), *lead),
        *(figure.reshape(lead) for figure in (iterations, settled, diverged, penalty)),
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


@dataclass(frozen=True)
class Projection:
    """Shorten long vectors block by block with one Gaussian matrix, which every party draws from
    the same key.

    A vector of D numbers is padded with zeros, cut into ``ceil(D / columns)`` blocks, and each
    block x becomes A x. The sum of projections is the projection of the sum, so a channel may add
    them; for `recover`, the sum must be sparse. The paper has 8 x 256, 200 x 256 (Table II) and
    256/omega rows (Fig. 9), with standard normal entries. Here their variance is 1/m: projecting
    keeps the energy of a block, and so the transmit power.

    Parameters
    ----------
    key
        Key that the matrix is drawn from.
    rows, columns
        m and n: a block of n numbers becomes m.

    Raises
    ------
    ArgumentError
        If one of them is below 1.
    """

    key: Key
    rows: int
    columns: int = 256

    def __post_init__(self) -> None:
        if min(self.rows, self.columns) < 1:
            actual = (self.rows, self.columns)
            raise ArgumentError(
                "Projection", "rows and columns >= 1", actual, "Projection(key, 200, 256)"
            )

    def matrix(
        self, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> Tensor:
        """Return A ``(m, n)``, entries N(0, 1/m), drawn in float64 on the CPU so that every party
        has the same numbers.
        """
        draw = torch.randn(
            self.rows, self.columns, dtype=torch.float64, generator=self.key.generator()
        )
        return (draw / math.sqrt(self.rows)).to(device, dtype)

    def size(self, length: int) -> int:
        """Return how many numbers the projection of a vector of `length` has:
        ``m ceil(length / n)``.
        """
        return self.rows * math.ceil(length / self.columns)

    def project(self, vector: Tensor) -> Tensor:
        """Return the projections of the blocks, ``(ceil(D / n), m)``.

        Parameters
        ----------
        vector
            ``(D,)``.

        Raises
        ------
        ArgumentError
            If `vector` is not one-dimensional, empty, or not of finite floating-point numbers.
        """
        if (
            vector.ndim != 1
            or not vector.numel()
            or not vector.is_floating_point()
            or not is_finite(vector)
        ):
            actual = f"{tuple(vector.shape)} of {vector.dtype}"
            raise ArgumentError(
                "project", "finite floating-point numbers (D,), D >= 1", actual, "leaf.flatten()"
            )
        blocks = torch.nn.functional.pad(vector, (0, -len(vector) % self.columns)).view(
            -1, self.columns
        )
        return blocks @ self.matrix(vector.dtype, vector.device).T

    def recover(
        self,
        projected: Tensor,
        length: int,
        denoiser: Denoiser | None = None,
        *,
        max_iterations: int = 200,
        tol: float = 1e-4,
        damping: float = 0.3,
        warn: bool = True,
    ) -> tuple[Tensor, Recovery]:
        """Return the vector ``(length,)`` that `amp` recovers, and a `Recovery` with one problem
        per block.

        Blocks of 256 are too small for the large-system limit to hold, hence the default damping:
        of 100 blocks with 30 non-zero entries, each sent as 200 numbers, a few do not settle
        without it. The default tolerance is as fine as a channel's noise allows.

        Parameters
        ----------
        projected
            ``(ceil(length / n), m)``, as `project` returns it, or the noisy sum of several.
        length
            Length of the vector, D.
        denoiser, max_iterations, tol, damping, warn
            As in `amp`.

        Raises
        ------
        ArgumentError
            If the blocks are not those of a vector of `length`, or as in `amp`.
        """
        expected = (math.ceil(length / self.columns), self.rows)
        if tuple(projected.shape) != expected or length < 1:
            actual = tuple(projected.shape)
            raise ArgumentError(
                "recover", f"numbers {expected} for length {length}", actual, "`project`'s result"
            )
        a = self.matrix(projected.dtype, projected.device)
        blocks = amp(
            a,
            projected,
            denoiser,
            max_iterations=max_iterations,
            tol=tol,
            damping=damping,
            warn=warn,
        )
        return blocks.estimate.flatten()[:length], blocks

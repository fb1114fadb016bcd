"""The scalar channel behind AMP: two denoisers, their risk, and the recursion that predicts how AMP
fares before it runs.

In the limit of large Gaussian A, the n numbers that AMP denoises are the truth plus independent
noise, ``R = X + tau Z``, Z ~ N(0, 1). Its state is the number tau, which starts at
``tau_0^2 = sigma^2 + E[X^2] / delta``, delta = m / n, and moves by ``tau'^2 = sigma^2 + E[(eta(X +
tau Z; tau) - X)^2] / delta``.

References
----------
Donoho, Maleki, Montanari, Message-passing algorithms for compressed sensing, PNAS 2009 (DMM).
Bayati, Montanari, The dynamics of message passing on dense graphs, IEEE Trans. Inf. Theory 2011;
The LASSO risk for Gaussian matrices, 2012.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from bayesfed.errors import ArgumentError

# Thresholds are sought up to this many standard deviations; noise exceeds 8 of them in one entry of
# 10^15.
LARGEST_ALPHA = 8.0
# Above this m / n the minimax threshold falls to zero, where nothing is shrunk and AMP makes no
# progress.
LARGEST_DELTA = 0.9


@dataclass(frozen=True)
class BernoulliGaussian:
    """X is zero, or with probability `density` drawn from N(0, `variance`).

    Parameters
    ----------
    density
        Share of non-zero entries, in (0, 1].
    variance
        Variance of the non-zero entries, in the square of x's unit; positive.

    Raises
    ------
    ArgumentError
        If one is outside its range.
    """

    density: float
    variance: float = 1.0

    def __post_init__(self) -> None:
        if not (0 < self.density <= 1 and 0 < self.variance < math.inf):
            actual = (self.density, self.variance)
            raise ArgumentError(
                "BernoulliGaussian", "a density in (0, 1], a variance > 0", actual, "(0.1, 1.0)"
            )


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

    def risk(self, prior: BernoulliGaussian, deviation: float) -> float:
        """Return the mean squared error of an entry under the prior."""
        ...


@dataclass(frozen=True)
class SoftThreshold:
    """``eta(r; tau) = sign(r) max(|r| - alpha tau, 0)``: AMP's fixed points are then LASSO
    solutions (DMM; Bayati and Montanari 2012, eq. 1.11).

    Parameters
    ----------
    alpha
        Threshold in standard deviations of the scalar noise, >= 0; `minimax_alpha` needs no prior,
        `tuned_alpha` uses one.

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

    def risk(self, prior: BernoulliGaussian, deviation: float) -> float:
        """Return the mean squared error in closed form.

        Given R, a component of variance v has X ~ N(c R, c tau^2), c = v / (v + tau^2), and R ~
        N(0, s^2), s^2 = v + tau^2. With u = alpha tau / s and the normal density phi and tail Q at
        u, the error is ``2 (1-c)^2 s^2 (u phi + Q) - 4 (1-c) s theta phi + 2 theta^2 Q + c^2 s^2
        (1 - 2 u phi - 2 Q) + c tau^2``, theta = alpha tau.
        """
        if deviation == 0:
            return 0.0
        theta = self.alpha * deviation

        def component(variance: float) -> float:
            scale = math.sqrt(variance + deviation**2)
            c, u = variance / scale**2, theta / scale
            phi, tail = (
                math.exp(-u * u / 2) / math.sqrt(2 * math.pi),
                math.erfc(u / math.sqrt(2)) / 2,
            )
            above = (
                (1 - c) ** 2 * scale**2 * (u * phi + tail)
                - 2 * (1 - c) * scale * theta * phi
                + theta**2 * tail
            )
            return 2 * above + c**2 * scale**2 * (1 - 2 * (u * phi + tail)) + c * deviation**2

        return prior.density * component(prior.variance) + (1 - prior.density) * component(0.0)


@dataclass(frozen=True)
class PosteriorMean:
    """``eta(r; tau) = E[X | X + tau Z = r]`` under a Bernoulli-Gaussian prior: Bayes-optimal AMP if
    the prior is right.

    Parameters
    ----------
    prior
        The assumed law of the entries of x.
    """

    prior: BernoulliGaussian

    def __call__(self, observed: Tensor, deviation: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``pi c r`` with pi the posterior probability of a non-zero entry; the derivative
        is ``Var[X | r] / tau^2``.
        """
        noise = deviation.square().clamp_min(torch.finfo(observed.dtype).tiny)
        c = self.prior.variance / (self.prior.variance + noise)
        # Above 1e4 nats the probability is one in any dtype; the bound avoids infinity times zero
        # in the derivative.
        evidence = (c * observed.square() / (2 * noise)).clamp_max(1e4)
        log_odds = (
            evidence
            + (1 - c).log() / 2
            + (
                math.log(self.prior.density / (1 - self.prior.density))
                if self.prior.density < 1
                else math.inf
            )
        )
        active = log_odds.sigmoid()
        slope = active * c * (1 + 2 * (-log_odds).sigmoid() * evidence)
        return active * c * observed, slope.mean(dim=-1, keepdim=True)

    def risk(self, prior: BernoulliGaussian, deviation: float) -> float:
        """Return the mean squared error, by `quadrature`; `prior` is the true law and may differ
        from the assumed one.
        """
        return quadrature(self, prior, deviation)


def quadrature(
    denoiser: Denoiser, prior: BernoulliGaussian, deviation: float, nodes: int = 4001
) -> float:
    """Return the risk of any odd denoiser by the trapezoidal rule in asinh(r / tau).

    The rule is spectrally accurate for a smooth integrand that is even at one end and vanishes at
    the other. Gauss-Hermite nodes of the wide component would miss the bend of the posterior mean,
    which lies within a few tau of zero.

    Parameters
    ----------
    denoiser
        eta, an odd function.
    prior
        The law of X.
    deviation
        tau > 0.
    nodes
        Number of points.
    """
    total = 0.0
    for weight, variance in ((prior.density, prior.variance), (1 - prior.density, 0.0)):
        scale = math.sqrt(variance + deviation**2)
        grid = torch.linspace(0, math.asinh(12 * scale / deviation), nodes, dtype=torch.float64)
        points = deviation * grid.sinh()
        estimate, _ = denoiser(points, torch.tensor([deviation], dtype=torch.float64))
        c = variance / scale**2
        density = (
            (-(points / scale).square() / 2).exp()
            * 2
            / (scale * math.sqrt(2 * math.pi))
            * deviation
            * grid.cosh()
        )
        total += weight * (
            float(torch.trapezoid((estimate - c * points).square() * density, grid))
            + c * deviation**2
        )
    return total


def state_evolution(
    denoiser: Denoiser,
    prior: BernoulliGaussian,
    delta: float,
    noise_variance: float,
    iterations: int,
) -> tuple[float, ...]:
    """Return tau_0 ... tau_iterations (DMM, eq. 3; Bayati and Montanari 2011, eq. 1.4).

    The mean squared error of AMP's t-th estimate, the zero vector being the 0-th, is
    ``delta (tau_t^2 - noise_variance)``.

    Parameters
    ----------
    denoiser
        eta.
    prior
        The law of the entries of x.
    delta
        m / n > 0.
    noise_variance
        sigma^2, the variance of an entry of w, for columns of A of unit length.
    iterations
        Number of iterations after the zero estimate.

    Raises
    ------
    ArgumentError
        If delta is not positive or the variance negative.
    """
    _check(delta, noise_variance)
    variances = [noise_variance + prior.density * prior.variance / delta]
    for _ in range(iterations):
        variances.append(noise_variance + denoiser.risk(prior, math.sqrt(variances[-1])) / delta)
    return tuple(map(math.sqrt, variances))


def tuned_alpha(prior: BernoulliGaussian, delta: float, noise_variance: float) -> float:
    """Return the alpha whose state evolution has the lowest fixed point; without noise, the one
    that reaches zero fastest.

    The recursion increases in tau. So the lowest fixed point over all alphas is that of the
    recursion that takes the best alpha at every step, which is also defined where many alphas reach
    zero.

    Parameters
    ----------
    prior, delta, noise_variance
        As in `state_evolution`.

    Raises
    ------
    ArgumentError
        As in `state_evolution`.
    """
    from scipy.optimize import minimize_scalar

    _check(delta, noise_variance)
    variance = start = noise_variance + prior.density * prior.variance / delta
    alpha = math.nan
    for _ in range(1000):
        deviation = math.sqrt(variance)
        best = minimize_scalar(
            lambda a, tau=deviation: SoftThreshold(a).risk(prior, tau),
            bounds=(0, LARGEST_ALPHA),
            method="bounded",
        )
        before, variance, alpha = variance, noise_variance + float(best.fun) / delta, float(best.x)
        if abs(before - variance) <= 1e-9 * before or variance <= 1e-12 * start:
            break
    return alpha


def minimax_alpha(delta: float) -> float:
    """Return the alpha that recovers the densest x exactly, whatever its non-zero entries are (DMM,
    eq. 5 and after).

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

    _check(delta, 0.0)
    best = minimize_scalar(
        lambda z: -_recoverable(z, min(delta, LARGEST_DELTA)),
        bounds=(1e-3, LARGEST_ALPHA),
        method="bounded",
    )
    return float(best.x)


def phase_transition(delta: float) -> float:
    """Return the largest k / m at which l1 recovers x with k of n entries non-zero from m = delta n
    noiseless numbers (DMM, eq. 5).

    ``rho(delta) = max_z (1 - M(z) / delta) / (1 + z^2 - M(z))``,
    ``M(z) = 2 [(1 + z^2) Phi(-z) - z phi(z)]``: Donoho and Tanner's curve.

    Parameters
    ----------
    delta
        m / n, in (0, 1).

    Raises
    ------
    ArgumentError
        If delta is not in (0, 1).
    """
    from scipy.optimize import minimize_scalar

    if not 0 < delta < 1:
        raise ArgumentError("phase_transition", "0 < m / n < 1", delta, "delta = m / n")
    best = minimize_scalar(
        lambda z: -_recoverable(z, delta), bounds=(1e-3, LARGEST_ALPHA), method="bounded"
    )
    return -float(best.fun)


def _recoverable(z: float, delta: float) -> float:
    missed = (1 + z * z) * math.erfc(z / math.sqrt(2)) - 2 * z * math.exp(-z * z / 2) / math.sqrt(
        2 * math.pi
    )
    return (1 - missed / delta) / (1 + z * z - missed)


def _check(delta: float, noise_variance: float) -> None:
    if not (0 < delta < math.inf and 0 <= noise_variance < math.inf):
        actual = (delta, noise_variance)
        raise ArgumentError(
            "state evolution", "m / n > 0 and a noise variance >= 0", actual, "delta = m / n"
        )

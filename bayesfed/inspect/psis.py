"""Is a variational posterior near the exact one? Pareto-smoothed importance sampling's k-hat says.

Yao, Vehtari, Simpson and Gelman (2018), "Yes, but did it work? Evaluating variational inference": draw theta_s from q, weigh them by
``r_s = p(D, theta_s) / q(theta_s)``, and fit a generalised Pareto distribution to the largest weights. Its shape k says how many moments the
weights have (those below 1 / k), and k-hat estimates it.
"""

from __future__ import annotations

import math
from types import ModuleType

from torch import Tensor

from bayesfed.errors import ArgumentError, complain
from bayesfed.inspect.compat import pareto_shape

# Draws that importance weights with k = 0.5 need, 10 ** (1 / (1 - k)) (Vehtari et al. 2024, section 3.2.3).
FEWEST = 100
# Log weights that differ by less are equal: a tail of such would be one of rounding errors.
EQUAL = 1e-3


def k_hat(log_weights: Tensor, *, backend: ModuleType | None = None) -> float:
    """Return the Pareto shape k-hat of importance weights: the smaller, the nearer the posterior.

    Below 0.5 the approximation is good; to 0.7 it is usable, best with importance weights; beyond, q is not to be trusted. r-hat and effective sample
    size say nothing here: draws of a variational posterior are independent, so these are 1 and S however wrong q is. k-hat is of all parameters at
    once and grows with their number: the mean-field posterior of a network is far beyond 0.7 as a rule, and may still predict well.

    Parameters
    ----------
    log_weights
        ``(S,)``: log p(D, theta_s) - log q(theta_s) of independent draws theta_s from q, up to a constant, in nats. At least 100, better 1,000 or
        more; computed in 64 bits, since both terms are large.
    backend
        ArviZ, or `arviz_stats`, which is what ArviZ 1.x computes with; default `arviz`. The two differ by 0.01 or so: they round the length of the
        tail, ``min(S / 5, 3 sqrt(S))``, up and down.

    Returns
    -------
    float
        0 if all weights of the tail are equal within 0.1 %: none stands out, so there is no tail. Infinity if a quarter of the tail is 0 beside the
        largest weight, in 64 bits, or equal to what is below the tail: there is nothing to fit.

    Raises
    ------
    ArgumentError
        If there are fewer than 100 weights, or one is not finite.
    """
    if log_weights.ndim != 1 or len(log_weights) < FEWEST or not log_weights.is_floating_point():
        found = f"{tuple(log_weights.shape)} of {log_weights.dtype}"
        raise ArgumentError(complain("k_hat", expected=f"log weights (S,), at least {FEWEST}", actual=found, hint="1,000 draws"))
    if not bool(log_weights.isfinite().all()):
        found = f"{int((~log_weights.isfinite()).sum())} that are not"
        raise ArgumentError(complain("k_hat", expected="finite log weights", actual=found, hint="log p and log q of each draw in 64 bits"))
    values = log_weights.detach().cpu().double().sort().values
    values = values - values[-1]
    length = min(len(values) // 5, math.isqrt(9 * len(values)))
    below, tail = values[-length - 1].exp(), values[-length:].exp()
    if float(tail[0]) > 1 - EQUAL:
        return 0.0
    if float(tail[length // 4]) <= float(below):
        return math.inf
    return pareto_shape(values.numpy(), backend)

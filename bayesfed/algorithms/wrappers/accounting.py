"""Privacy accounting: epsilon of Gaussian noise over rounds, by its privacy loss distribution in
dp-accounting (extra ``dp``), which is exact but for a grid of losses that is rounded up.

There are two statements. They have different neighbours, and neither implies the other:

- For every round and any sampler, neighbouring runs differ in one client, whose updates are all
  replaced by zeros. A round's sum then moves by at most ``clip``. The rounds together are one
  Gaussian mechanism (Balle and Wang, 2018).
- For `participants` of `population` clients, drawn anew each round uniformly without replacement
  (`fraction`) and kept secret, neighbouring runs differ in one client that is replaced by another.
  A sum moves by at most ``2 clip``, and sampling amplifies privacy (Zhu, Dong and Wang, 2022,
  Theorem 11: with P, Q the noisy sums of the neighbours and q the share that is drawn, the rounds
  are no worse than q P + (1 - q) Q beside Q).

Poisson sampling is not offered, because a round has at least one client.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import log_ndtr, ndtr

from bayesfed.errors import ArgumentError, needs
from bayesfed.errors.checks import COUNT, PART, POSITIVE, checked

# Step of the grid of losses of a round, and least and greatest number of points on each side.
STEP, LEAST, MOST = 1e-3, 4000, 50_000
# Standard deviations of noise that the grid reaches, and the mass that a composition may drop,
# which is added to delta.
REACH, DROPPED = 9.0, 1e-15


@checked(noise=POSITIVE, rounds=COUNT, delta=PART)
def epsilon(
    noise: float,
    rounds: int,
    delta: float,
    *,
    participants: int | None = None,
    population: int | None = None,
) -> float:
    """Return epsilon at `delta` after rounds of Gaussian noise.

    Parameters
    ----------
    noise
        z, the standard deviation of the noise divided by `clip`.
    rounds
        Number of rounds whose noisy sums are seen.
    delta
        Failure probability, below 1 and much less than one over the number of clients.
    participants, population
        Both, for rounds of a uniform sample. Default: no amplification by sampling.

    Raises
    ------
    ArgumentError
        If noise is not positive and finite, there are no rounds, delta is not in (0, 1), or
        participants are not 1 to population.
    MissingExtraError
        If dp-accounting is not installed.
    """
    return _spent(noise, rounds, delta, participants, population)


@checked(epsilon=POSITIVE, rounds=COUNT, delta=PART)
def noise_for(
    epsilon: float,
    rounds: int,
    delta: float,
    *,
    participants: int | None = None,
    population: int | None = None,
) -> float:
    """Return the least noise multiplier, to a thousandth of it, with which `rounds` rounds cost at
    most `epsilon` at `delta`: the inverse of `bayesfed.algorithms.epsilon`, with its arguments and
    errors.

    Examples
    --------
    >>> noise_for(2.0, 100, 1e-5, participants=100, population=10_000)
    """

    def spent(noise: float) -> float:
        return _spent(noise, rounds, delta, participants, population)

    low = high = 1.0
    while spent(high) > epsilon:
        low, high = high, 2 * high
    while low == high or spent(low) <= epsilon:
        low, high = low / 2, low
    while high > 1.001 * low:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if spent(middle) > epsilon else (low, middle)
    return high


@lru_cache(maxsize=4096)
def _spent(
    noise: float, rounds: int, delta: float, participants: int | None, population: int | None
) -> float:
    if (participants is None) != (population is None) or not 1 <= (participants or 1) <= (
        population or 1
    ):
        raise ArgumentError(
            "epsilon",
            "both participants and population, 1 <= participants <= population",
            (participants, population),
            "participants=20, population=1000",
        )
    library = needs("dp_accounting", "dp", "dp-accounting")
    if participants is not None and population is not None and participants < population:
        losses = _losses(noise, participants / population)
        return float(losses.self_compose(rounds, DROPPED).get_epsilon_for_delta(delta))
    # A client that is replaced moves the sum twice as far.
    scale = noise / rounds**0.5 / (1 if population is None else 2)
    # Its root is found to 1e-12, on either side.
    return float(library.get_epsilon_gaussian(scale, delta)) * (1 + 1e-9)


@lru_cache(maxsize=64)
def _losses(noise: float, share: float) -> Any:
    """Return the distribution of the privacy loss of one round of a sample, on a grid."""
    mu = 2 / noise
    farthest = np.logaddexp(np.log(share) + mu * mu / 2 + REACH * mu, np.log1p(-share))
    step = float(farthest / np.clip(farthest / STEP, LEAST, MOST))
    grid = np.arange(int(farthest / step) + 2)
    # exp(loss) = 1 + share (exp(loss of the sampled) - 1), without overflow.
    losses = step * grid
    sampled = losses + np.log1p(-np.exp(-losses) * (1 - share)) - np.log(share)
    deltas = share * (
        ndtr(mu / 2 - sampled / mu) - np.exp(sampled + log_ndtr(-mu / 2 - sampled / mu))
    ).clip(min=0)
    below = 1 - np.exp(-losses[:0:-1]) * (1 - deltas[:0:-1])
    pmf = needs("dp_accounting.pld.pld_pmf", "dp", "dp-accounting")
    both = np.concatenate([-grid[:0:-1], grid]), np.concatenate([below, deltas])
    return pmf.create_pmf_pessimistic_connect_dots(step, *both)

"""Privacy accounting: epsilon of Gaussian noise over rounds, by Rényi differential privacy
(Mironov, 2017) in dp-accounting (extra ``dp``).

There are two statements. They have different neighbours, and neither implies the other:

- For every round and any sampler, neighbouring runs differ in one client, whose updates are all
  replaced by zeros. A round's sum then moves by at most ``clip``.
- For `participants` of `population` clients, drawn anew each round uniformly without replacement
  (`fraction`) and kept secret, neighbouring runs differ in one client that is replaced by another.
  A sum moves by at most ``2 clip``, and sampling amplifies privacy (Wang, Balle and
  Kasiviswanathan, 2019).

Poisson sampling is not offered, because a round has at least one client.
"""

from __future__ import annotations

from functools import lru_cache

from bayesfed.errors import ArgumentError, needs
from bayesfed.errors.checks import COUNT, PART, POSITIVE, checked


@checked(noise=POSITIVE, rounds=COUNT, delta=PART)
@lru_cache(maxsize=4096)
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
    if (participants is None) != (population is None) or not 1 <= (participants or 1) <= (
        population or 1
    ):
        raise ArgumentError(
            "epsilon",
            "both participants and population, 1 <= participants <= population",
            (participants, population),
            "participants=20, population=1000",
        )
    rdp = needs("dp_accounting.rdp", "dp", "dp-accounting")
    import dp_accounting

    relations = dp_accounting.NeighboringRelation
    if population is None:
        neighbours, event = relations.REPLACE_SPECIAL, dp_accounting.GaussianDpEvent(noise)
    else:
        # The noise multiplier is relative to the sensitivity, 2 clip: one client goes and another
        # comes.
        each = dp_accounting.GaussianDpEvent(noise / 2)
        event = dp_accounting.SampledWithoutReplacementDpEvent(population, participants, each)
        neighbours = relations.REPLACE_ONE
    accountant = rdp.RdpAccountant(neighboring_relation=neighbours)
    accountant.compose(event, rounds)
    return float(accountant.get_epsilon(delta))

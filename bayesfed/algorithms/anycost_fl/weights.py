"""The weight of a client in the sum, by how far shrinking and compression change its update.

References
----------
Li et al., AnycostFL, INFOCOM 2023, Lemma 1 (11), Theorem 1 (13), appendix A.
"""

from __future__ import annotations

import math

from bayesfed.errors.checks import SHARE, checked

# Least root of the divergence that counts. A power of two, so that exact clients alone are averaged
# as with weights of 1, bit for bit.
LEAST = 2**-10


@checked(alpha=SHARE, beta=SHARE)
def aggregation_weight(alpha: float, beta: float) -> float:
    """Return a client's weight in the sum ``1 / (1 - alpha (2 - alpha) sqrt(beta))^2`` (13),
    independent of other clients.

    The weight is the inverse of the paper's bound (11) on the relative squared error of the update.
    It is a bound for alpha = 1; for alpha up to about 0.55 and small beta the error is larger, so
    there it is a figure of merit rather than a bound: (31) takes the shrunk update for uniform over
    (0, u_max) again, though its smallest entries are gone.

    The sum is divided by the sum of weights, so these need not add to 1. An exact client (alpha =
    beta = 1) has no finite weight by (13); the root is kept at 2**-10, so no weight exceeds about a
    million, and exact clients leave the others a millionth of the say. With beta at most 1/15
    weights lie between 1 and 1.82 and the cap is never met. (13) leaves out how many rows a client
    has, though (1) weighs by them; multiply if that is meant.

    Parameters
    ----------
    alpha
        Share of the network's work that remains.
    beta
        Share of the update's bits that are sent.

    Raises
    ------
    ArgumentError
        If alpha or beta is not in (0, 1].
    """
    return 1 / max(1 - alpha * (2 - alpha) * math.sqrt(beta), LEAST) ** 2

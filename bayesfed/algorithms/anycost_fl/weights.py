"""How far shrinking and compression change an update, and the weights in the sum that follow from
it.

``alpha`` is the share of the network's work that remains, ``beta`` the share of the update's bits
that are sent; both are in (0, 1].

References
----------
Li et al., AnycostFL, INFOCOM 2023, Lemma 1 (11), Theorem 1 (13), appendix A.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from bayesfed.errors import ArgumentError


def divergence_bound(alpha: float, beta: float) -> float:
    """Return ``(1 - alpha (2 - alpha) sqrt(beta))^2``, the paper's bound on
    ``E |u - cmprs(shrink(u))|^2 / E |u|^2`` (11).

    Its model: ``|u| ~ U(0, u_max)``; shrinking keeps the largest share alpha, sparsification the
    largest share ``sqrt(beta)`` of those, and ``2^(32 sqrt(beta))`` levels are left.

    It is a bound for alpha = 1, (30), with ``(1 - sqrt(beta))^2`` there as (32) has it, not the
    printed ``(1 - beta)^2``. For a smaller alpha it is a figure of merit rather than a bound: (31)
    takes the shrunk update for uniform over (0, u_max) again, though its smallest entries are gone.
    In the model the error is ``(1 - alpha sqrt(beta))^3`` and a little for the levels, which is
    more for alpha up to about 0.55 and small beta: 0.82 against 0.79 at alpha = 1/4, beta = 1/15.
    And step (b) of (32) fails for beta near 1, where shrinking alone leaves ``(1 - alpha)^3``, more
    than ``(1 - alpha)^4``.

    Raises
    ------
    ArgumentError
        If alpha or beta is not in (0, 1].
    """
    return _root("divergence_bound", alpha, beta) ** 2


def aggregation_weight(alpha: float, beta: float, *, least: float = 2**-10) -> float:
    """Return a client's weight in the sum ``1 / (1 - alpha (2 - alpha) sqrt(beta))^2`` (13),
    independent of other clients.

    The sum is divided by the sum of weights, so these need not add to 1. An exact client (alpha =
    beta = 1) has no finite weight by (13); the root is kept at `least`, so no weight exceeds
    ``1 / least^2``: about a million, and exact clients leave the others a millionth of the say. The
    default is a power of two, so that exact clients alone are averaged as with weights of 1, bit
    for bit. With beta at most 1/15 weights lie between 1 and 1.82 and the cap is never met. (13)
    leaves out how many rows a client has, though (1) weighs by them; multiply if that is meant.

    Raises
    ------
    ArgumentError
        If alpha or beta is not in (0, 1], or `least` is not in (0, 1).
    """
    if not 0 < least < 1:
        raise ArgumentError("aggregation_weight.least", "a number in (0, 1)", least, "2**-10")
    return 1 / max(_root("aggregation_weight", alpha, beta), least) ** 2


def aggregation_weights(alphas: Sequence[float], betas: Sequence[float]) -> list[float]:
    """Return the clients' shares of the sum (13), which add up to 1: if some are exact, these share
    the sum in equal parts, which is the limit.

    Raises
    ------
    ArgumentError
        If there are no clients, not as many alphas as betas, or one is not in (0, 1].
    """
    if not alphas or len(alphas) != len(betas):
        actual = f"{len(alphas)} and {len(betas)}"
        raise ArgumentError(
            "aggregation_weights",
            "an alpha and a beta of each client",
            actual,
            "plans of one round",
        )
    roots = [
        _root("aggregation_weights", alpha, beta) for alpha, beta in zip(alphas, betas, strict=True)
    ]
    nearest = min(roots)
    shares = [(nearest / root) ** 2 if nearest else float(not root) for root in roots]
    total = math.fsum(shares)
    return [share / total for share in shares]


def _root(where: str, alpha: float, beta: float) -> float:
    if not (0 < alpha <= 1 and 0 < beta <= 1):
        raise ArgumentError(where, "alpha and beta in (0, 1]", (alpha, beta), "those of a Plan")
    return 1 - alpha * (2 - alpha) * math.sqrt(beta)

"""Who shares masks with whom: the degree of the graph by the bound of Bell et al. (2020), and a
random graph of that degree.
"""

from __future__ import annotations

import math
import secrets
from functools import lru_cache
from typing import NamedTuple

import numpy as np

# Bits of security and of correctness: each of the three events below has a probability of at most 2
# to the minus this.
SECURITY, CORRECTNESS = 40, 30
# With a single share a secret would be told to whoever has it.
LEAST = 2


class Degree(NamedTuple):
    """The number of neighbours of each client, and how many of them must answer to open one of its
    secrets.
    """

    neighbours: int
    threshold: int


@lru_cache(maxsize=1024)
def degree(clients: int, dropouts: float, colluding: float) -> Degree | None:
    """Return the smallest degree of a Harary graph on randomly ordered clients that keeps all three
    promises; the complete graph if none does.

    - No client has as many colluding neighbours as the threshold.
    - What is left of the graph without the colluding clients and those that dropped out is
      connected, so that no part of the sum can be unmasked by itself. A ring is cut only where half
      a neighbourhood in a row is missing.
    - Every client has as many neighbours that answer as the threshold.

    The complete graph needs no probabilities. The threshold is the largest that the third promise
    allows.

    Parameters
    ----------
    clients
        Number of clients that sent keys.
    dropouts
        Largest share of them that may drop out later in the round.
    colluding
        Largest share of them that may pass on to the server what they know.

    Returns
    -------
    Degree or None
        None if there are too few clients for any graph.

    References
    ----------
    Bell, Bonawitz, Gascón, Lepoint and Raykova, "Secure single-server aggregation with
    (poly)logarithmic overhead" (2020), section 3, with exact tails of the hypergeometric
    distribution.
    """
    # Scipy's distributions take long to import.
    from scipy.stats import hypergeom

    others = clients - 1
    dropped = math.floor(dropouts * clients)
    colluders = math.ceil(colluding * clients)
    missing = min(clients, dropped + colluders)
    for neighbours in range(2, others, 2):
        half = neighbours // 2
        # The logarithm of the probability that `half` clients in a row are missing, anywhere on the
        # ring.
        cut = (
            math.log(clients)
            + sum(math.log((missing - place) / (clients - place)) for place in range(half))
            if half <= missing
            else -math.inf
        )
        if cut > -SECURITY * math.log(2):
            continue
        thresholds = np.arange(LEAST, neighbours + 1)
        short = clients * hypergeom.cdf(thresholds - 1, others, others - dropped, neighbours)
        possible = thresholds[short <= 2.0**-CORRECTNESS]
        if (
            len(possible)
            and clients * hypergeom.sf(possible[-1] - 1, others, colluders, neighbours)
            <= 2.0**-SECURITY
        ):
            return Degree(neighbours, int(possible[-1]))
    threshold = others - dropped
    return Degree(others, threshold) if threshold >= LEAST and threshold > colluders else None


def neighbours(clients: int, number: int) -> np.ndarray:
    """Return the neighbours of every client, ``(clients, number)``, in a random order that the
    operating system draws.

    Parameters
    ----------
    clients
        Number of clients.
    number
        Number of neighbours of each: even, or one less than there are clients.
    """
    order = np.array(secrets.SystemRandom().sample(range(clients), clients))
    before = number // 2
    steps = np.array([*range(1, number - before + 1), *range(clients - before, clients)])
    graph = np.empty((clients, number), np.int64)
    graph[order] = order[(np.arange(clients)[:, None] + steps) % clients]
    return graph

"""Samplers: which clients take part in a round. Plain functions of round, names and a key."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from bayesfed.errors import ArgumentError, complain
from bayesfed.keys import Key

Sampler = Callable[[int, Sequence[str], Key], Sequence[str]]
"""``(round, clients, key) -> clients that take part``."""


def everyone(round: int, clients: Sequence[str], key: Key) -> Sequence[str]:
    """Take all clients."""
    return clients


def in_turn(round: int, clients: Sequence[str], key: Key) -> Sequence[str]:
    """Take one client a round, in the order of their names: sequential PVI (Ashman et al., 2022), whose damping may then be 1."""
    names = sorted(clients)
    return [names[round % len(names)]]


def decaying(share: float, rate: float) -> Sampler:
    """Take a share ``share exp(-rate round)`` of the clients, at least one: DSSM's dynamic sampling (Ji et al., 2021).

    Raises
    ------
    ArgumentError
        If the share is not in (0, 1] or the rate is negative.
    """
    if not (0 < share <= 1 and 0 <= rate < math.inf):
        raise ArgumentError(complain("decaying", expected="a share in (0, 1] and a rate >= 0", actual=(share, rate), hint="decaying(1.0, 0.01)"))
    return lambda round, clients, key: fraction(max(share * math.exp(-rate * round), 1e-9))(round, clients, key)


def fraction(share: float) -> Sampler:
    """Take a share of the clients, uniformly without replacement, at least one.

    Parameters
    ----------
    share
        Of all clients, rounded to the nearest number of them.

    Raises
    ------
    ArgumentError
        If the share is not in (0, 1].
    """
    if not 0 < share <= 1:
        raise ArgumentError(complain("fraction", expected="a share in (0, 1]", actual=share, hint="0.5"))

    def sample(round: int, clients: Sequence[str], key: Key) -> Sequence[str]:
        count = max(1, math.floor(share * len(clients) + 0.5))
        order = torch.randperm(len(clients), generator=key.generator())[:count]
        return [clients[i] for i in order.tolist()]

    return sample

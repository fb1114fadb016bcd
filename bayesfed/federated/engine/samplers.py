"""Samplers: functions that choose the clients of a round from the number of the round, the clients'
names and a key.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from bayesfed.errors.checks import checked, number
from bayesfed.keys import Key

Sampler = Callable[[int, Sequence[str], Key], Sequence[str]]
"""``(round, clients, key) -> clients of the round``."""
SHARE = number("(0, 1]", "0.5")


def everyone(round: int, clients: Sequence[str], key: Key) -> Sequence[str]:
    """Return all clients."""
    return clients


def in_turn(round: int, clients: Sequence[str], key: Key) -> Sequence[str]:
    """Return one client per round, in the order of their names.

    This is the schedule of sequential PVI (Ashman et al., 2022), under which a damping of 1 is
    possible.
    """
    names = sorted(clients)
    return [names[round % len(names)]]


@checked(share=SHARE, rate=number("[0, inf)", "0.01"))
def decaying(share: float, rate: float) -> Sampler:
    """Return a sampler that takes the share ``share exp(-rate round)`` of the clients, but at least
    one: DSSM's dynamic sampling (Ji et al., 2021).

    Parameters
    ----------
    share
        Share of the clients in round 0, in (0, 1].
    rate
        Rate of the decay per round.

    Raises
    ------
    ArgumentError
        If the share is not in (0, 1], or the rate is negative or not finite.
    """
    return lambda round, clients, key: fraction(max(share * math.exp(-rate * round), 1e-9))(
        round, clients, key
    )


@dataclass(frozen=True)
class Uniform:
    """A sampler of a fixed share of the clients, made by `fraction`.

    Parameters
    ----------
    share
        Share of the clients, in (0, 1].
    """

    share: float

    def count(self, clients: int) -> int:
        """Return the number of clients that are taken of `clients`."""
        return max(1, math.floor(self.share * clients + 0.5))

    def __call__(self, round: int, clients: Sequence[str], key: Key) -> Sequence[str]:
        """Return a sample without replacement, in which all sets of clients of this size are
        equally likely.
        """
        order = torch.randperm(len(clients), generator=key.generator())[: self.count(len(clients))]
        return [clients[i] for i in order.tolist()]


@checked(share=SHARE)
def fraction(share: float) -> Sampler:
    """Return a sampler that takes a share of the clients, uniformly without replacement, but at
    least one.

    Parameters
    ----------
    share
        Share of the clients, in (0, 1]; their number is rounded to the nearest.

    Raises
    ------
    ArgumentError
        If the share is not in (0, 1].
    """
    return Uniform(share)

"""Samplers: which clients take part in a round. Plain functions of round, names and a key."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from bayesfed.errors import ArgumentError, complain
from bayesfed.keys import Key

Sampler = Callable[[int, Sequence[str], Key], Sequence[str]]


def everyone(round: int, clients: Sequence[str], key: Key) -> Sequence[str]:
    """Take all clients."""
    return clients


def fraction(share: float) -> Sampler:
    """Take a share of the clients, uniformly without replacement, at least one.

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

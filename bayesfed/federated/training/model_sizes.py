"""Devices of unlike strength: who trains which size, and the local steps of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from bayesfed.data.dataset import Dataset
from bayesfed.errors import ArgumentError, complain
from bayesfed.federated.core.options import LocalOptions
from bayesfed.federated.core.protocols import Fit, Local, Profile
from bayesfed.federated.core.update import Kind
from bayesfed.keys import Key
from bayesfed.trees import Tree

Capacity = Callable[[Profile, int, Key], int]
"""``(profile, round, key) -> number of the size``, 0 the largest."""


def dynamic(count: int) -> Capacity:
    """Draw a size for every client and round, uniformly: capacities that come and go (HeteroFL's and FedHM's dynamic heterogeneity).

    Parameters
    ----------
    count
        How many sizes there are.

    Raises
    ------
    ArgumentError
        If there are none.
    """
    if count < 1:
        raise ArgumentError(complain("dynamic", expected="count >= 1", actual=count, hint="the number of sizes"))
    return lambda profile, round, key: int(torch.randint(count, (), generator=key.child("size").generator()))


def fixed(clients: Sequence[str], count: int) -> Capacity:
    """Deal sizes to clients once, in turn: as many clients of each size as can be.

    Parameters
    ----------
    clients
        Names, in the order in which they are dealt sizes: the first gets the largest.
    count
        How many sizes there are.

    Raises
    ------
    ArgumentError
        If there are no sizes or a name comes twice; from a round, if a client is not among them.
    """
    if count < 1 or len(set(clients)) != len(clients):
        raise ArgumentError(complain("fixed", expected="distinct clients and count >= 1", actual=(list(clients), count), hint="sorted(clients)"))
    dealt = {name: number % count for number, name in enumerate(clients)}

    def capacity(profile: Profile, round: int, key: Key) -> int:
        if profile.name not in dealt:
            raise ArgumentError(complain("fixed", expected=f"one of {sorted(dealt)}", actual=repr(profile.name), hint="all clients of the pool"))
        return dealt[profile.name]

    return capacity


def by_device(name: str, smallest: Mapping[int, float]) -> Capacity:
    """Let a figure of the client's profile decide: the largest size whose minimum it reaches.

    Parameters
    ----------
    name
        Of the figure in `Profile.device`, such as "memory_bytes".
    smallest
        What each size needs at least, by its number, in the figure's unit.

    Raises
    ------
    ArgumentError
        From a round, if a client has no such figure or reaches none of the minima.
    """

    def capacity(profile: Profile, round: int, key: Key) -> int:
        found = profile.device.get(name)
        able = [number for number, needed in sorted(smallest.items()) if found is not None and found >= needed]
        if not able:
            needed = min(smallest.values())
            raise ArgumentError(
                complain(f"by_device, client {profile.name!r}", expected=f"{name} >= {needed:g}", actual=found, hint="a smaller size")
            )
        return able[0]

    return capacity


@dataclass(frozen=True)
class Sized:
    """One local for each size; the option ``size`` of the message says which."""

    locals: tuple[Local, ...]

    @property
    def kind(self) -> Kind:
        """What the payload's numbers mean."""
        return self.locals[0].kind

    @property
    def uses_global_randomness(self) -> bool:
        """Whether any of them does."""
        return any(local.uses_global_randomness for local in self.locals)

    def fit(self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions) -> Fit:
        """Fit by the local of this size."""
        return self.locals[options.size].fit(message, memory, data, key, options)

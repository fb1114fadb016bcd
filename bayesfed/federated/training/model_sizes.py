"""Models of several sizes for devices of different strength: which client trains which size, and
the local step for each size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from bayesfed.data import Dataset
from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import checked, whole
from bayesfed.errors.roles import Role
from bayesfed.federated.core import Fit, Kind, Local, LocalOptions, Profile, options_of
from bayesfed.federated.core.settings import with_settings
from bayesfed.keys import Key
from bayesfed.trees import Tree

Capacity = Callable[[Profile, int, Key], int]
"""``(profile, round, key) -> index of the size``. 0 is the largest."""


@checked(count=whole(1, "the number of sizes"))
def dynamic(count: int) -> Capacity:
    """Return a capacity that draws a size uniformly for every client and round (dynamic
    heterogeneity in HeteroFL and FedHM).

    Parameters
    ----------
    count
        Number of sizes.

    Raises
    ------
    ArgumentError
        If `count` is below 1.
    """
    return lambda profile, round, key: int(
        torch.randint(count, (), generator=key.child("size").generator())
    )


@checked(
    clients=Role(
        lambda names: (
            isinstance(names, list | tuple)
            and all(isinstance(name, str) for name in names)
            and 0 < len(set(names)) == len(names)
        ),
        "a list of distinct names",
        "sorted(clients)",
    ),
    count=whole(1, "2"),
)
def fixed(clients: Sequence[str], count: int) -> Capacity:
    """Return a capacity that assigns sizes to clients once, in turn, so that the sizes have equally
    many clients (plus or minus one).

    Parameters
    ----------
    clients
        Names of all clients, in the order in which sizes are assigned. The first client gets the
        largest size.
    count
        Number of sizes.

    Raises
    ------
    ArgumentError
        If `count` is below 1 or a name occurs twice. During a round, if a client is not in
        `clients`.
    """
    sizes = {name: number % count for number, name in enumerate(clients)}

    @with_settings(sizes=sizes)
    def capacity(profile: Profile, round: int, key: Key) -> int:
        if profile.name not in sizes:
            raise ArgumentError(
                "fixed", f"one of {sorted(sizes)}", repr(profile.name), "all clients of the pool"
            )
        return sizes[profile.name]

    return capacity


@checked()
def by_device(name: str, smallest: Mapping[int, float]) -> Capacity:
    """Return a capacity that gives each client the largest size whose requirement its device meets.

    Parameters
    ----------
    name
        Name of a figure in `Profile.device`, such as "memory_bytes".
    smallest
        Smallest figure that each size needs, by the index of the size, in the unit of the figure.

    Raises
    ------
    ArgumentError
        During a round, if a client has no such figure or meets none of the requirements.
    """

    @with_settings(name=name, smallest=smallest)
    def capacity(profile: Profile, round: int, key: Key) -> int:
        figure = profile.device.get(name)
        possible = [
            size
            for size, needed in sorted(smallest.items())
            if figure is not None and figure >= needed
        ]
        if not possible:
            where, expected = f"client {profile.name!r}", f"{name} >= {min(smallest.values()):g}"
            raise ArgumentError(f"by_device, {where}", expected, figure, "a smaller size")
        return possible[0]

    return capacity


@dataclass(frozen=True)
class Sized:
    """One local step for each size. The option ``size`` of the message selects it.

    Parameters
    ----------
    locals
        Local steps, from the largest size to the smallest. All send the same kind of payload.
    """

    locals: tuple[Local, ...]

    @property
    def options(self) -> type[LocalOptions]:
        """The record of options that the local steps read."""
        return options_of(self.locals[0])

    @property
    def kind(self) -> Kind:
        """What the payload's numbers mean."""
        return self.locals[0].kind

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Run the local step of the client's size."""
        return self.locals[options.size].fit(message, memory, data, key, options)

"""Clients by name where there may be a million: `Profiles`, made when they are asked for, `Roster`,
to look them up, and `Versions`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np

from bayesfed.data.population import place_of
from bayesfed.federated.core import Profile

Devices = Mapping[str, Mapping[str, float]] | Callable[[str], Mapping[str, float]]
"""Figures of clients' devices by name, or a function ``(name) -> figures``."""
NEVER = -1


class Profiles(Sequence[Profile]):
    """Profiles of clients, each made when it is asked for.

    Parameters
    ----------
    names
        Names of the clients, sorted.
    samples
        Number of rows of each client ``(K,)``, in the order of the names.
    devices
        Figures of their devices.
    """

    def __init__(
        self, names: Sequence[str], samples: np.ndarray[Any, Any], devices: Devices
    ) -> None:
        self.names, self.samples, self._devices = names, samples, devices

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, place: int) -> Profile: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Profile, ...]: ...
    def __getitem__(self, place: int | slice) -> Profile | tuple[Profile, ...]:
        if isinstance(place, slice):
            return tuple(self[number] for number in range(len(self))[place])
        name, devices = self.names[place], self._devices
        figures = devices.get(name, {}) if isinstance(devices, Mapping) else devices(name)
        return Profile(name, int(self.samples[place]), dict(figures))


class Roster(Mapping[str, Profile]):
    """The profiles of a pool by name.

    Parameters
    ----------
    profiles
        Profiles of the pool, which are not made here if they are `Profiles`.

    Attributes
    ----------
    names, ordered
        All names, in the order of the pool, and sorted.
    samples
        Number of rows of every client, in the order of `ordered`.
    """

    names: Sequence[str]
    ordered: Sequence[str]

    def __init__(self, profiles: Sequence[Profile]) -> None:
        self.profiles, self._made = profiles, dict[str, Profile]()
        if isinstance(profiles, Profiles):
            self.names = self.ordered = profiles.names
            self.samples: list[int] = profiles.samples.tolist()
            return
        self._made = {profile.name: profile for profile in profiles}
        self.names, self.ordered = list(self._made), sorted(self._made)
        self.samples = [self._made[name].samples for name in self.ordered]

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self._made or place_of(self.ordered, name) is not None

    def __getitem__(self, name: str) -> Profile:
        if name in self._made:
            return self._made[name]
        if (place := place_of(self.names, name)) is None:
            raise KeyError(name)
        return self.profiles[place]


class Versions(Mapping[str, int]):
    """By client: the round in which it last heard from the server, in four bytes a client. Clients
    that never did are not in it.

    Parameters
    ----------
    names
        Names of all clients, sorted.
    rounds
        Rounds ``(K,)`` in the order of the names, -1 for never. Default: all never.
    others
        Versions of clients that are not among `names`.
    """

    def __init__(
        self,
        names: Sequence[str],
        rounds: np.ndarray[Any, np.dtype[np.int32]] | None = None,
        others: Mapping[str, int] | None = None,
    ) -> None:
        self._names = names
        self._rounds = np.full(len(names), NEVER, dtype=np.int32) if rounds is None else rounds
        self._others = dict(others or {})

    def updated(self, versions: Mapping[str, int]) -> Versions:
        """Return these versions with those of some clients replaced."""
        rounds, others = self._rounds.copy(), dict(self._others)
        for name, number in versions.items():
            if (place := place_of(self._names, name)) is None:
                others[name] = number
            else:
                rounds[place] = number
        return Versions(self._names, rounds, others)

    def __len__(self) -> int:
        return int((self._rounds != NEVER).sum()) + len(self._others)

    def __iter__(self) -> Iterator[str]:
        yield from (self._names[place] for place in np.flatnonzero(self._rounds != NEVER).tolist())
        yield from self._others

    def __getitem__(self, name: str) -> int:
        if (place := place_of(self._names, name)) is None:
            return self._others[name]
        if (number := int(self._rounds[place])) == NEVER:
            raise KeyError(name)
        return number

    def __repr__(self) -> str:
        return f"Versions({len(self)} of {len(self._names)} clients)"

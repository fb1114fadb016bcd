"""Clients by name where there may be a million: `Profiles`, made when they are asked for, `Roster`,
to look them up, and `Numbers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import Any, overload

import numpy as np

from bayesfed.data.population import place_of
from bayesfed.errors.plurals import plural
from bayesfed.federated.core import Profile

Devices = Mapping[str, Mapping[str, float]] | Callable[[str], Mapping[str, float]]
"""Figures of clients' devices by name, or a function ``(name) -> figures``."""
NONE = -1


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
    rows
        Number of rows of all clients.
    """

    names: Sequence[str]
    ordered: Sequence[str]

    def __init__(self, profiles: Sequence[Profile]) -> None:
        self.profiles, self._made = profiles, dict[str, Profile]()
        if isinstance(profiles, Profiles):
            self.names = self.ordered = profiles.names
            self.samples: list[int] = profiles.samples.tolist()
            self.rows = sum(self.samples)
            return
        self._made = {profile.name: profile for profile in profiles}
        self.names, self.ordered = list(self._made), sorted(self._made)
        self.samples = [self._made[name].samples for name in self.ordered]
        self.rows = sum(self.samples)

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self._made or place_of(self.ordered, name) is not None

    def __getitem__(self, name: str) -> Profile:
        if name in self._made:
            return replace(self._made[name], pool=self.rows)
        if (place := place_of(self.names, name)) is None:
            raise KeyError(name)
        return replace(self.profiles[place], pool=self.rows)


class Numbers(MutableMapping[str, int]):
    """Whole numbers from 0 by client, in four or eight bytes a client: the round in which a client
    last heard from the server, or where its memory is in a file. Not all clients have one.

    Parameters
    ----------
    names
        Names of clients, sorted.
    values
        Their numbers ``(K,)`` in the order of the names, -1 for none. Default: none has one.
    others
        Numbers of clients that are not among `names`.
    """

    def __init__(
        self,
        names: Sequence[str],
        values: np.ndarray[Any, np.dtype[Any]] | None = None,
        others: Mapping[str, int] | None = None,
    ) -> None:
        self._names = names
        self._values = np.full(len(names), NONE, dtype=np.int32) if values is None else values
        self._others = dict(others or {})

    def updated(self, numbers: Mapping[str, int]) -> Numbers:
        """Return a copy with the numbers of some clients replaced."""
        made = Numbers(self._names, self._values.copy(), self._others)
        made.update(numbers)
        return made

    def __setitem__(self, name: str, number: int) -> None:
        if (place := place_of(self._names, name)) is None:
            self._others[name] = number
        else:
            self._values[place] = number

    def __delitem__(self, name: str) -> None:
        self[name] = NONE
        self._others.pop(name, None)

    def __len__(self) -> int:
        return int((self._values != NONE).sum()) + len(self._others)

    def __iter__(self) -> Iterator[str]:
        yield from (self._names[place] for place in np.flatnonzero(self._values != NONE).tolist())
        yield from self._others

    def __getitem__(self, name: str) -> int:
        if (place := place_of(self._names, name)) is None:
            return self._others[name]
        if (number := int(self._values[place])) == NONE:
            raise KeyError(name)
        return number

    def __repr__(self) -> str:
        return f"Numbers({len(self)} of {plural(len(self._names), 'client')})"

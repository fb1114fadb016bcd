"""`Population`: many clients whose rows are loaded only when they are asked, and `Names`, which are
written only when they are read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesfed.data.dataset import Dataset
from bayesfed.errors import ArgumentError, DataError
from bayesfed.errors.checks import shown
from bayesfed.errors.plurals import plural


class Names(Sequence[str]):
    """The names ``client-000``, ``client-001``, ..., as `federate` numbers clients. No name is
    kept.

    Parameters
    ----------
    count
        Number of names. All have as many digits as the last one, at least three, so that they are
        in the order of their numbers.
    """

    def __init__(self, count: int) -> None:
        self._count, self._name = count, f"client-%0{max(3, len(str(count - 1)))}d".__mod__

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return tuple(self._name(number) for number in range(self._count)[place])
        return self._name(range(self._count)[place])

    def __iter__(self) -> Iterator[str]:
        return map(self._name, range(self._count))

    def place(self, name: str) -> int | None:
        """Return the place of a name, or None."""
        digits = name.removeprefix("client-")
        number = (
            int(digits)
            if len(digits) < 20 and digits.isascii() and digits.isdigit()
            else self._count
        )
        return number if number < self._count and self._name(number) == name else None


def place_of(names: Sequence[str], name: object) -> int | None:
    """Return the place of a name in sorted names, or None."""
    if not isinstance(name, str):
        return None
    if isinstance(names, Names):
        return names.place(name)
    place = bisect_left(names, name)
    return place if place < len(names) and names[place] == name else None


class Population(Mapping[str, Dataset]):
    """Clients by name, whose rows are loaded when they are asked and not before:
    ``population["client-000012"]`` calls `load`.

    It is given to `run` or `InProcess` in place of a mapping of data sets, and gives the same bits
    as the mapping of the same clients. Loaded rows are not kept. Where loading takes long, keep
    some: ``load=functools.lru_cache(1000)(load)``.

    Parameters
    ----------
    names
        Names of the clients, or their number: they are then called ``client-000`` and so on, with
        as many digits as the last one needs.
    samples
        Number of rows of each client: by name, or in the order of `names`, or one number for all.
    load
        ``(name) -> data set`` with as many rows as `samples` says, the same rows at every call.

    Raises
    ------
    ArgumentError
        If there is no client, a name is given twice, or there is not one number of rows, from 0,
        for each client.
    DataError, ArgumentError
        From ``population[name]``, if `load` returns something else than a data set with the
        promised number of rows, or its classes have other names than those of a client before.

    Examples
    --------
    >>> sizes = bf.data.power_law(1_000_000, bf.Key(0, "sizes"), most=500)
    >>> load = lambda name: read(folder / f"{name}.npz")
    >>> population = bf.data.Population(1_000_000, sizes, load=load)
    >>> bf.run(algorithm, population, rounds=100, sampler=bf.fraction(1e-4), records="records")
    """

    # Two populations would be compared by loading every client.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __init__(
        self, names: Sequence[str] | int, samples: Any, load: Callable[[str], Dataset]
    ) -> None:
        if not callable(load):
            raise ArgumentError(
                "Population, load",
                "a function (name) -> data set",
                shown(load),
                "lambda name: Dataset(...)",
            )
        given = Names(names) if isinstance(names, int) and not isinstance(names, bool) else names
        if isinstance(given, str) or not isinstance(given, Sequence) or not len(given):
            raise ArgumentError(
                "Population, names",
                "a number of clients, or their names",
                shown(names),
                "1_000_000",
            )
        rows = _rows(samples, given)
        if isinstance(given, Names):
            self._names: Sequence[str] = given
        else:
            self._names, rows = _sorted(given, rows)
        rows.setflags(write=False)
        self._samples, self._load = rows, load
        # The client with the longest list of classes of all that were loaded.
        self._named = dict[str, Dataset]()

    @property
    def names(self) -> Sequence[str]:
        """Names of the clients in their order."""
        return self._names

    @property
    def samples(self) -> NDArray[np.int64]:
        """Number of rows of each client ``(K,)``, in the order of the names."""
        return self._samples

    def part(self, places: Sequence[int]) -> Population:
        """Return the population of the clients at these places of `names`."""
        chosen = np.asarray(sorted(places), dtype=np.int64)
        return Population(
            [self._names[place] for place in chosen.tolist()], self._samples[chosen], self._load
        )

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __contains__(self, name: object) -> bool:
        return place_of(self._names, name) is not None

    def __getitem__(self, name: str) -> Dataset:
        if (place := place_of(self._names, name)) is None:
            raise KeyError(name)
        data, rows = self._load(name), int(self._samples[place])
        if not isinstance(data, Dataset) or len(data) != rows:
            raise DataError(
                f"Population, client {name!r}",
                f"a Dataset of {plural(rows, 'row')}",
                f"{plural(len(data), 'row')}" if isinstance(data, Dataset) else shown(data),
                "a load that returns one, and samples that count its rows",
            )
        check_classes("Population", self._named, {name: data})
        if data.classes > next((one.classes for one in self._named.values()), ()):
            self._named = {name: data[:0]}
        return data

    def __repr__(self) -> str:
        rows = plural(int(self._samples.sum()), "row", ",")
        return f"Population({plural(len(self), 'client')}, {rows})"


def _rows(samples: Any, names: Sequence[str]) -> NDArray[np.int64]:
    if isinstance(samples, Mapping):
        if missing := [name for name in names if name not in samples][:3]:
            raise ArgumentError(
                "Population, samples", "one for each name", f"none for {missing}", "{name: 16, ...}"
            )
        samples = [samples[name] for name in names]
    try:
        rows = np.asarray(samples)
        rows = np.full(len(names), rows) if rows.ndim == 0 else rows
        sound = rows.dtype.kind in "iu" and rows.shape == (len(names),) and int(rows.min()) >= 0
    except (TypeError, ValueError):
        sound = False
    if not sound:
        raise ArgumentError(
            "Population, samples",
            f"{len(names)} whole numbers from 0, or one for all",
            shown(samples),
            "[len(rows[name]) for name in names]",
        )
    return rows.astype(np.int64)


def _sorted(
    names: Sequence[str], rows: NDArray[np.int64]
) -> tuple[Sequence[str], NDArray[np.int64]]:
    """Return names in their order, and numbers of rows in the same order."""
    check_names("Population, names", names)
    if not all(before < after for before, after in pairwise(names)):
        order = sorted(range(len(names)), key=names.__getitem__)
        names, rows = [names[place] for place in order], rows[order]
        if twice := [name for name, after in pairwise(names) if name == after][:3]:
            raise ArgumentError(
                "Population, names", "distinct names", f"twice {twice}", "sorted(set(names))"
            )
    return tuple(names), rows


def check_names(where: str, names: Iterable[object]) -> None:
    """Raise `ArgumentError` unless names of clients are texts that UTF-8 can write."""
    for name in names:
        # Half of a surrogate pair, as a file system's names that cannot be decoded have it.
        if not isinstance(name, str) or any("\ud800" <= one <= "\udfff" for one in name):
            hint = "[f'{number:07d}' for number in ...]"
            raise ArgumentError(where, "names that are texts", ascii(name), hint)


def check_classes(where: str, *sets: Mapping[str, Dataset] | None) -> None:
    """Check that class numbers mean the same in all data sets that name their classes: of two
    lists of names one must begin with the other. A population is not loaded for this; it compares
    what it loads.

    Raises
    ------
    ArgumentError
        If they do not; the message names two data sets and their lists.
    """
    known = [
        (name, data.classes)
        for named in sets
        if named and not isinstance(named, Population)
        for name, data in named.items()
        if data.classes
    ]
    most, longest = max(known, key=lambda one: len(one[1]), default=("", ()))
    for name, classes in known:
        if classes != longest[: len(classes)]:
            actual = f"{name!r} with {_some(classes)}, {most!r} with {_some(longest)}"
            every = sorted({label for _, labels in known for label in labels})
            hint = f"classes={_some(every)} when reading each of them"
            raise ArgumentError(where, "class numbers that mean the same", actual, hint)


def _some(names: Sequence[str]) -> str:
    return f"({', '.join(map(repr, names[:20]))}{', ...' if len(names) > 20 else ''})"

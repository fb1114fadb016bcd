"""Settings of an algorithm as a flat table, read off the values that it is made of."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor, nn

from bayesfed.federated import Algorithm
from bayesfed.keys import Key

Setting = bool | int | float | str
"""Value of a setting, as every tracker takes it."""
# Parts that are nested deeper, and the parts of larger collections, are left out.
DEPTH, PARTS = 8, 8


def settings_of(algorithm: Algorithm) -> dict[str, Setting]:
    """Return the settings of an algorithm: numbers, words and the names of parts, by their paths.

    The local step, server and link of every phase are read. Tensors, networks, keys (noise that
    protects clients is drawn from one) and large collections are left out. A part that is used in
    two places is described in the first.

    Parameters
    ----------
    algorithm
        Any algorithm.

    Returns
    -------
    dict
        For example ``{"algorithm": "fed_avg", "train.local": "Descent", "train.local.steps": 50,
        "train.local.optimiser": "Sgd", ...}``.
    """
    settings: dict[str, Setting] = {"algorithm": algorithm.name}
    seen: set[int] = set()
    for phase in algorithm.phases:
        for part in ("local", "server", "link"):
            settings |= _read(f"{phase.name}.{part}", getattr(phase, part), DEPTH, seen)
        for layer in phase.layers:
            settings |= _read(f"{phase.name}.layers.{layer.owner}", layer, DEPTH, seen)
    return settings


def _read(path: str, value: object, depth: int, seen: set[int]) -> Iterator[tuple[str, Setting]]:
    if _is_plain(value):
        yield path, value  # type: ignore[misc]
    elif isinstance(value, tuple | list) and value and all(map(_is_plain, value)):
        yield path, ", ".join(map(str, value))
    elif depth == 0 or isinstance(value, Tensor | nn.Module | Key):
        return
    elif inspect.isroutine(value) or inspect.isclass(value):
        yield path, _name(value)
    else:
        parts = _parts(value)
        if parts is None:
            return
        if not isinstance(value, Mapping | tuple | list):
            yield path, _name(value.func if isinstance(value, functools.partial) else type(value))
        if id(value) not in seen:
            seen.add(id(value))
            for name, one in parts.items():
                yield from _read(f"{path}.{name}", one, depth - 1, seen)


def _parts(value: object) -> Mapping[Any, object] | None:
    """Return the parts of a value by name; None if its parts are not settings."""
    if isinstance(value, functools.partial):
        return value.keywords
    if isinstance(value, Mapping | tuple | list):
        parts = value if isinstance(value, Mapping) else dict(enumerate(value))
        return parts if len(parts) <= PARTS else None
    return (
        {field.name: getattr(value, field.name) for field in fields(value)}
        if is_dataclass(value)
        else None
    )


def _is_plain(value: object) -> bool:
    return isinstance(value, bool | int | float | str)


def _name(value: Any) -> str:
    """Return the name of a class or function. A function that another one made has that one's name:
    ``cosine``.
    """
    return str(value.__qualname__).partition(".<locals>")[0]

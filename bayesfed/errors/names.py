"""Names that a package or a table does not have: the error has the nearest of those that it has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import lazy_loader

from bayesfed.errors import NoNameError
from bayesfed.errors.nearness import nearest

Value = TypeVar("Value")


class Named(dict[str, Value]):
    """A dictionary whose error of a name that it lacks has the nearest that it has."""

    def __missing__(self, name: object) -> Value:
        known = [*self]
        near = nearest(str(name), known) or (known or ["a run that is finished"])[0]
        raise NoNameError("posterior", f"one of {known}", repr(name), repr(near) if known else near)


def no_name(package: str, name: str, names: Sequence[str]) -> AttributeError:
    """Return the error of a name that a package does not have."""
    # Not by the error's own suggestion, which would miss names that differ in underscores and
    # capitals.
    near = nearest(name, names, 3)
    meant = f"; did you mean {near}?" if near else ";"
    return AttributeError(
        f"module {package!r} has no attribute {name!r}{meant} It has {', '.join(names)}"
    )


def attached(
    package: str, file: str
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a package that loads the names of the
    `.pyi` beside it when they are first used.
    """
    load, listed, names = lazy_loader.attach_stub(package, file)

    def get(name: str) -> object:
        if name in names:
            return load(name)
        raise no_name(package, name, names)

    return get, listed, names

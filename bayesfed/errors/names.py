"""Names that a package does not have: its error has the nearest of those that it has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches

import lazy_loader


def no_name(package: str, name: str, names: Sequence[str]) -> AttributeError:
    """Return the error of a name that a package does not have."""
    # Not by the error's own suggestion, which would miss names that differ in underscores and
    # capitals.
    alike = {one.lower().replace("_", ""): one for one in names}
    near = [alike[one] for one in get_close_matches(name.lower().replace("_", ""), alike)]
    nearest = f"; did you mean {' or '.join(near)}?" if near else ";"
    return AttributeError(
        f"module {package!r} has no attribute {name!r}{nearest} It has {', '.join(names)}"
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

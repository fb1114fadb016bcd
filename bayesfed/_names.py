"""The names on `bayesfed`: those of its list, `__init__.pyi`, and the rooms."""

from __future__ import annotations

import ast
from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import lazy_loader


def attached(
    package: str, file: str
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of the package whose file is given. A
    method is listed once, in `algorithms/__init__.pyi`.
    """
    folder = Path(file).parent
    rooms = [room.name for room in iter_modules([str(folder)]) if not room.name.startswith("_")]
    homes: dict[str, list[str]] = {"algorithms": import_module(f"{package}.algorithms").__all__}
    for line in ast.parse((folder / "__init__.pyi").read_text(encoding="utf-8")).body:
        if isinstance(line, ast.ImportFrom) and line.module != "algorithms":
            homes.setdefault(str(line.module), []).extend(alias.name for alias in line.names)
    load, _, names = lazy_loader.attach(package, submod_attrs=homes)

    def get(name: str) -> object:
        if name in names:
            return load(name)
        if name in rooms:
            return import_module(f"{package}.{name}")
        # Not by the error's own suggestion, which would miss names that differ in underscores and
        # capitals.
        alike = {known.lower().replace("_", ""): known for known in names}
        near = [alike[one] for one in get_close_matches(name.lower().replace("_", ""), alike, n=3)]
        nearest = f"; did you mean {' or '.join(near)}?" if near else ";"
        raise AttributeError(
            f"module {package!r} has no attribute {name!r}{nearest} It has {', '.join(names)}"
        )

    return get, lambda: sorted({*names, *rooms}), names

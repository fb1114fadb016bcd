"""bayesfed: Bayesian models learned over many devices, honest about uncertainty and small on the
wire.

>>> import bayesfed as bf
>>> train, test = bf.digits()
>>> clients = bf.federate(train, bf.dirichlet(train.targets, 10, 0.5, bf.Key(0, "partition")))

Rooms, lowest first: `errors`, `keys`, `trees`; `geometry`, `compress`, `data`, `wireless`;
`models`; `inference`; `federated`; `algorithms`, `inspect`; `running`; `flower`, `testing`, `cli`.
A lower room never imports a higher one.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import lazy_loader

__version__ = "0.2.0"

# Names of `bayesfed.algorithms` that are not names of the package.
INNER = ("Turn", "evaluate_clients", "noise_for", "planned_size")


def _attached() -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__``: the names of `__init__.pyi`, and the
    rooms. A method is listed once, in `algorithms/__init__.pyi`; what a few methods take is one
    level down.
    """
    folder = Path(__file__).parent
    rooms = [room.name for room in iter_modules([str(folder)]) if not room.name.startswith("_")]
    methods = import_module(f"{__name__}.algorithms").__all__
    homes: dict[str, list[str]] = {"algorithms": [one for one in methods if one not in INNER]}
    for line in ast.parse((folder / "__init__.pyi").read_text(encoding="utf-8")).body:
        if isinstance(line, ast.ImportFrom) and line.module != "algorithms":
            homes.setdefault(str(line.module), []).extend(alias.name for alias in line.names)
    load, _, names = lazy_loader.attach(__name__, submod_attrs=homes)

    def get(name: str) -> object:
        if name in names:
            return load(name)
        if name in rooms:
            return import_module(f"{__name__}.{name}")
        if name in INNER:
            raise AttributeError(f"{__name__}.{name} is {__name__}.algorithms.{name}")
        # Not by the error's own suggestion, which would miss names that differ in underscores and
        # capitals.
        alike = {known.lower().replace("_", ""): known for known in names}
        near = [alike[one] for one in get_close_matches(name.lower().replace("_", ""), alike, n=3)]
        nearest = f"; did you mean {' or '.join(near)}?" if near else ";"
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}{nearest} It has {', '.join(names)}"
        )

    return get, lambda: sorted({*names, *rooms}), names


__getattr__, __dir__, __all__ = _attached()

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
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import lazy_loader

from bayesfed.errors.names import no_name

__version__ = "0.3.0"

# Names of `bayesfed.algorithms` that are not names of the package.
INNER = [
    "Factors",
    "Method",
    "Points",
    "Tangents",
    "Turn",
    "epsilon",
    "evaluate_clients",
    "noise_for",
    "planned_size",
]


def _attached() -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__``: the names of `__init__.pyi`, and the
    rooms. A method is listed once, in `algorithms/__init__.pyi`; what a few methods take is one
    level down.
    """
    rooms = [room.name for room in iter_modules(__path__) if not room.name.startswith("_")]
    homes: dict[str, list[str]] = {}
    stub = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
    for line in ast.parse(stub).body:
        if isinstance(line, ast.ImportFrom):
            homes.setdefault(str(line.module), []).extend(alias.name for alias in line.names)
    every = import_module(f"{__name__}.algorithms").__all__
    homes["algorithms"] = [one for one in every if one not in INNER]
    load, listed, known = lazy_loader.attach(__name__, rooms, homes)
    names = [one for one in known if one not in rooms]

    def get(name: str) -> object:
        if name in known:
            return load(name)
        for room in () if name.startswith("_") else rooms:
            if name in vars(load(room)).get("__all__", ()):
                raise AttributeError(f"{__name__}.{name} is {__name__}.{room}.{name}")
        raise no_name(__name__, name, names)

    return get, listed, names


__getattr__, __dir__, __all__ = _attached()

"""bayesfed: Bayesian models learned over many devices, honest about uncertainty and small on the
wire.

>>> import bayesfed as bf
>>> train, test = bf.digits()
>>> clients = bf.federate(train, bf.dirichlet(train.targets, 10, 0.5, bf.Key(0, "partition")))

Rooms, lowest first: `errors`, `keys`, `trees`; `geometry`, `compress`, `data`, `wireless`;
`models`; `inference`; `federated`; `algorithms`, `inspect`; `running`; `flower`, `testing`, `cli`.
A lower room never imports a higher one.
"""

import ast
from difflib import get_close_matches
from pathlib import Path

import lazy_loader

from bayesfed import algorithms

__version__ = "0.2.0"


def _listed() -> dict[str, list[str]]:
    """Return the names of `__init__.pyi` by the room that has them; a method is listed once, in
    `algorithms/__init__.pyi`.
    """
    stub = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    homes: dict[str, list[str]] = {"algorithms": algorithms.__all__}
    for line in stub.body:
        if isinstance(line, ast.ImportFrom) and line.module != "algorithms":
            homes.setdefault(str(line.module), []).extend(alias.name for alias in line.names)
    return homes


# Names are imported at first use.
_load, _, __all__ = lazy_loader.attach(__name__, submod_attrs=_listed())


def __getattr__(name: str) -> object:
    if name not in __all__:
        # Not by the error's own suggestion, which would miss names that differ in underscores and
        # capitals.
        alike = {known.lower().replace("_", ""): known for known in __all__}
        near = [alike[one] for one in get_close_matches(name.lower().replace("_", ""), alike, n=3)]
        nearest = f"; did you mean {' or '.join(near)}?" if near else ""
        raise AttributeError(
            f"module 'bayesfed' has no attribute {name!r}{nearest or ';'} It has "
            f"{', '.join(__all__)}"
        )
    return _load(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

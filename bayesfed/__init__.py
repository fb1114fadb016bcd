"""bayesfed: Bayesian models learned over many devices, honest about uncertainty and small on the wire.

>>> import bayesfed as bf
>>> train, test = bf.digits()
>>> clients = bf.federate(train, bf.dirichlet(train.targets, 10, 0.5, bf.Key(0, "partition")))

Rooms, lowest first: `errors`, `keys`, `trees`, `files`; `geometry`, `compress`, `data`, `wireless`; `models`; `inference`; `federated`;
`algorithms`, `inspect`; `running`; `flower`, `testing`, `cli`. A lower room never imports a higher one.
"""

from pathlib import Path

import lazy_loader

from bayesfed import algorithms

__version__ = "0.1.0"

# Names are imported at first use. A method is listed once, in `algorithms/__init__.pyi`; every other name in `_names.pyi`.
_others, _, _names = lazy_loader.attach_stub(__name__, str(Path(__file__).with_name("_names.pyi")))
_methods = frozenset(algorithms.__all__)
__all__ = sorted({*_names, *_methods})  # noqa: PLE0605


def __getattr__(name: str) -> object:
    if name in _methods:
        return getattr(algorithms, name)
    if name not in _names:
        raise AttributeError(f"module 'bayesfed' has no attribute {name!r}; it has {', '.join(__all__)}")
    return _others(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""Codecs as bytes, to tell a client in another process which codec to use.

A description is a message of the wire format. Its meta holds the codec as JSON, with each object as
``{"is": name, "with": {field: value}}``. The reader has a list of classes and
creates only these, with their own checks of parameters: nothing is imported, unpickled or executed.

A JSON array is a tuple, ``{"pairs": [[key, value], ...]}`` is a dictionary in its order.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from bayesfed.compress.budgets.budgeted import Budgeted, FlexibleMap, Setting
from bayesfed.compress.codecs import Cast, Codec, ErrorFeedback
from bayesfed.compress.coded import Coded
from bayesfed.compress.flexible import Flexible
from bayesfed.compress.lossless.bits import Fixed
from bayesfed.compress.lossless.cheapest import Cheapest
from bayesfed.compress.lossless.golomb import Golomb
from bayesfed.compress.lossless.ranges import Range
from bayesfed.compress.masks.cheapest import CheapestMask
from bayesfed.compress.masks.contexts import ContextMask
from bayesfed.compress.masks.runs import PlainMask, RunMask
from bayesfed.compress.posterior import PosteriorGrid
from bayesfed.compress.quantisers.floats import Exact, Float, Uniform
from bayesfed.compress.quantisers.lattice import Lattice
from bayesfed.compress.quantisers.probabilistic import Probabilistic, Qsgd
from bayesfed.compress.quantisers.sparsify import Kernels, Signs, Sparse, Ternary, TopK
from bayesfed.compress.wire import pack, unpack
from bayesfed.errors import ArgumentError, WireError

# Every codec, leaf codec and code of the package.
SHIPPED: tuple[type, ...] = (
    *(Budgeted, Cast, Coded, ErrorFeedback, Flexible, FlexibleMap, PosteriorGrid, Setting),
    *(Exact, Float, Kernels, Lattice, Probabilistic, Qsgd, Signs, Sparse, Ternary, TopK, Uniform),
    *(Cheapest, Fixed, Golomb, Range),
    *(CheapestMask, ContextMask, PlainMask, RunMask),
)
LIMIT = 1 << 22
DEPTH = 16


def describe(codec: Codec, also: Iterable[type] = ()) -> bytes:
    """Return the description of a codec.

    Parameters
    ----------
    codec
        The codec to describe.
    also
        Your own dataclasses that may occur in it. The reader needs the same ones.

    Raises
    ------
    ArgumentError
        If the codec contains a value that is not an object of these classes, a scalar, a tuple
        or a dictionary.
    """
    text = json.dumps(
        _written(codec, dict.fromkeys((*SHIPPED, *also)), type(codec).__name__),
        separators=(",", ":"),
    )
    return pack({}, {"codec": text})


def described(message: bytes, also: Iterable[type] = ()) -> Codec:
    """Return the codec of a description.

    Parameters
    ----------
    message
        What `describe` returned.
    also
        Your own dataclasses that may occur in it.

    Raises
    ------
    WireError
        If the message is damaged, or names a class that is not on the list or fields that the class
        does not have.
    """
    _, meta = unpack(message, limit=LIMIT)
    known = {kind.__name__: kind for kind in (*SHIPPED, *also)}
    try:
        codec: Codec = _read(json.loads(meta["codec"], parse_constant=_refused), known, DEPTH)
        if not (hasattr(codec, "encode") and hasattr(codec, "decode")):
            raise ValueError(f"{type(codec).__name__} is not a codec of messages")
    except (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        RecursionError,
        OverflowError,
    ) as problem:
        raise WireError(
            "description", "a codec on the list", problem, "a message from describe"
        ) from problem
    return codec


def _written(value: object, known: Mapping[type, None], where: str) -> Any:
    match value:
        case None | bool() | int() | str():
            return value
        case float() if math.isfinite(value):
            return value
        case _ if type(value) in known:
            named = {
                name: _written(getattr(value, name), known, f"{where}.{name}")
                for name in _fields(type(value))
            }
            return {"is": type(value).__name__, "with": named}
        case tuple():
            return [_written(item, known, where) for item in value]
        case Mapping():
            return {
                "pairs": [[_written(item, known, where) for item in pair] for pair in value.items()]
            }
        case _:
            raise ArgumentError(
                where,
                "what can be described",
                repr(value),
                "bayesfed's codecs, or your class in `also` on both sides",
            )


def _read(value: object, known: Mapping[str, type], depth: int) -> Any:
    if not depth:
        raise ValueError(f"objects more than {DEPTH} deep")
    match value:
        case None | bool() | int() | float() | str():
            return value
        case list():
            return tuple(_read(item, known, depth - 1) for item in value)
        case {"pairs": list(pairs), **rest} if not rest:
            return {key: _read(item, known, depth - 1) for key, item in pairs}
        case {"is": str(name), "with": dict(named), **rest} if not rest and name in known:
            if named.keys() != set(_fields(known[name])):
                raise ValueError(f"{name} has fields {_fields(known[name])}, not {sorted(named)}")
            return known[name](
                **{field: _read(item, known, depth - 1) for field, item in named.items()}
            )
        case {"is": str(name), **_rest} if name not in known:
            raise ValueError(f"class {name!r} is not on the list")
        case _:
            raise ValueError(f"{str(value)[:80]!r} is not a value")


def _fields(kind: type) -> list[str]:
    return list(inspect.signature(kind).parameters)


def _refused(text: str) -> None:
    raise ValueError(f"{text} is not a finite number")

"""What a parameter's annotation says of its arguments: whether one fits, and what is expected in
words.

Numbers of NumPy are numbers, a bool is none, and NaN is no number. A protocol is fitted by an
instance that has its members. What says nothing of a value (``Any``, a type variable) is fitted by
everything.
"""

from __future__ import annotations

import collections.abc
import inspect
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, Literal, Union

UNIONS = (Union, types.UnionType)
NUMBERS: Mapping[Any, tuple[type, str]] = {
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
}
MEMBERS_OF_PROTOCOLS = {*dir(typing.Protocol), "__dict__", "__weakref__"}


def annotations_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of a function's parameters, those in strings read where it was
    written; one that its module imports for type checkers only is left out.
    """
    found = {}
    inner = inspect.unwrap(function)
    for name, written in getattr(inner, "__annotations__", {}).items():
        try:
            found[name] = typing.get_type_hints(
                types.SimpleNamespace(__annotations__={name: written}), inner.__globals__
            )[name]
        except NameError:
            continue
    return found


def fits(value: Any, annotation: Any) -> bool:
    """Return whether a value is one of an annotation's."""
    origin, inside = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is None or annotation is type(None):
        return value is None
    if origin in UNIONS:
        return any(fits(value, one) for one in inside)
    if origin is Literal:
        return isinstance(value, str | int) and value in inside
    if annotation in NUMBERS:
        number = isinstance(value, NUMBERS[annotation][0]) and not isinstance(value, bool)
        return number and not math.isnan(value)
    if origin is collections.abc.Callable:
        return callable(value)
    if origin is tuple and inside and inside[-1] is not Ellipsis:
        return (
            isinstance(value, list | tuple)
            and len(value) == len(inside)
            and all(map(fits, value, inside))
        )
    if origin in (tuple, list, Sequence, collections.abc.Iterable):
        return (
            isinstance(value, Sequence)
            and not isinstance(value, str)
            and all(fits(one, inside[0]) for one in value)
        )
    if origin in (dict, Mapping):
        return isinstance(value, Mapping) and all(fits(one, inside[1]) for one in value.values())
    kind = origin or annotation
    if not isinstance(kind, type):
        return True
    if getattr(kind, "_is_protocol", False):
        return not isinstance(value, type) and all(hasattr(value, one) for one in members(kind))
    return isinstance(value, kind)


def members(protocol: type) -> set[str]:
    """Return the names of what a protocol asks for."""
    return {
        name
        for base in protocol.__mro__
        if getattr(base, "_is_protocol", False)
        for name in (*vars(base), *vars(base).get("__annotations__", {}))
    } - MEMBERS_OF_PROTOCOLS


def words_of(annotation: Any) -> str:
    """Return what an annotation expects, in words."""
    origin, inside = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is None or annotation is type(None):
        return "None"
    if origin in UNIONS:
        return " or ".join(dict.fromkeys(map(words_of, inside)))
    if origin is Literal:
        return " or ".join(map(repr, inside))
    if annotation in NUMBERS:
        return NUMBERS[annotation][1]
    if origin is collections.abc.Callable:
        return "a function"
    if origin is tuple and inside and inside[-1] is not Ellipsis:
        return f"({', '.join(map(words_of, inside))})"
    if origin in (tuple, list, Sequence, collections.abc.Iterable):
        return f"a sequence, each {words_of(inside[0])}"
    if origin in (dict, Mapping):
        return f"a mapping, each value {words_of(inside[1])}"
    name = getattr(origin or annotation, "__name__", str(annotation))
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"

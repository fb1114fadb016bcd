"""What an argument must be: a role says it, and an annotation is read as one.

Numbers of NumPy are numbers, a bool is none, and NaN is no number. An instance that has the members
of a protocol fits it. An annotation that says nothing of a value (``Any``, a type variable) is
fitted by everything.
"""

from __future__ import annotations

import collections.abc
import inspect
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Complex, Integral, Real
from typing import Any, Literal, Union

from torch import nn
from typing_extensions import get_protocol_members, is_protocol

from bayesfed.errors.nearness import nearest
from bayesfed.errors.networks import is_network


@dataclass(frozen=True)
class Role:
    """What an argument must be.

    Parameters
    ----------
    fits
        Whether a value can be used.
    expected
        What is expected, in words.
    hint
        What to pass instead.
    words
        The words that fit, of which the nearest is passed instead of one that is like it.
    """

    fits: Callable[[Any], bool]
    expected: str
    hint: str = ""
    words: Sequence[Any] = ()

    def tried(self, value: Any) -> str:
        """Return what to pass instead of a value."""
        known = [word for word in self.words if isinstance(word, str)]
        near = nearest(value, known) if isinstance(value, str) else ""
        return repr(near) if near else self.hint


def annotated(function: Callable[..., Any]) -> dict[str, Role]:
    """Return the roles of a function's parameters by their annotations. Strings are read where the
    function was written; what its module imports for type checkers only is left out.
    """
    inner, found = inspect.unwrap(function), dict[str, Role]()
    for name, parameter in inspect.signature(inner).parameters.items():
        one = types.SimpleNamespace(__annotations__={name: parameter.annotation})
        if parameter.annotation is parameter.empty:
            continue
        try:
            hint = typing.get_type_hints(one, inner.__globals__)[name]
        except NameError:
            continue
        many: Any = {parameter.VAR_POSITIONAL: _sequence, parameter.VAR_KEYWORD: _mapping}
        make = many.get(parameter.kind)
        found[name] = make((hint, hint)) if make else role_of(hint)
    return found


def role_of(annotation: Any) -> Role:
    """Return the role of the values of an annotation."""
    inside = typing.get_args(annotation)
    origin = typing.get_origin(annotation) or annotation
    if origin in FORMS:
        return FORMS[origin](inside)
    if origin is Any or not isinstance(origin, type):
        return Role(lambda value: True, "anything")
    words = an(origin.__name__)
    if not is_protocol(origin):
        return Role(lambda value: isinstance(value, origin), words)
    wanted = get_protocol_members(origin)

    def has_members(value: Any) -> bool:
        # A text has a method `lower`, and so may seem what it is not.
        plain = isinstance(value, type | str | bytes | int | float)
        return not plain and all(hasattr(value, one) for one in wanted)

    return Role(has_members, words)


def takes(function: Callable[..., Any], count: int) -> bool:
    """Return whether a function can be called with so many arguments."""
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:
        # One of C that does not say.
        pass
    return True


def an(name: str) -> str:
    """Return a name with its article."""
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def _union(inside: tuple[Any, ...]) -> Role:
    roles = [role_of(one) for one in inside]
    words = " or ".join(dict.fromkeys(role.expected for role in roles))
    known = tuple(one for role in roles for one in role.words)
    return Role(lambda value: any(role.fits(value) for role in roles), words, words=known)


def _literal(inside: tuple[Any, ...]) -> Role:
    words = "one of " * (len(inside) > 1) + ", ".join(map(repr, inside))
    return Role(lambda value: isinstance(value, str | int) and value in inside, words, "", inside)


def _number(kind: Any, words: str) -> Callable[[tuple[Any, ...]], Role]:
    def fits(value: Any) -> bool:
        number = isinstance(value, kind) and not isinstance(value, bool)
        return number and not math.isnan(float(value))

    return lambda inside: Role(fits, words)


def _tuple(inside: tuple[Any, ...]) -> Role:
    if not inside or inside[-1] is Ellipsis:
        return _sequence(inside)
    roles = [role_of(one) for one in inside]

    def fits(value: Any) -> bool:
        same = isinstance(value, list | tuple) and len(value) == len(roles)
        return same and all(role.fits(one) for role, one in zip(roles, value, strict=True))

    return Role(fits, f"({', '.join(role.expected for role in roles)})")


def _sequence(inside: tuple[Any, ...]) -> Role:
    each = role_of(inside[0] if inside else Any)

    def fits(value: Any) -> bool:
        # Another sequence may load what it holds.
        known = isinstance(value, list | tuple)
        many = isinstance(value, Sequence) and not isinstance(value, str)
        return all(map(each.fits, value)) if known else many

    return Role(fits, f"a sequence, each {each.expected}")


def _mapping(inside: tuple[Any, ...]) -> Role:
    each = role_of(inside[1] if inside else Any)

    def fits(value: Any) -> bool:
        known = isinstance(value, dict)
        return all(map(each.fits, value.values())) if known else isinstance(value, Mapping)

    return Role(fits, f"a mapping, each value {each.expected}")


FORMS: dict[Any, Callable[[tuple[Any, ...]], Role]] = {
    nn.Module: lambda inside: Role(is_network, "a Module"),
    type(None): lambda inside: Role(lambda value: value is None, "None"),
    Union: _union,
    types.UnionType: _union,
    Literal: _literal,
    int: _number(Integral, "a whole number"),
    float: _number(Real, "a number"),
    complex: lambda inside: Role(lambda value: isinstance(value, Complex), "a number"),
    collections.abc.Callable: lambda inside: Role(callable, "a function"),
    tuple: _tuple,
    list: _sequence,
    Sequence: _sequence,
    dict: _mapping,
    Mapping: _mapping,
    # A tensor is a collection to Python.
    collections.abc.Collection: lambda inside: _union((str, list, tuple, set, frozenset, dict)),
}

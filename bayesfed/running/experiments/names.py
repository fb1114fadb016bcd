"""Names that an experiment file may use: the public names of the package, found by what they are or
return.
"""

from __future__ import annotations

import collections.abc
import importlib
import inspect
import pkgutil
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

from typing_extensions import get_protocol_members, is_protocol

import bayesfed

Found = TypeVar("Found")

# Names for authors of methods, which look like recipes and likelihoods and are none.
AUTHORS = frozenset({"compose", "layered", "RowLikelihood"})
ROOMS = (
    "algorithms",
    "wireless",
    "compress",
    "data",
    "federated",
    "geometry",
    "inference",
    "models",
    "data.splits",
)


@cache
def public() -> Mapping[str, Any]:
    """Return every public name of the package and its meaning; names at the top go first, then
    those of the rooms and of their sub-rooms.
    """
    modules = [importlib.import_module(f"bayesfed.{room}") for room in ROOMS]
    modules += [
        importlib.import_module(f"{module.__name__}.{one.name}")
        for module in modules
        for one in pkgutil.iter_modules(getattr(module, "__path__", ()))
        if one.ispkg
    ]
    meanings: dict[str, Any] = {}
    for module in [bayesfed, *modules]:
        meanings = {
            name: getattr(module, name)
            for name in vars(module).get("__all__", ())
            if name not in AUTHORS
        } | meanings
    return meanings


def _first(made_by: Any) -> Any:
    """Return the first overload of a function, which is the one that a file can call, or what was
    given if there are none.
    """
    return (
        next(iter(typing.get_overloads(made_by)), made_by)
        if inspect.isfunction(made_by)
        else made_by
    )


@cache
def hints(made_by: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the types of a callable's parameters, those that can be resolved, and its result's as
    "return".
    """
    try:
        known = typing.get_type_hints(
            made_by.__init__ if inspect.isclass(made_by) else _first(made_by)
        )
    except (NameError, TypeError):
        known = {}
    known = {
        name: one.__bound__ if isinstance(one, TypeVar) else one for name, one in known.items()
    }
    return known | ({"return": made_by} if inspect.isclass(made_by) else {})


@cache
def parameters(made_by: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters that can be given by name, each with its resolved type; without one,
    the type of its default or `object`.
    """
    try:
        listed = inspect.signature(_first(made_by)).parameters.values()
    except (ValueError, TypeError):
        return {}
    known = hints(made_by)

    def resolved(one: inspect.Parameter) -> Any:
        return known.get(
            one.name, type(one.default) if type(one.default) in (bool, int, float, str) else object
        )

    return {
        one.name: one.replace(annotation=resolved(one))
        for one in listed
        if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
    }


def required(made_by: Any) -> list[str]:
    """Return the names of parameters without a default."""
    return [name for name, one in parameters(made_by).items() if one.default is one.empty]


@cache
def makers(wanted: Any) -> Mapping[str, Any]:
    """Return the public names that make a value of a type: classes, functions that return one, and
    functions that are one.
    """
    return {
        name: made_by
        for name, made_by in sorted(public().items())
        if _makes(made_by, wanted) or is_itself(made_by, wanted)
    }


def _makes(made_by: Any, wanted: Any) -> bool:
    if inspect.isclass(made_by):
        return not is_protocol(made_by) and is_a(made_by, wanted)
    kinds = members(hints(made_by).get("return"))
    return inspect.isfunction(made_by) and any(is_a(kind, wanted) for kind in kinds)


def of_parameter(known: Mapping[tuple[str, Any], Found], name: str, hint: Any) -> Found | None:
    """Return what a table has for a parameter of this name and type, or of a union with it; of one
    without a type, what it has for the name.
    """
    kinds = members(hint)
    return next(
        (
            found
            for (one, kind), found in known.items()
            if one == name and (hint is object or kind in kinds)
        ),
        None,
    )


def members(hint: Any) -> tuple[Any, ...]:
    """Return the types of a union, or the type itself."""
    return (
        typing.get_args(hint)
        if typing.get_origin(hint) in (typing.Union, types.UnionType)
        else (hint,)
    )


def is_a(kind: Any, wanted: Any) -> bool:
    """Return whether a type is another, a subclass of it, or has the members of a protocol."""
    if kind is None or kind is Any:
        return False
    if (
        not (inspect.isclass(wanted) and inspect.isclass(kind))
        or typing.get_origin(kind)
        or typing.get_origin(wanted)
    ):
        return bool(kind == wanted)
    return _has_members(kind, wanted) if is_protocol(wanted) else issubclass(kind, wanted)


def fits(value: Any, wanted: Any) -> bool:
    """Return whether a value is of a type."""
    kind, parts = typing.get_origin(wanted) or wanted, typing.get_args(wanted)
    if kind is tuple and isinstance(value, tuple):
        return len(value) == len(parts) and all(map(fits, value, parts))
    return callable(value) if kind is collections.abc.Callable else is_a(type(value), kind)


def shown(hint: Any) -> str:
    """Return the name of a type."""
    inner = ", ".join(map(shown, typing.get_args(hint)))
    return (
        f"({inner})" if typing.get_origin(hint) is tuple else getattr(hint, "__name__", str(hint))
    )


def is_itself(function: Any, wanted: Any) -> bool:
    """Return whether a function is a value of the type ``Callable[[...], ...]``."""
    if (
        not inspect.isfunction(function)
        or typing.get_origin(wanted) is not collections.abc.Callable
    ):
        return False
    given, returned = typing.get_args(wanted)
    if given is ... or returned is Any:
        return False
    known, mine = hints(function), list(parameters(function))
    same = [known.get(name) for name in mine[: len(given)]] == list(given) and is_a(
        known.get("return"), returned
    )
    return same and not {*required(function)} & {*mine[len(given) :]}


def _has_members(kind: type, protocol: Any) -> bool:
    """Return whether a class has the members of a protocol, its methods with parameters of the same
    names.
    """
    mine = {
        *dir(kind),
        *(name for base in kind.__mro__ for name in getattr(base, "__annotations__", {})),
    }
    members = get_protocol_members(protocol)
    methods = [name for name in members if inspect.isfunction(getattr(protocol, name, None))]
    return kind is protocol or (
        members <= mine
        and all(_arguments(kind, name) == _arguments(protocol, name) for name in methods)
    )


def _arguments(kind: Any, name: str) -> list[str]:
    method = getattr(kind, name, None)
    return [*inspect.signature(method).parameters] if inspect.isfunction(method) else []

"""What a file may name: the public names of the package, found by what they are or return. Nothing is ever imported by a name that a file gives."""

from __future__ import annotations

import importlib
import inspect
import typing
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

import bayesfed

# Their `__all__`s are public as well; names of the front door go first.
ROOMS = (
    "algorithms",
    "algorithms.wrappers",
    "algorithms.fed_rlr",
    "wireless",
    "compress",
    "data",
    "federated",
    "geometry",
    "inference",
    "inference.variational.fusion",
    "models",
    "cli.splits",
)


@cache
def public() -> Mapping[str, Any]:
    """Return every public name with what it means."""
    found = {name: getattr(bayesfed, name) for name in vars(bayesfed)["__all__"]}
    for room in ROOMS:
        module = importlib.import_module(f"bayesfed.{room}")
        found = {name: getattr(module, name) for name in getattr(module, "__all__", ())} | found
    return found


@cache
def hints(made_by: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the types of a function's or a class's parameters, those that can be resolved, and "return"."""
    target = made_by.__init__ if inspect.isclass(made_by) else made_by
    try:
        found = typing.get_type_hints(target)
    except (NameError, TypeError):
        found = {}
    found = {name: one.__bound__ if isinstance(one, TypeVar) else one for name, one in found.items()}
    return found | ({"return": made_by} if inspect.isclass(made_by) else {})


@cache
def parameters(made_by: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return what can be given by name, in order; of a protocol's class, nothing."""
    try:
        listed = inspect.signature(made_by).parameters.values()
    except (ValueError, TypeError):
        return {}
    return {one.name: one for one in listed if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)}


def hint_of(made_by: Callable[..., Any], name: str) -> Any:
    """Return a parameter's type; where there is none, that of its default."""
    if name in (known := hints(made_by)):
        return known[name]
    default = parameters(made_by)[name].default
    return type(default) if type(default) in (bool, int, float, str) else object


@cache
def makers(wanted: Any) -> Mapping[str, Any]:
    """Return what makes a value of a type, by name: classes, functions that return one, and functions that are one."""
    return {name: made_by for name, made_by in sorted(public().items()) if _makes(made_by, wanted) or is_itself(made_by, wanted)}


def _makes(made_by: Any, wanted: Any) -> bool:
    if not (inspect.isclass(made_by) or inspect.isfunction(made_by)) or (inspect.isclass(made_by) and _is_protocol(made_by)):
        return False
    made: Any = made_by
    return is_a(hints(made).get("return"), wanted)


def is_a(found: Any, wanted: Any) -> bool:
    """Say whether a type is another, a subclass, or has what a protocol asks for."""
    if found is None or found is Any:
        return False
    if not (inspect.isclass(wanted) and inspect.isclass(found)) or typing.get_origin(found) or typing.get_origin(wanted):
        return bool(found == wanted)
    return _has(found, wanted) if _is_protocol(wanted) else issubclass(found, wanted)


def is_itself(function: Any, wanted: Any) -> bool:
    """Say whether a function is a value of the type ``Callable[[...], ...]``."""
    if not inspect.isfunction(function) or typing.get_origin(wanted) is not typing.get_origin(Callable[..., Any]):
        return False
    given, returned = typing.get_args(wanted)
    if given is ... or returned is Any:
        return False
    mine = parameters(function)
    first, rest = list(mine)[: len(given)], list(mine)[len(given) :]
    known = hints(function)
    same = [known.get(name) for name in first] == list(given) and is_a(known.get("return"), returned)
    return same and all(mine[name].default is not inspect.Parameter.empty for name in rest)


def _is_protocol(made_by: Any) -> bool:
    return bool(getattr(made_by, "_is_protocol", False))


def _has(found: type, protocol: Any) -> bool:
    """Say whether a class has the attributes of a protocol, and its methods with parameters of the same names."""
    if found is protocol:
        return True
    members = {name: value for base in protocol.__mro__ if _is_protocol(base) for name, value in vars(base).items() if _counts(name, value)}
    noted = {name for base in protocol.__mro__ if _is_protocol(base) for name in getattr(base, "__annotations__", {})}
    mine = {*dir(found), *(name for base in found.__mro__ for name in getattr(base, "__annotations__", {}))}
    if not members or not {*members, *noted} <= mine:
        return False
    methods = {name: value for name, value in members.items() if inspect.isfunction(value)}
    return all(_names(value) == _names(getattr(found, name, None)) for name, value in methods.items())


def _counts(name: str, value: Any) -> bool:
    return (not name.startswith("_") or name == "__call__") and (inspect.isfunction(value) or isinstance(value, property))


def _names(method: Any) -> list[str]:
    return [*inspect.signature(method).parameters] if inspect.isfunction(method) else []

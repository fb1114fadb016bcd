"""Types of parameters as pydantic reads them, and the names that a file may give as ``kind`` for
each type.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union, cast

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    TypeAdapter,
    ValidationInfo,
    WithJsonSchema,
    with_config,
)
from pydantic_core import PydanticCustomError
from torch import Tensor, nn
from typing_extensions import TypedDict

from bayesfed.data.partition import Partition
from bayesfed.federated import InProcess
from bayesfed.inference.variational.program import Runs
from bayesfed.keys import Key
from bayesfed.models import BayesianNet, Share
from bayesfed.running.experiments import names
from bayesfed.running.experiments.scope import is_given
from bayesfed.trees import Tree

LISTS = (
    list,
    tuple,
    collections.abc.Sequence,
    collections.abc.Collection,
    collections.abc.Iterable,
)
MAPPINGS = (dict, collections.abc.Mapping)
SCALARS = {bool: StrictBool, int: StrictInt, float: StrictFloat, str: StrictStr}


@dataclass(frozen=True)
class Table:
    """A value that a file names by `kind`, not made yet; `kinds` has what may be named, with the
    type that it is made for.
    """

    raw: str | Mapping[str, Any]
    kinds: Mapping[str, tuple[Any, Any]]


def _path(raw: Any, info: ValidationInfo) -> Any:
    if not isinstance(raw, str):
        raise PydanticCustomError("path", "a path in quotes")
    beside = Path(info.context or "") / Path(raw).expanduser()
    return beside if beside.exists() else raw


def _named(kinds: Mapping[str, tuple[Any, Any]], **more: Any) -> Any:
    def table(raw: Any) -> Table:
        if not isinstance(raw, str | dict):
            raise PydanticCustomError("kind", "one of the kinds")
        return Table(raw, kinds)

    return Annotated[Any, PlainValidator(table), WithJsonSchema({"kinds": list(kinds), **more})]


NONE = Annotated[None, BeforeValidator(lambda raw: None if raw == "none" else raw)]
PATH = Annotated[Any, PlainValidator(_path), WithJsonSchema({"type": "path"})]
ANY = Annotated[Any, WithJsonSchema({"type": "value"})]
# Arguments of the pool that the run makes.
POOL = ("data", "devices", "secrets")
# Parameters that a file writes in another way than by a value of their type: the words for it, and
# the type that reads it.
_NET = ('a network that is built anew from a key, as { kind = "mlp", ... }', str | dict[str, Any])
_SPLIT = (
    'a partition of each domain over clients of its own, as { kind = "iid", clients = 5 }',
    str | dict[str, Any],
)
_GUIDE = (
    'a guide such as "AutoNormal", as text or as { kind = ..., init_scale = ... }',
    str | dict[str, Any],
)
SAID: dict[tuple[str, Any], tuple[str, Any]] = {
    ("sizes", tuple[Share, ...]): (
        "a list of numbers, shares of the network from 1.0 down",
        list[StrictFloat],
    ),
    ("split", Callable[[Tensor, Key], Partition]): _SPLIT,
    ("make", Callable[[Key], nn.Module]): _NET,
    ("model", Runs): ("a Bayesian network, as { prior = ... }", dict[str, Any]),
    ("guide", Runs): _GUIDE,
    ("guide", Callable[[BayesianNet], Runs]): _GUIDE,
    ("pool", dict[str, Any]): ("a table with keys of InProcess", dict[str, Any]),
}


def said(name: str, hint: Any) -> tuple[str, Any] | None:
    """Return the words and the type of a parameter that a file writes in another way."""
    return None if hint is object else names.of_parameter(SAID, name, hint)


def guides() -> dict[str, Any]:
    """Return the guides that a file may name: Pyro's automatic ones, and the package's own."""
    from pyro.infer import autoguide

    kinds = {
        name: one
        for name in autoguide.__all__
        if inspect.isclass(one := getattr(autoguide, name))
        and issubclass(one, autoguide.AutoGuide)
        and {*inspect.signature(one).parameters} >= {"model", "init_scale"}
    }
    return {**kinds, "AutoDelta": autoguide.AutoDelta, "SliceNormal": names.public()["SliceNormal"]}


@cache
def ready() -> frozenset[str]:
    """Return the public names that a file can call: the run knows each required argument, or it is
    made of what can be called.
    """
    found: frozenset[str] = frozenset()
    while (
        more := frozenset(
            name for name, one in names.public().items() if callable(one) and _is_ready(one, found)
        )
    ) != found:
        found = more
    return found


def _is_ready(made_by: Any, found: frozenset[str]) -> bool:
    hints = {name: names.parameters(made_by)[name].annotation for name in names.required(made_by)}
    return all(
        is_given(name, hint) or field(name, hint, found) is not None for name, hint in hints.items()
    )


def options(hint: Any, found: frozenset[str] | None = None) -> dict[str, Any]:
    """Return what a file can name as ``kind`` for this type, by name."""
    if hint in (type(None), Tensor, Tree, Key, object, Any, *SCALARS):
        # A file holds no tensors, whatever returns some; the keys are the run's.
        return {}
    if typing.get_origin(hint) in LISTS and all(
        one in SCALARS for one in typing.get_args(hint) if one is not ...
    ):
        return {}
    made = names.makers(hint)
    if not made and dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return {hint.__name__: hint} if _is_ready(hint, ready() if found is None else found) else {}
    # Networks are made by functions, the classes are layers; and what a function makes is not put
    # together by hand.
    whole = any(inspect.isfunction(made_by) for made_by in made.values())
    made = {
        name: one
        for name, one in made.items()
        if not (inspect.isclass(one) and (hint is nn.Module or (whole and one is hint)))
    }
    return {
        name: one
        for name, one in made.items()
        if name in (ready() if found is None else found) or names.is_itself(one, hint)
    }


def kinds_of(hint: Any, found: frozenset[str] | None = None) -> dict[str, tuple[Any, Any]]:
    """Return what a file can name for a type or a union of types, each with the type that it is
    made for.
    """
    return {
        name: (made_by, one)
        for one in names.members(hint)
        for name, made_by in options(one, found).items()
    }


def field(name: str, hint: Any, found: frozenset[str] | None = None) -> Any:
    """Return the type by which pydantic reads a parameter, or None if no file can write it."""
    if other := said(name, hint):
        more = (
            f": {', '.join(one for one in keys(InProcess) if one not in POOL)}"
            if name == "pool"
            else ""
        )
        return Annotated[other[1], WithJsonSchema({"words": other[0] + more})]
    parts = [NONE] if type(None) in names.members(hint) else []
    parts += [
        plain
        for one in names.members(hint)
        if not (one is str and Path in names.members(hint))
        and (plain := _plain(one, found)) is not None
    ]
    if kinds := kinds_of(hint, found):
        first = {
            one: next(iter(names.parameters(made_by).values()), None)
            for one, (made_by, _) in kinds.items()
        }
        numbers = {
            one: parameter.name
            for one, parameter in first.items()
            if parameter is not None and parameter.annotation is float
        }
        parts.append(_named(kinds, numbers=numbers, whole=Path in names.members(hint)))
    if not [one for one in parts if one is not NONE]:
        return None
    return (
        Annotated[Union[tuple(parts)], Field(union_mode="left_to_right")]  # noqa: UP007
        if len(parts) > 1
        else parts[0]
    )


def _plain(hint: Any, found: frozenset[str] | None) -> Any:  # noqa: PLR0911
    """Return the type by which pydantic reads a value that is not named by ``kind``."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint in (Path, Any):
        return PATH if hint is Path else ANY
    if hint in SCALARS or origin is Literal:
        return SCALARS.get(hint, hint)
    if origin not in (*LISTS, *MAPPINGS) or options(hint, found):
        return None
    if origin in MAPPINGS:
        value = field("", inner[1], found)
        known = inner[0] in (str, int) and value is not None
        return dict.__class_getitem__((inner[0], value)) if known else None
    parts = [field("", one, found) for one in inner if one is not ...]
    if None in parts:
        return None
    if origin is tuple:
        return tuple.__class_getitem__((*parts, ...) if ... in inner else tuple(parts))
    return list[parts[0]]  # type: ignore[valid-type]


def keys(made_by: Any) -> list[str]:
    """Return the keys that a file may give to a function or class."""
    return list(_fields(made_by))


@cache
def _fields(made_by: Any) -> dict[str, Any]:
    read = {name: field(name, one.annotation) for name, one in names.parameters(made_by).items()}
    return {name: one for name, one in read.items() if one is not None}


@cache
def reader_of(made_by: Any, left: tuple[str, ...] = ()) -> TypeAdapter[dict[str, Any]]:
    """Return what checks a table of arguments, without the parameters `left`. Nothing is required:
    the run may know what is not written.
    """
    fields = {name: one for name, one in _fields(made_by).items() if name not in left}
    table = TypedDict("table", fields, total=False)  # type: ignore[misc]
    return TypeAdapter(with_config(ConfigDict(extra="forbid"))(cast(type[dict[str, Any]], table)))


def implied(name: str, hint: Any) -> Any:
    """Return the one callable that makes a value of a type, if the run knows all that it needs;
    else None.
    """
    ways = [made_by for made_by, _ in kinds_of(hint).values()] if not said(name, hint) else []
    known = len(ways) == 1 and all(
        is_given(need, names.parameters(ways[0])[need].annotation)
        for need in names.required(ways[0])
    )
    return ways[0] if known else None

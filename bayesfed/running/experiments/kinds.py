"""What a file may write for a parameter: plain values by its type, and the names that it may give
as ``kind``.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import inspect
import typing
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from torch import Tensor, nn

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
SCALARS = (bool, int, float, str)
# By name: what makes a value, and the type that it is made for.
Kinds = dict[str, tuple[Any, Any]]
# Arguments of the pool that the run makes.
POOL = ("data", "devices", "secrets")
# Parameters that a file writes in another way than by a value of their type: the type that it
# writes, with the words for it.
_NET = 'a network that is built anew from a key, as { kind = "mlp", ... }'
_SPLIT = 'a partition of each domain over clients of its own, as { kind = "iid", clients = 5 }'
_GUIDE = 'a guide such as "AutoNormal", as text or as { kind = ..., init_scale = ... }'
_SIZES = "a list of numbers, shares of the network from 1.0 down"
_SAID: dict[tuple[str, Any], Any] = {
    ("sizes", tuple[Share, ...]): Annotated[list[float], _SIZES],
    ("split", Callable[[Tensor, Key], Partition]): Annotated[str | dict[str, Any], _SPLIT],
    ("make", Callable[[Key], nn.Module]): Annotated[str | dict[str, Any], _NET],
    ("model", Runs): Annotated[BayesianNet, "a Bayesian network, as { prior = ... }"],
    # The table is that of a class.
    ("pool", dict[str, Any]): Annotated[dict[str, Any], InProcess],
    ("guide", Runs): Annotated[str | dict[str, Any], _GUIDE],
    ("guide", Callable[[BayesianNet], Runs]): Annotated[str | dict[str, Any], _GUIDE],
}


def said(name: str, hint: Any) -> Any:
    """Return the type, with words for it, by which a file writes a parameter that it writes in
    another way; None for all others.
    """
    return None if hint is object else names.of_parameter(_SAID, name, hint)


def guides() -> Kinds:
    """Return the guides that a file may name: Pyro's automatic ones, and the package's own."""
    from pyro.infer import autoguide

    kinds = {
        name: (one, object)
        for name in autoguide.__all__
        if {*names.parameters(one := getattr(autoguide, name))} >= {"model", "init_scale"}
    }
    own = (names.public()["SliceNormal"], object)
    return {**kinds, "SliceNormal": own}


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
        is_given(name, hint) or said(name, hint) or forms(hint, found)
        for name, hint in hints.items()
    )


def options(hint: Any, found: frozenset[str] | None = None) -> dict[str, Any]:
    """Return what a file can name as ``kind`` for this type, by name."""
    found = ready() if found is None else found
    if hint in (type(None), Tensor, Tree, Key, object, Any, *SCALARS):
        # A file holds no tensors, whatever returns some; the keys are the run's.
        return {}
    if typing.get_origin(hint) in LISTS and all(
        one in SCALARS for one in typing.get_args(hint) if one is not ...
    ):
        return {}
    made = names.makers(hint)
    if not made and dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return {hint.__name__: hint} if _is_ready(hint, found) else {}
    # Networks are made by functions, the classes are layers; and what a function makes is not put
    # together by hand.
    whole = any(inspect.isfunction(made_by) for made_by in made.values())
    return {
        name: one
        for name, one in made.items()
        if not (inspect.isclass(one) and (hint is nn.Module or (whole and one is hint)))
        and (name in found or names.is_itself(one, hint))
    }


def kinds_of(hint: Any, found: frozenset[str] | None = None) -> Kinds:
    """Return what a file can name for a type or a union of types, each with the type that it is
    made for.
    """
    return {
        name: (made_by, one)
        for one in names.members(hint)
        for name, made_by in options(one, found).items()
    }


def forms(hint: Any, found: frozenset[str] | None = None) -> list[Any]:
    """Return what a file can write for a type or a union of types: the plain types among them, and
    the table of what it can name as ``kind``; nothing if no file can write it.
    """
    if typing.get_origin(hint) is Annotated:
        hint = typing.get_args(hint)[0]
    one_of = names.members(hint)
    plain = [
        one for one in one_of if _is_plain(one, found) and (one is not str or Path not in one_of)
    ]
    kinds = kinds_of(hint, found)
    return [*plain, kinds] if kinds else plain


def _is_plain(hint: Any, found: frozenset[str] | None) -> bool:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint in (Path, Any, *SCALARS) or origin is Literal:
        return True
    if origin not in (*LISTS, *MAPPINGS) or options(hint, found):
        return False
    if origin in MAPPINGS and inner[0] not in (str, int):
        return False
    return all(forms(one, found) for one in inner if one is not ...)


@cache
def keys(made_by: Any) -> Mapping[str, Any]:
    """Return the keys that a file may give to a function or class, each with the type that it
    writes.
    """
    types = {
        name: said(name, one.annotation) or one.annotation
        for name, one in names.parameters(made_by).items()
    }
    return {name: hint for name, hint in types.items() if forms(hint)}


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

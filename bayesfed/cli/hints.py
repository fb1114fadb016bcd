"""Types of parameters: whether a file can write a value of one, and how to say in words what is wanted."""

from __future__ import annotations

import collections.abc
import inspect
import types
import typing
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union

from torch import Tensor, nn

from bayesfed.cli import names
from bayesfed.cli.adapters import adapter, is_given
from bayesfed.keys import Key
from bayesfed.trees import Tree

LISTS = (list, tuple, collections.abc.Sequence, collections.abc.Collection, collections.abc.Iterable)
MAPPINGS = (dict, collections.abc.Mapping)
_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text in quotes", Path: "a path in quotes", type(None): '"none"'}


def members(hint: Any) -> tuple[Any, ...]:
    """Return the types of a union, or the type itself."""
    return typing.get_args(hint) if typing.get_origin(hint) in (Union, types.UnionType) else (hint,)


def required(made_by: Any) -> list[str]:
    """Return the names of parameters without a default."""
    return [name for name, one in names.parameters(made_by).items() if one.default is inspect.Parameter.empty]


@cache
def ready() -> frozenset[str]:
    """Return the public names that a file can call: each required argument is known to the run, or made of what can be called."""
    found: frozenset[str] = frozenset()
    while True:
        more = frozenset(name for name, made_by in names.public().items() if callable(made_by) and _ready(made_by, found))
        if more == found:
            return found
        found = more


def _ready(made_by: Any, found: frozenset[str]) -> bool:
    hints = {name: names.hint_of(made_by, name) for name in required(made_by)}
    return all(is_given(name, hint) or adapter(name, hint) or _any(hint, found) for name, hint in hints.items())


def _any(hint: Any, found: frozenset[str]) -> bool:
    return any(_writable(one, found) for one in members(hint))


def _writable(hint: Any, found: frozenset[str]) -> bool:
    origin, inner = typing.get_origin(hint), [one for one in typing.get_args(hint) if one is not ...]
    if origin is Literal or hint in (bool, int, float, str, Path):
        return True
    if origin in LISTS and inner and all(_any(one, found) for one in inner):
        return True
    if origin in MAPPINGS and inner[0] in (str, int) and _any(inner[1], found):
        return True
    return bool(_options(hint, found))


def _options(hint: Any, found: frozenset[str]) -> dict[str, Any]:
    # A file holds no tensors, whatever returns some; keys are the run's; of a type that cannot be resolved everything is one.
    if hint in (type(None), Tensor, Tree, Key, object, Any) or (hint in _WORDS and hint is not Path):
        return {}
    if typing.get_origin(hint) in LISTS and all(one in _WORDS for one in typing.get_args(hint) if one is not ...):
        return {}
    made = names.makers(hint)
    # Networks are made by functions, the classes are layers; and what a function makes is not put together by hand.
    whole = any(inspect.isfunction(made_by) for made_by in made.values())
    made = {name: one for name, one in made.items() if not (inspect.isclass(one) and (hint is nn.Module or (whole and one is hint)))}
    return {name: one for name, one in made.items() if name in found or names.is_itself(one, hint)}


@cache
def options(hint: Any) -> dict[str, Any]:
    """Return what a file can name as ``kind`` for this type, by name."""
    return _options(hint, ready())


def writable(name: str, hint: Any) -> bool:
    """Say whether a file can give a parameter of this name and type."""
    return adapter(name, hint) is not None or _any(hint, ready())


def keys(made_by: Any) -> list[str]:
    """Return the keys that a file may give to a function or class."""
    return [name for name in names.parameters(made_by) if writable(name, names.hint_of(made_by, name))]


def words(hint: Any, *, name: str = "", short: bool = False) -> str:
    """Say what a value of this type looks like in a file."""
    if name and (found := adapter(name, hint)):
        return found.words
    parts: list[str] = []
    for one in members(hint):
        if one is type(None):
            continue
        parts += [text for text in [_words(one, short)] if text and text not in parts]
    return " or ".join(parts) or "a Python value"


def _words(hint: Any, short: bool) -> str:  # noqa: PLR0911
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Path:
        return " or ".join([_WORDS[Path], *(f'{{ kind = "{one}" }}' for one in options(Path))])
    if hint in _WORDS:
        return _WORDS[hint]
    if origin is Literal:
        return "one of " + ", ".join(f'"{one}"' for one in inner)
    if origin in LISTS and (made := options(hint)):
        return _named(made, short)
    if origin is tuple and ... not in inner:
        return f"a list of {len(inner)}: " + ", ".join(words(one, short=short) for one in inner)
    if origin in LISTS:
        return f"a list, each {words(inner[0], short=short)}"
    if origin in MAPPINGS and inner[0] in (str, int) and inner[1] is not Any and not options(hint):
        return f"a table of names, each {words(inner[1], short=short)}"
    return _named(options(hint), short)


def _named(found: dict[str, Any], short: bool) -> str:
    if not found:
        return ""
    listed = ", ".join(f'"{one}"' for one in found)
    if len(found) == 1 and not short:
        return f"a table with the keys of {next(iter(found))}"
    return f"one of {listed}" if short else f"one of {listed}, as text or as {{ kind = ..., ... }}"

"""What hints and cases are made of: the names that a hint may use, built when first used."""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import importlib
import inspect
import math
import pkgutil
import re
import resource
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import networkx as nx
import numpy as np
import pyro
import torch
from torch import nn

import bayesfed as bf
from tests.house.wrong_calls import given
from tests.support.doors.given import BY_NAME
from tests.support.recipes import planner

# Words between the expressions of a hint, and before words that explain one.
BETWEEN = re.compile(r",? or (?:an? )?|, and |, |; | \(| for | in place of | as | where | of ")
FIXTURES: Mapping[str, Callable[[], Any]] = {
    **BY_NAME,
    "key": lambda: given.KEY,
    "net": given.net,
    "data": lambda: given.DATA,
    "train": lambda: given.DATA,
    "test": lambda: given.TEST,
    "public": lambda: given.DATA,
    "inputs": lambda: given.DATA.inputs,
    "array": given.DATA.inputs.numpy,
    "targets": lambda: given.DATA.targets,
    "labels": lambda: given.DATA.targets,
    "example": lambda: given.DATA[:2],
    "clients": lambda: given.CLIENTS,
    "algorithm": given.avg,
    "result": given.done,
    "rounds": lambda: 10,
    "shape": lambda: (3, 3),
    "graph": given.grid,
    "model": lambda: given.line,
    "svi": given.svi,
    "K": lambda: 2,
    "parts": lambda: bf.iid(len(given.DATA), 2, given.KEY),
}


# What a call without its arguments gives, where no fixture has their names.
FILLED: Mapping[str, Callable[[], Any]] = {
    "shrunk_shares": lambda: list(planner().sizes),
    "iid": lambda: bf.iid(len(given.DATA), 2, given.KEY),
}
MODULES = {"bf": bf, "torch": torch, "np": np, "math": math, "nn": nn, "pyro": pyro, "nx": nx}


@functools.cache
def _rooms() -> tuple[Any, ...]:
    """Return the package and its folders, in whose `.pyi` a name may be."""
    found = [
        importlib.import_module(one.name)
        for one in pkgutil.walk_packages(bf.__path__, "bayesfed.")
        if one.ispkg and ".flower" not in one.name
    ]
    return (bf, bf.trees, *found, pyro.infer, pyro.distributions, nn)


class World(dict[str, Any]):
    """Names by what they stand for: a fixture, a public name of the package, of torch, of math."""

    def __missing__(self, name: str) -> Any:
        if name in FIXTURES:
            return FIXTURES[name]()
        if name in MODULES:
            return MODULES[name]
        for room in _rooms():
            with contextlib.suppress(AttributeError):
                return getattr(room, name)
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        try:
            self[str(name)]
        except KeyError:
            return False
        return True


class Filled(ast.NodeTransformer):
    """Fills what a hint leaves out: `f(...)` gets what it needs, `[x, ...]` is `[x]`."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if any(isinstance(one, ast.Constant) and one.value is ... for one in node.args):
            kept = [ast.unparse(one) for one in node.keywords]
            made = f"filled({ast.unparse(node.func)}{''.join(f', {one}' for one in kept)})"
            return ast.parse(made, mode="eval").body
        return node

    def visit_List(self, node: ast.List) -> ast.AST:
        self.generic_visit(node)
        node.elts = [
            one for one in node.elts if not (isinstance(one, ast.Constant) and one.value is ...)
        ]
        return node


def filled(function: Callable[..., Any], **said: Any) -> Any:
    """Call a function with the arguments that it needs, and those that are said."""
    if function.__name__ in FILLED:
        return FILLED[function.__name__]()
    parameters = inspect.signature(function).parameters.values()
    needed = {one.name for one in parameters if one.default is one.empty} - said.keys()
    return function(**{name: World()[name] for name in needed}, **said)


def evaluated(hint: str, names: Mapping[str, Any] | None = None) -> list[tuple[str, Any]]:
    """Return the expressions of a hint and their values; of `name=value` the value. A single word
    that names nothing is a word that explains. `names` come before those of `World`.
    """
    found, world = [], World({**(names or {}), "filled": filled})
    for text in _expressions(hint):
        if text.isidentifier() and not hasattr(builtins, text) and text not in world:
            continue
        tree = Filled().visit(ast.parse(text, mode="eval"))
        code = compile(ast.fix_missing_locations(tree), "hint", "eval")
        # As globals, which comprehensions see too.
        found.append((text, eval(code, world)))
    return found


def _expressions(hint: str) -> Iterator[str]:
    """Yield the parts of a hint that can be parsed: the longest from each break to a later one."""
    starts = [0, *(match.end() for match in BETWEEN.finditer(hint))]
    ends = [*(match.start() for match in BETWEEN.finditer(hint)), len(hint)]
    after = 0
    for start in starts:
        for end in reversed(ends):
            text = _parsed(hint[start:end].strip()) if start >= after and end > start else ""
            if text:
                yield text
                after = end
                break


def _parsed(text: str) -> str:
    """Return an expression, or the value of `name=value`; empty for other words."""
    keyword = re.match(r"\w+ ?= ?(?!=)", text)
    rest = text[keyword.end() :] if keyword else text
    try:
        node = ast.parse(rest, mode="eval").body
    except SyntaxError:
        return ""
    # A comma at this level lists several values to try.
    return "" if isinstance(node, ast.Tuple) and not rest.startswith("(") else rest


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """Let no file grow inside the block: what writes is told that the file is too large."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

"""The fingerprint of an experiment: digests, by name, of the parts of a method that server and
clients must share.

A part is described by what it computes: numbers, words, tensors (their bytes), fields of
dataclasses, attributes of objects, architectures of networks with the values of their frozen
parameters, and the source text of a user's functions and classes with their default arguments, what
they close over, and the helper functions and constants that they use. Code of installed libraries
that this package builds on counts by its name; this package's own by its version. Of the state, of
first values and of rows only names, shapes and types count: values of a server travel, and rows
must not, nor their digests.

Nothing of it depends on the order of hashes, on addresses, on bytecode or on the process. Python
floats count with ten digits, since means of columns may differ in their last bits between machines.
"""

from __future__ import annotations

import ast
import dis
import enum
import functools
import inspect
import json
import math
import re
import sys
import textwrap
import types
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from hashlib import blake2b
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bayesfed import __version__
from bayesfed.data import Dataset
from bayesfed.errors import ArgumentError
from bayesfed.federated import Algorithm
from bayesfed.keys import Key

# Packages whose code counts by its name alone.
LIBRARIES = frozenset(sys.stdlib_module_names) | {
    *("bayesfed", "torch", "torchvision", "torchaudio", "pyro", "numpy", "scipy", "pandas"),
    *("networkx", "opt_einsum", "formulae", "xarray", "arviz", "safetensors", "transformers"),
    *("tokenizers", "peft", "sklearn", "pydantic", "cloudpickle", "tqdm", "matplotlib"),
    *("laplace", "flwr"),
}
LIBRARIES -= {"__main__"}
OWN = "bayesfed"
# Most parts that a letter names, and most that a value inside of another is split into.
MOST_PARTS, MOST_INSIDE = 128, 48
# Longest name of a part.
LONGEST_NAME = 150
# Deepest nesting of values.
DEPTH = 60
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
# Attributes of every network, and of Pyro's, which are described otherwise or change with use.
OF_NETWORKS = frozenset(vars(nn.Module())) | {"_pyro_name", "_pyro_context", "_pyro_params"}
HOOKS = ("_forward_hooks", "_forward_pre_hooks")
# Buffers that are counted while a network trains.
COUNTED = ("running_mean", "running_var", "num_batches_tracked")
# What no result depends on, or what follows from the rest.
PASSED_OVER = (weakref.ref, weakref.WeakKeyDictionary, weakref.WeakValueDictionary)
Path = tuple[str, ...]
Entries = dict[Path, str]


def parts_of(algorithm: Algorithm, codecs: Iterable[type] = ()) -> dict[str, str]:
    """Return a digest of each part of an algorithm by its name, such as
    ``regression.design.formula`` or ``train.local.steps``; sorted by name.

    Parameters
    ----------
    algorithm
        The algorithm.
    codecs
        Classes of one's own among the codecs.

    Raises
    ------
    ArgumentError
        If the source text of a function or class of one's own cannot be read.
    """
    described = _Description()
    entries: Entries = {("bayesfed",): __version__, ("algorithm",): algorithm.name}
    entries[("state",)] = " ".join(
        f"{name} {leaf.dtype} {tuple(leaf.shape)}"
        for name, leaf in sorted(algorithm.initial.items())
    )
    entries[("phases",)] = ", ".join(phase.name for phase in algorithm.phases)
    whole: dict[Path, object] = {(name,): value for name, value in algorithm.origin.items()}
    for phase in algorithm.phases:
        for name in ("assign", "local", "server", "link", "reducer", "owner"):
            whole[phase.name, name] = getattr(phase, name)
        for layer in phase.layers:
            whole[phase.name, "layers", layer.owner] = layer
        whole[phase.name, "layers"] = [layer.owner for layer in phase.layers]
    whole["codecs",] = list(codecs)
    for path, value in whole.items():
        entries |= _below(path, described.of(value))
    limited = _limited(entries, MOST_PARTS)
    named = ((".".join(path), text) for path, text in sorted(limited.items()))
    return {_short(name): _digest(text) for name, text in named}


def digest_of(parts: Mapping[str, str]) -> str:
    """Return the digest of all parts."""
    return _digest(json.dumps(sorted(parts.items())))


def differing(here: Mapping[str, str], there: Mapping[str, str]) -> list[str]:
    """Return the names of the parts that differ, those that say most first: a regression's formula
    before what was made of it, and none inside of a part that is another one.
    """
    names = {name for name in here.keys() | there.keys() if here.get(name) != there.get(name)}
    kept = [
        name
        for name in names
        if not any(other != name and name.startswith(f"{other}.") for other in names)
    ]
    return sorted(
        kept, key=lambda name: (not name.startswith("regression."), name.count("."), name)
    )


class _Description:
    """What values are, as texts by path. What was described once is known by its identity."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, bool], tuple[object, Entries]] = {}
        self._open: list[object] = []
        # Whether what holds the value is of this package: trees there are states.
        self._ours = False

    def of(self, value: object) -> Entries:
        """Return the entries of a value."""
        if (text := _plain(value)) is not None:
            return {(): text}
        if (id(value), self._ours) in self._known:
            return self._known[id(value), self._ours][1]
        for number, outer in enumerate(reversed(self._open)):
            if outer is value:
                return {(): f"what is {number} levels above"}
        if len(self._open) > DEPTH:
            raise ArgumentError(
                "fingerprint",
                f"values nested at most {DEPTH} deep",
                type(value).__name__,
                "an algorithm without such a value",
            )
        self._open.append(value)
        before = self._ours
        if not isinstance(value, Mapping | list | tuple | functools.partial):
            named = isinstance(value, types.FunctionType | type)
            self._ours = _root(value if named else type(value)) == OWN
        try:
            entries = _limited(dict(self._entered(value)), MOST_INSIDE)
        finally:
            self._open.pop()
            self._ours = before
        # The value is held too, so that no other gets its identity.
        self._known[id(value), before] = value, entries
        return entries

    def _inside(self, path: str, value: object) -> Iterator[tuple[Path, str]]:
        yield from _below((path,), self.of(value)).items()

    def _part(self, path: str, value: object) -> Iterator[tuple[Path, str]]:
        """Describe a part of a mapping or sequence; a tensor in one of this package's own, such as
        a state or an example, by its shape.
        """
        if self._ours and isinstance(value, Tensor):
            yield (path,), _shape(value)
        else:
            yield from self._inside(path, value)

    def _entered(self, value: Any) -> Iterator[tuple[Path, str]]:  # noqa: PLR0912 a case a kind
        if isinstance(value, Dataset):
            # Rows: not even a digest of them may leave a site.
            yield (), f"rows {_shape(value.inputs[:0])}, {_shape(value.targets[:0])}"
        elif isinstance(value, functools.partial):
            yield from self._inside("function", value.func)
            for number, part in enumerate(value.args):
                yield from self._inside(str(number), part)
            for name, part in value.keywords.items():
                yield from self._inside(name, part)
        elif isinstance(value, types.MethodType):
            yield (), f"method {value.__func__.__name__}"
            yield from self._inside("self", value.__self__)
            yield from self._inside("function", value.__func__)
        elif isinstance(value, types.FunctionType):
            yield from self._function(value)
        elif isinstance(value, type):
            yield from self._class(value)
        elif isinstance(value, types.ModuleType):
            yield from self._module(value)
        elif isinstance(value, nn.Module):
            yield from self._network(value)
        elif isinstance(value, Mapping):
            yield (), f"{_name(type(value))} of {len(value)}"
            for name, part in value.items():
                yield from self._part(_key(name), part)
        elif isinstance(value, set | frozenset):
            yield (), f"{_name(type(value))} of {len(value)}"
            texts = sorted(json.dumps(sorted(map(str, self.of(one).items()))) for one in value)
            yield ("items",), json.dumps(texts)
        elif isinstance(value, list | tuple | deque):
            yield (), f"{_name(type(value))} of {len(value)}"
            names = getattr(value, "_fields", range(len(value)))
            for name, part in zip(names, value, strict=True):
                yield from self._part(str(name), part)
        elif is_dataclass(value):
            yield from self._class_of(value)
            ours = _is_library(type(value))
            for one in fields(value):
                # In this package what is not compared is a cache.
                if one.init and (one.compare or not ours):
                    yield from self._inside(one.name, getattr(value, one.name))
        else:
            yield from self._object(value)

    def _object(self, value: Any) -> Iterator[tuple[Path, str]]:
        """Describe an object by its class and attributes; of a library's objects only by those that
        are public, since others may be caches.
        """
        yield from self._class_of(value)
        kind = type(value)
        public = _is_library(kind) and _root(kind) != OWN
        for name, part in _attributes(value).items():
            cached = isinstance(inspect.getattr_static(kind, name, None), functools.cached_property)
            if not cached and not (public and name.startswith("_")):
                yield from self._inside(name, part)

    def _class_of(self, value: object) -> Iterator[tuple[Path, str]]:
        kind = type(value)
        yield (), _name(kind)
        if not _is_library(kind):
            yield from self._inside("class", kind)

    def _class(self, kind: type) -> Iterator[tuple[Path, str]]:
        """Describe a class by its name, and one of the user by its source text, its bases and what
        its functions use.
        """
        yield (), _name(kind)
        if _is_library(kind):
            return
        yield ("source",), _source(kind)
        for number, base in enumerate(kind.__bases__):
            if base is not object:
                yield from self._inside(f"base {number}", base)
        for name, part in vars(kind).items():
            inner = getattr(part, "fget", getattr(part, "__func__", part))
            inner = getattr(inner, "func", inner)
            if isinstance(inner, types.FunctionType):
                # The text of those that `dataclass` makes follows from that of the class.
                written = inspect.unwrap(inner)
                if not written.__code__.co_filename.startswith("<"):
                    yield from self._used(inner, f"{name}.")
            elif not name.startswith("__") and (text := _plain(inner)) is not None:
                yield (name,), text

    def _function(self, function: types.FunctionType) -> Iterator[tuple[Path, str]]:
        yield (), _name(function)
        if not _is_library(function):
            yield ("source",), _source(function)
            yield from self._used(function)
            return
        yield from self._closed_over(function)

    def _closed_over(
        self, function: types.FunctionType, begin: str = ""
    ) -> Iterator[tuple[Path, str]]:
        names = function.__code__.co_freevars
        for name, cell in zip(names, function.__closure__ or (), strict=True):
            try:
                inner = cell.cell_contents
            except ValueError:
                continue
            yield from self._inside(f"{begin}{name}", inner)
        defaults = {f"default {n}": one for n, one in enumerate(function.__defaults__ or ())}
        for name, one in {**defaults, **(function.__kwdefaults__ or {})}.items():
            yield from self._inside(f"{begin}{name}", one)

    def _used(self, function: types.FunctionType, begin: str = "") -> Iterator[tuple[Path, str]]:
        """Describe what a function closes over, and what it uses of its module."""
        yield from self._closed_over(function, begin)
        for name in sorted(set(_globals(function.__code__))):
            if name in function.__globals__:
                yield from self._inside(f"{begin}{name}", function.__globals__[name])

    def _module(self, module: types.ModuleType) -> Iterator[tuple[Path, str]]:
        if module.__name__.partition(".")[0] in LIBRARIES:
            yield (), f"module {module.__name__}"
        else:
            yield (), "module"
            yield ("source",), _source(module)

    def _network(self, net: nn.Module) -> Iterator[tuple[Path, str]]:
        """Describe a network: classes and attributes of its modules, names and shapes of its
        parameters and buffers, and the values of those that are not trained.
        """
        yield (), _name(type(net))
        base = vars(nn.Module())
        for name, module in net.named_modules():
            begin = f"module {name}" if name else "network"
            yield (begin,), f"{_name(type(module))} {'training' if module.training else 'fixed'}"
            yield from _below((begin, "class"), self.of(type(module))).items()
            # What a library's module hides may be copies of its parameters.
            public = _is_library(type(module)) and _root(type(module)) != OWN
            for attribute, value in vars(module).items():
                passed = attribute in OF_NETWORKS or (public and attribute.startswith("_"))
                if not passed and not isinstance(value, _traces()):
                    yield from _below((begin, attribute), self.of(value)).items()
            for hooks in HOOKS:
                if hooks in base and vars(module).get(hooks):
                    values = list(vars(module)[hooks].values())
                    yield from _below((begin, hooks), self.of(values)).items()
        for name, leaf in net.named_parameters():
            value = "" if leaf.requires_grad else _tensor(leaf)
            yield ("parameters", name), f"{leaf.dtype} {tuple(leaf.shape)} {value}"
        for name, buffer in net.named_buffers():
            value = "" if name.endswith(COUNTED) else _tensor(buffer)
            yield ("buffers", name), f"{buffer.dtype} {tuple(buffer.shape)} {value}"


def _plain(value: Any) -> str | None:  # noqa: PLR0911, PLR0912 a case a kind
    """Return the text of a value without parts; None for others."""
    if value is None or isinstance(value, bool | str | bytes | complex):
        return repr(value)
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, np.generic | int | float):
        number = value.item() if isinstance(value, np.generic) else value
        if isinstance(number, float):
            # 3.0 and 3 are two kinds of numbers.
            return f"float {number:.10g}" if math.isfinite(number) else f"float {number}"
        return repr(number)
    if isinstance(value, Key):
        # It may be secret.
        return "Key"
    if isinstance(value, nn.Parameter) and value.requires_grad:
        # It is trained.
        return _shape(value)
    if isinstance(value, Tensor):
        return f"{value.dtype} {tuple(value.shape)} {_tensor(value)}"
    if isinstance(value, np.ndarray) and value.dtype != object:
        return f"{value.dtype} {value.shape} {_digest(np.ascontiguousarray(value).tobytes())}"
    if isinstance(value, PurePath):
        # Of each machine its own.
        return "path"
    if isinstance(value, torch.Generator):
        return f"generator {value.initial_seed()}"
    if isinstance(value, torch.dtype | torch.device | torch.Size | range | slice | re.Pattern):
        return repr(value)
    if isinstance(value, PASSED_OVER):
        return type(value).__name__
    if isinstance(value, types.BuiltinFunctionType) or type(value) is np.ufunc:
        return f"function {getattr(value, '__module__', None)}.{value.__name__}"
    return None


def _globals(code: types.CodeType) -> Iterator[str]:
    """Yield the names of a function's module that its code, and code inside of it, reads."""
    for one in dis.get_instructions(code):
        if one.opname in ("LOAD_GLOBAL", "LOAD_NAME") and isinstance(one.argval, str):
            yield one.argval
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield from _globals(part)


def _attributes(value: object) -> dict[str, Any]:
    """Return the attributes of an object by name, also those in slots."""
    found = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                found[name] = getattr(value, name)
    return found


def _source(value: Any) -> str:
    """Return the source text of a function, class or module of the user, without what its place in
    the file changes; of a lambda the expression alone.

    Raises
    ------
    ArgumentError
        If there is no text, or a lambda cannot be told from others on its line.
    """
    name = getattr(value, "__qualname__", getattr(value, "__name__", type(value).__name__))
    expected = f"source text of {name!r}, which server and clients compare"
    hint = "def in a file that both sides have, such as experiment.py"
    # Of a function's code, since a decorator may show the function that it wraps.
    code = getattr(value, "__code__", value)
    try:
        if getattr(value, "__name__", "") == "<lambda>":
            return _lambda(code)
        text = textwrap.dedent(inspect.getsource(code))
    except (OSError, TypeError, SyntaxError, LookupError) as problem:
        raise ArgumentError("fingerprint", expected, problem, hint) from problem
    lines = (line.rstrip() for line in text.splitlines())
    return "\n".join(line for line in lines if line)


def _lambda(code: types.CodeType) -> str:
    """Return the text of a lambda, of several on a line by the columns of its code.

    Raises
    ------
    LookupError
        If several are like it.
    """
    whole = "".join(inspect.findsource(code)[0])
    lambdas = [node for node in ast.walk(ast.parse(whole)) if isinstance(node, ast.Lambda)]
    found = [node for node in lambdas if node.lineno == code.co_firstlineno]
    if len(found) > 1 and hasattr(code, "co_positions"):
        spans = set(code.co_positions())
        found = [node for node in found if _span(node.body) in spans]
    texts = {ast.get_source_segment(whole, node) or "" for node in found}
    if len(texts) != 1:
        raise LookupError(f"{len(texts)} lambdas on its line")
    return texts.pop()


def _span(node: ast.expr) -> tuple[int, int | None, int, int | None]:
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset


def _root(value: Any) -> str:
    module = getattr(value, "__module__", None) or ""
    return str(module).partition(".")[0]


def _is_library(value: Any) -> bool:
    return _root(value) in LIBRARIES


def _name(value: Any) -> str:
    """Return the name of a function or class; a library's with its module."""
    if _is_library(value):
        return f"{value.__module__}.{value.__qualname__}"
    return str(value.__name__)


def _key(name: object) -> str:
    return str(name) if isinstance(name, str) else _plain(name) or type(name).__name__


def _traces() -> tuple[type, ...]:
    """Return the classes of recorded runs of a model, which follow from model and rows."""
    from pyro.poutine import Trace

    return (Trace,)


def _below(path: Path, entries: Mapping[Path, str]) -> Entries:
    return {(*path, *rest): text for rest, text in entries.items()}


def _limited(entries: Entries, most: int) -> Entries:
    """Return at most so many entries, the deepest joined to digests of what they are in."""
    while len(entries) > most:
        depth = max(map(len, entries)) - 1
        joined: dict[Path, list[tuple[Path, str]]] = {}
        for path, text in entries.items():
            joined.setdefault(path[:depth], []).append((path[depth:], text))
        entries = {
            path: rest[0][1] if rest == [((), rest[0][1])] else _digest(json.dumps(sorted(rest)))
            for path, rest in joined.items()
        }
        if depth <= 0:
            break
    return entries


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}... {_digest(name)}"


def _shape(leaf: Tensor) -> str:
    return f"{leaf.dtype} {tuple(leaf.shape)}"


def _tensor(leaf: Tensor) -> str:
    if leaf.layout is not torch.strided or leaf.is_quantized:
        return str(leaf.layout)
    flat = leaf.detach().cpu().contiguous().flatten()
    return _digest(flat.view(torch.uint8).numpy().tobytes()) if flat.numel() else ""


def _digest(content: str | bytes) -> str:
    raw = content.encode() if isinstance(content, str) else content
    return blake2b(raw, digest_size=8).hexdigest()

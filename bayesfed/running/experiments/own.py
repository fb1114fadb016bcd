"""Functions of a user's own files: ``kind = "my_method.py:recipe"``, a path that begins at the
folder of the experiment, and a name.

This is the only way by which a file has something imported.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle

from bayesfed.errors import ArgumentError
from bayesfed.errors.nearness import nearest


def is_own(kind: object) -> bool:
    """Return whether a ``kind`` names a function of a file."""
    return isinstance(kind, str) and ".py:" in kind


def located(kind: str, folder: Path) -> Path:
    """Return the file that a ``kind`` names."""
    return (folder / Path(kind.rpartition(":")[0]).expanduser()).resolve()


def files(raw: Any, folder: Path) -> Iterator[Path]:
    """Yield the user's own files that an experiment names, those that are there."""
    for name, value in (
        raw.items() if isinstance(raw, dict) else enumerate(raw) if isinstance(raw, list) else ()
    ):
        if name == "kind" and is_own(value) and located(value, folder).is_file():
            yield located(value, folder)
        yield from files(value, folder)


def load(kind: str, folder: Path) -> Callable[..., Any]:
    """Run a user's file and return one of its functions.

    Raises
    ------
    ArgumentError
        If there is no such file, it cannot be run, or it has no such function.
    """
    path, name = located(kind, folder), kind.rpartition(":")[2]
    if not path.is_file():
        there = sorted(one.name for one in path.parent.glob("*.py"))
        near = nearest(path.name, there)
        raise ArgumentError(
            kind,
            "a Python file",
            f"no file {path}",
            near or f"a path that begins at {folder.resolve()}",
        )
    module = _module(path, path.read_bytes())
    function: Callable[..., Any] | None = getattr(module, name, None)
    if not callable(function):
        functions = filter(inspect.isfunction, vars(module).values())
        there = [one.__name__ for one in functions if one.__module__ == module.__name__]
        near = nearest(name, there) or "".join(there[:1])
        raise ArgumentError(
            kind,
            f"a function of {path.name}: {', '.join(there) or 'it has none'}",
            f"no function `{name}`",
            f'"{kind.rpartition(":")[0]}:{near}"' if near else f"def {name}(...)",
        )
    return function


@cache
def _module(path: Path, text: bytes) -> ModuleType:
    """Return the module of a file; run again if its text has changed."""
    name = f"{path.stem}_{hashlib.blake2b(str(path).encode(), digest_size=4).hexdigest()}"
    module = sys.modules[name] = ModuleType(name)
    module.__file__ = str(path)
    try:
        exec(compile(text, path, "exec"), vars(module))
    except Exception as problem:
        del sys.modules[name]
        raise ArgumentError(
            path.name,
            "a Python file that runs",
            f"{type(problem).__name__}: {problem}",
            f"python {path}, which shows where",
        ) from problem
    # Spawned workers cannot import it by its name: it travels with what they are given.
    cloudpickle.register_pickle_by_value(module)
    return module

"""Where the package makes its messages: read from the source."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import bayesfed
from bayesfed.errors import BayesfedError

ROOT = Path(bayesfed.__file__).parent.parent
ROLES, CHECKS = "bayesfed/errors/", "bayesfed/errors/checks.py"
Function = ast.FunctionDef | ast.AsyncFunctionDef
Makers = dict[tuple[str, str], Function]


@dataclass(frozen=True, order=True)
class Place:
    """A call that makes a message: its file, its lines, the function around it, its source."""

    file: str
    line: int
    end: int
    function: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.function}: {' '.join(self.text.split())[:150]}"


@functools.cache
def places() -> tuple[Place, ...]:
    """Return the places of the package, by file and line."""
    trees = {
        str(path.relative_to(ROOT)): ast.parse(path.read_text())
        for path in sorted((ROOT / "bayesfed").rglob("*.py"))
    }
    errors = _errors(trees)
    makers: Makers = {
        (file, node.name): node
        for file, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, Function) and not file.startswith(ROLES) and _hands_on(node, errors)
    }
    return tuple(
        sorted(place for file, tree in trees.items() for place in _of(file, tree, errors, makers))
    )


@functools.cache
def of_file(file: str) -> tuple[Place, ...]:
    """Return the places of a file."""
    return tuple(place for place in places() if place.file == file)


def at(file: str, line: int) -> Place | None:
    """Return the place at a line: of several the shortest."""
    found = [place for place in of_file(file) if place.line <= line <= place.end]
    return min(found, key=lambda place: place.end - place.line, default=None)


def _errors(trees: dict[str, ast.Module]) -> set[str]:
    # Modules that define an error need be there, so that it is known as one.
    for file, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name.endswith("Error"):
                import_module(_module(file))

    def below(kind: type[BayesfedError]) -> Iterator[str]:
        yield kind.__name__
        for one in kind.__subclasses__():
            yield from below(one)

    return set(below(BayesfedError))


def _hands_on(node: Function, errors: set[str]) -> bool:
    """Whether a function is a maker or a carrier."""
    calls = [one for one in ast.walk(node) if isinstance(one, ast.Call)]
    handed = any(
        isinstance(part, ast.Name) and part.id == "hint"
        for call in calls
        if _last(call) in errors
        for part in call.args
    )
    names = {
        one.arg: one.annotation and ast.unparse(one.annotation)
        for one in (*node.args.args, *node.args.kwonlyargs)
    }
    returns = sum(isinstance(one, ast.Return) for one in ast.walk(node))
    annotated = node.returns is not None and ast.unparse(node.returns) in errors
    return (handed and names.get("hint") == "str") or (annotated and returns == 1)


def _last(call: ast.Call) -> str:
    return ast.unparse(call.func).rpartition(".")[2]


def _of(file: str, tree: ast.Module, errors: set[str], makers: Makers) -> Iterator[Place]:
    source = (ROOT / file).read_text()
    imported = {
        f"{node.module}.{alias.name}": alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    # Makers of this file, of its folder, and of modules of which it imports something, also through
    # a package.
    modules = {name.rpartition(".")[0] for name in imported} | {
        _home(name) for name in imported if name.startswith("bayesfed.")
    }
    known = errors | {
        name
        for other, name in makers
        if other == file
        or (
            not name.startswith("_")
            and (Path(other).parent == Path(file).parent or _module(other) in modules)
        )
    }
    # `check` by the name that it has here alone: methods, and other functions, are called so too.
    plain = {imported.get(f"{_module(CHECKS)}.check", "check" if file == CHECKS else "")}
    plain.add("warnings.warn")

    def walk(node: ast.AST, around: tuple[str, ...]) -> Iterator[Place]:
        if isinstance(node, Function | ast.ClassDef):
            around = (*around, node.name)
            if makers.get((file, node.name)) is node or (file, node.name) == (CHECKS, "check"):
                return
        if isinstance(node, ast.Call) and (_last(node) in known or ast.unparse(node.func) in plain):
            text = ast.get_source_segment(source, node) or ""
            end = node.end_lineno or node.lineno
            yield Place(file, node.lineno, end, ".".join(around), text)
        for child in ast.iter_child_nodes(node):
            yield from walk(child, around)

    yield from walk(tree, ())


def _home(name: str) -> str:
    """Return the module in which something that a package offers was made."""
    package, _, own = name.rpartition(".")
    try:
        return str(getattr(getattr(import_module(package), own, None), "__module__", ""))
    except ImportError:
        # An extra that is not installed.
        return ""


def _module(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

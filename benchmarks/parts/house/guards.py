"""What stands in the source against the house's own rules: long lines, and guesses about the parts
of a method that are answered by a class or by a missing attribute.

Parts of a method are objects of classes that look like a seam of the round: servers (`step`), local
steps (`fit` and `kind`), links (`pack` and `collect`), views (`restrict` and `lift`), codecs
(`encode` and `decode`), reducers (`add`, of updates) and layers. Only `SEAMS` may ask whether a
part is of a class or has a member.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

SEAMS = Path("bayesfed/federated/core/seams.py")
SHAPES = (
    {"step"},
    {"fit", "kind"},
    {"pack", "collect"},
    {"restrict", "lift"},
    {"encode", "decode"},
)
BASES = {"Layer", "Holding", "EqualWeights", "Devices", "Around"}
MEMBERS = {
    "averages",
    "deadline_s",
    "kind",
    "link",
    "local",
    "one_by_one",
    "options",
    "publish",
    "reducer",
    "server",
    "stale",
    "steps_alone",
    "view",
    "with_momentum",
}


def long_lines(root: Path, files: Iterable[Path], columns: int) -> list[str]:
    """Return where lines are longer."""
    return [
        f"{file}:{number}: {len(line)}"
        for file in files
        for number, line in enumerate((root / file).read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > columns
    ]


def guesses(root: Path, files: Iterable[Path]) -> list[str]:
    """Return where a part of a method is asked for its class, or for a member that it may lack."""
    rooms = ("federated", "algorithms", "flower", "running")
    trees = {
        file: ast.parse((root / file).read_bytes())
        for file in files
        if file.suffix == ".py" and file.parts[1:2] and file.parts[1] in rooms
    }
    parts = set(_parts(trees.values()))
    return [
        f"{file}:{line}: {what}"
        for file, tree in trees.items()
        if file != SEAMS
        for line, what in _asked(tree, parts - _elsewhere(tree, rooms))
    ]


def _elsewhere(tree: ast.Module, rooms: tuple[str, ...]) -> set[str]:
    """Return the names that a file imports from other rooms."""
    return {
        name.asname or name.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[1:2]
        if node.module and node.module.split(".")[1] not in rooms
        for name in node.names
    }


def _parts(trees: Iterable[ast.Module]) -> Iterator[str]:
    """Yield the names of the classes of parts."""
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                members = {name for item in node.body for name in _names(item)}
                bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
                shaped = any(shape <= members for shape in SHAPES) and "Protocol" not in bases
                if shaped or bases & BASES or ("add" in members and _adds_updates(node)):
                    yield node.name


def _names(item: ast.stmt) -> Iterator[str]:
    if isinstance(item, ast.FunctionDef):
        yield item.name
    elif isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
        yield item.target.id
    elif isinstance(item, ast.Assign):
        yield from (target.id for target in item.targets if isinstance(target, ast.Name))


def _adds_updates(node: ast.ClassDef) -> bool:
    return any(
        isinstance(item, ast.FunctionDef)
        and item.name == "add"
        and any(
            isinstance(one.annotation, ast.Name) and one.annotation.id == "Update"
            for one in item.args.args
        )
        for item in node.body
    )


def _asked(tree: ast.Module, parts: set[str]) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        if (
            node.func.id in ("getattr", "hasattr")
            and len(node.args) + (node.func.id == "hasattr") > 2
        ):
            name = node.args[1]
            if isinstance(name, ast.Constant) and name.value in MEMBERS:
                yield node.lineno, f"{node.func.id}(..., {name.value!r})"
        elif node.func.id in ("isinstance", "issubclass") and len(node.args) == 2:
            named = {one.id for one in ast.walk(node.args[1]) if isinstance(one, ast.Name)}
            if found := sorted(named & parts):
                yield node.lineno, f"{node.func.id}(..., {', '.join(found)})"

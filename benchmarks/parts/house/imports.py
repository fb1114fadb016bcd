"""Which files of a package import which, read from the source: the graph behind `house.py`.

A name that an ``__init__`` passes on, in its stub or by an import of its own, leads to the file
that defines it. A package is no file: importing one whose ``__init__`` is lazy loads nothing, so
only the attributes that are then used of it count.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import networkx as nx

Binding = tuple[str, str]


@dataclass(frozen=True)
class Imports:
    """The source of a package.

    Parameters
    ----------
    trees
        Syntax trees by file, the path from the root of the repository.
    files
        The file of each module by its name; ``package.__init__`` is named `package`.
    stubs
        The stub of each package that has one.
    """

    trees: Mapping[Path, ast.Module]
    files: Mapping[str, Path]
    stubs: Mapping[str, Path]
    exports: dict[str, dict[str, Binding]] = field(default_factory=dict)

    @classmethod
    def of(cls, root: Path, files: Iterable[Path]) -> Imports:
        """Read the files of a package."""
        trees = {file: ast.parse((root / file).read_text(encoding="utf-8")) for file in files}
        named = {file: module_of(file) for file in trees}
        return cls(
            trees,
            {name: file for file, name in named.items() if file.suffix == ".py"},
            {name: file for file, name in named.items() if file.suffix == ".pyi"},
        )

    def graph(self) -> nx.DiGraph[str]:
        """Return the graph of modules, an edge from the one that imports."""
        graph: nx.DiGraph[str] = nx.DiGraph()
        graph.add_nodes_from(self.files)
        for name, file in self.files.items():
            graph.add_edges_from((name, other) for other in self._targets(file))
        return graph

    def names(self, file: Path) -> Iterator[tuple[int, str]]:
        """Yield the line and the whole name of everything that a file imports anywhere, types
        included.
        """
        for node in ast.walk(self.trees[file]):
            if isinstance(node, ast.Import):
                yield from ((node.lineno, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield from (
                    (node.lineno, f"{absolute(file, node)}.{alias.name}") for alias in node.names
                )

    def defined(self, home: str, name: str) -> str | None:
        """Return the module that defines a name of another, the module itself if it is one; None
        for a package and what is not this package's.
        """
        seen = set[Binding]()
        while (home, name) not in seen:
            seen.add((home, name))
            passed = self._exported(home)
            if name in passed:
                home, name = passed[name]
            elif f"{home}.{name}" in self.files:
                module = f"{home}.{name}"
                return None if self._is_package(module) else module
            else:
                break
        return home if home in self.files else None

    def _targets(self, file: Path) -> Iterator[str]:
        bound = dict[str, str]()
        for node in imports_in(self.trees[file]):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name not in self.files:
                        continue
                    if not self._is_package(alias.name):
                        yield alias.name
                    elif alias.asname:
                        bound[alias.asname] = alias.name
                continue
            home = absolute(file, node)
            for alias in node.names:
                module = f"{home}.{alias.name}"
                if (other := self.defined(home, alias.name)) is not None:
                    yield other
                elif module in self.files:
                    bound[alias.asname or alias.name] = module
        # What is used of a package by its attributes.
        for part in ast.walk(self.trees[file]):
            if (
                isinstance(part, ast.Attribute)
                and isinstance(part.value, ast.Name)
                and part.value.id in bound
            ):
                other = self.defined(bound[part.value.id], part.attr)
                if other is not None:
                    yield other

    def _exported(self, home: str) -> Mapping[str, Binding]:
        """Return what a package passes on: names, and where it has them from."""
        if home not in self.exports:
            file = self.stubs.get(home) or self.files.get(home)
            found = dict[str, Binding]()
            if file is not None and file.stem == "__init__":
                for node in self.trees[file].body:
                    if isinstance(node, ast.ImportFrom):
                        source = absolute(file, node)
                        for alias in node.names:
                            if alias.name == "*":
                                found |= {name: (source, name) for name in self._exported(source)}
                            elif source in self.files and (source, alias.name) != (
                                home,
                                alias.name,
                            ):
                                found[alias.asname or alias.name] = (source, alias.name)
            self.exports[home] = found
        return self.exports[home]

    def _is_package(self, module: str) -> bool:
        return self.files[module].stem == "__init__"


def module_of(file: Path) -> str:
    """Return the name of a file's module."""
    parts = file.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def absolute(file: Path, node: ast.ImportFrom) -> str:
    """Return the whole name of the module that something is imported from."""
    if not node.level:
        return node.module or ""
    package = file.parent.parts[: len(file.parent.parts) - node.level + 1]
    return ".".join([*package, *([node.module] if node.module else [])])


def imports_in(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the imports of a file that are made when it runs, those inside of functions
    included.
    """
    if isinstance(tree, ast.Import | ast.ImportFrom):
        yield tree
        return
    types = isinstance(tree, ast.If) and ast.unparse(tree.test) in (
        "TYPE_CHECKING",
        "typing.TYPE_CHECKING",
    )
    for node in tree.orelse if isinstance(tree, ast.If) and types else ast.iter_child_nodes(tree):
        yield from imports_in(node)


def circles(graph: nx.DiGraph[str]) -> list[list[str]]:
    """Return the modules that import each other, circle by circle, largest first."""
    parts = [sorted(part) for part in nx.strongly_connected_components(graph) if len(part) > 1]
    parts += [[node] for node in graph.nodes if graph.has_edge(node, node)]
    return sorted(parts, key=lambda part: (-len(part), part))

"""Whether two trees of a package are the same but for names, places, docstrings, annotations and
packed assignments.

    python -m tests.support.same_but_names OLD NEW RENAMES.tsv

OLD and NEW are folders that hold the package. A line of RENAMES.tsv has four parts with "|" between
them: the kind (``name``, ``module``, ``attribute`` or ``keyword``), a place, the old and the new
word. The place of a name is the module that defines it, as it is called in OLD; that of a module is
the module above it, or nothing if old and new are whole paths. Attributes and keywords, whose
object no source says, have no place.

Every function, class and statement of a module becomes one text. Names that it uses are resolved:
through imports to what defines them, so ``from x import step`` and ``from y import step`` differ,
and within a function to numbers, by the order of their first use in that function, so two methods
may rename the same local differently. Keywords of a call become the numbers of the parameters of
what is called, if the source says what it is, and stay words otherwise. Strings stay as they are,
since they may be keys, fields of messages or names of random streams. Texts without a partner in
the other tree are printed, and the exit status is then 1.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


@dataclass
class Table:
    """Renames.

    Parameters
    ----------
    names
        New words by qualified names of OLD.
    modules
        New paths by paths of modules of OLD.
    attributes, keywords
        New words by old ones.
    """

    names: dict[str, str] = field(default_factory=dict)
    modules: dict[str, str] = field(default_factory=dict)
    attributes: dict[str, str] = field(default_factory=dict)
    keywords: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, lines: Iterable[str]) -> Table:
        """Return the table of a file."""
        table = cls()
        for line in lines:
            if not line.strip() or line.startswith("#"):
                continue
            kind, place, old, new = line.rstrip("\n").split("|")
            if kind == "name":
                table.names[f"{place}.{old}"] = new
            elif kind == "module":
                prefix = f"{place}." if place else ""
                table.modules[prefix + old] = prefix + new
            else:
                words = table.attributes if kind == "attribute" else table.keywords
                if words.get(old, new) != new:
                    raise ValueError(f"{kind} {old!r} has two new words")
                words[old] = new
        return table

    def rename(self, name: str) -> str:
        """Return the qualified name in NEW of one in OLD."""
        place, _, word = name.rpartition(".")
        word = self.names.get(name, word)
        # The longest module that moved: those above may have moved as well.
        parts = place.split(".")
        for count in range(len(parts), 0, -1):
            above = ".".join(parts[:count])
            if above in self.modules:
                return ".".join([self.modules[above], *parts[count:], word])
        return f"{place}.{word}" if place else word


class Tree:
    """The modules of a folder, and what defines each name in them."""

    def __init__(self, root: Path) -> None:
        self.files = {self._path(root, file): file for file in sorted(root.rglob("*.py"))}
        self.modules = {
            path: ast.parse(file.read_text(encoding="utf-8")) for path, file in self.files.items()
        }
        self.defined: dict[str, ast.stmt] = {}
        self.aliases: dict[str, str] = {}
        for path, module in self.modules.items():
            for statement in each_statement(module.body):
                for name in bound(statement):
                    self.defined.setdefault(f"{path}.{name}", statement)
                for name, source in self.imported(path, statement).items():
                    self.aliases.setdefault(f"{path}.{name}", source)

    @staticmethod
    def _path(root: Path, file: Path) -> str:
        parts = file.relative_to(root).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def imported(self, path: str, statement: ast.AST) -> dict[str, str]:
        """Return the names that an import binds, with what they are."""
        if isinstance(statement, ast.Import):
            return {
                name.asname or name.name.partition(".")[0]: (
                    name.name if name.asname else name.name.partition(".")[0]
                )
                for name in statement.names
            }
        if not isinstance(statement, ast.ImportFrom):
            return {}
        source = statement.module or ""
        if statement.level:
            parts = path.split(".")
            package = self.files[path].name == "__init__.py"
            above = parts[: len(parts) - statement.level + package]
            source = ".".join([*above, *([source] if source else [])])
        return {name.asname or name.name: f"{source}.{name.name}" for name in statement.names}

    def resolve(self, name: str) -> str:
        """Return the qualified name of what a name stands for."""
        seen = set[str]()
        while name not in self.defined and name not in self.modules and name not in seen:
            seen.add(name)
            if name in self.aliases:
                name = self.aliases[name]
                continue
            place, _, word = name.rpartition(".")
            if place and place not in self.modules and (above := self.resolve(place)) != place:
                name = f"{above}.{word}"
        return name

    def parameters(self, name: str) -> list[str] | None:
        """Return the names of the parameters of a function, or of a class's constructor or fields;
        None if the source does not say them all.
        """
        node = self.defined.get(name)
        if isinstance(node, Function):
            return None if node.args.kwarg else arguments(node.args)
        if not isinstance(node, ast.ClassDef) or node.bases:
            return None
        for statement in node.body:
            if isinstance(statement, Function) and statement.name == "__init__":
                return None if statement.args.kwarg else arguments(statement.args)[1:]
        fields = [one for one in node.body if isinstance(one, ast.AnnAssign)]
        return [one.target.id for one in fields if isinstance(one.target, ast.Name)]


def arguments(args: ast.arguments) -> list[str]:
    """Return the names of parameters in their order."""
    given = [*args.posonlyargs, *args.args, *filter(None, [args.vararg]), *args.kwonlyargs]
    return [one.arg for one in (*given, *filter(None, [args.kwarg]))]


def each_statement(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module, those within conditions as well."""
    for statement in body:
        yield statement
        for part in ("body", "orelse", "finalbody"):
            if isinstance(statement, ast.If | ast.Try | ast.With):
                yield from each_statement(getattr(statement, part, []))


def bound(statement: ast.stmt) -> list[str]:
    """Return the names that a statement of a module or of a class defines."""
    if isinstance(statement, Function | ast.ClassDef):
        return [statement.name]
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign | ast.AugAssign):
        targets = [statement.target]
    return [
        node.id
        for target in targets
        for node in ast.walk(target)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]


def split(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Return statements of which ``a, b = x, y`` is two, where no value reads an earlier target."""
    statements = list[ast.stmt]()
    for statement in body:
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        value = statement.value if isinstance(statement, ast.Assign) else None
        if (
            isinstance(target, ast.Tuple)
            and isinstance(value, ast.Tuple)
            and len(target.elts) == len(value.elts)
            and not any(isinstance(one, ast.Starred) for one in (*target.elts, *value.elts))
        ):
            written, alone = set[str](), True
            for left, right in zip(target.elts, value.elts, strict=True):
                read = {node.id for node in ast.walk(right) if isinstance(node, ast.Name)}
                alone &= not written & read and isinstance(left, ast.Name)
                written |= {node.id for node in ast.walk(left) if isinstance(node, ast.Name)}
            if alone:
                pairs = zip(target.elts, value.elts, strict=True)
                statements += [
                    ast.Assign([left], right, lineno=statement.lineno) for left, right in pairs
                ]
                continue
        statements.append(statement)
    return statements


class Scope:
    """The names of a function or a comprehension, with what they stand for, "" for a local.

    Parameters
    ----------
    above
        The scope around it; None for a module.
    names
        Its names.
    number
        How many functions are around it.
    """

    def __init__(self, above: Scope | None, names: dict[str, str], number: int) -> None:
        self.above, self.names, self.number = above, names, number
        self.order: dict[str, int] = {}

    def find(self, name: str) -> tuple[Scope, str] | None:
        """Return the scope that binds a name, and what it stands for."""
        if name in self.names:
            return self, self.names[name]
        return self.above.find(name) if self.above else None

    def local(self, name: str) -> str:
        """Return the number of a local."""
        return f"<{self.number}.{self.order.setdefault(name, len(self.order))}>"


class Writer:
    """Writes definitions as texts in which names do not count.

    Parameters
    ----------
    tree
        The modules.
    table
        Renames that are applied, of OLD; None for NEW.
    """

    def __init__(self, tree: Tree, table: Table | None) -> None:
        self.tree, self.table = tree, table
        self.path = ""

    def texts(self) -> dict[str, list[str]]:
        """Return the places of every text."""
        found = defaultdict[str, list[str]](list)
        for path, module in self.tree.modules.items():
            self.path = path
            names = {
                name.rpartition(".")[2]: name
                for name in (*self.tree.defined, *self.tree.aliases)
                if name.rpartition(".")[0] == path
            }
            scope = Scope(None, names, 0)
            for statement in split(module.body):
                if isinstance(statement, ast.Import | ast.ImportFrom) or _is_text(statement):
                    continue
                word = getattr(statement, "name", ast.unparse(statement)[:40])
                place = f"{path}:{statement.lineno} {word}"
                found[self.write(statement, scope)].append(place)
        return found

    def rename(self, name: str) -> str:
        """Return a qualified name as it is in NEW."""
        name = self.tree.resolve(name)
        return self.table.rename(name) if self.table else name

    def word(self, name: str, kind: str) -> str:
        """Return an attribute or a keyword as it is in NEW."""
        words: Mapping[str, str] = getattr(self.table, kind) if self.table else {}
        return words.get(name, name)

    def write(self, node: object, scope: Scope) -> str:
        """Return the text of a node."""
        if isinstance(node, list):
            statements = node and isinstance(node[0], ast.stmt)
            body = [one for one in split(node) if not _is_import(one)] if statements else node
            return f"[{', '.join(self.write(one, scope) for one in body)}]"
        if not isinstance(node, ast.AST):
            return repr(node)
        if isinstance(node, Function):
            return self._function(node, scope)
        if isinstance(node, ast.Lambda):
            inner = Scope(scope, dict.fromkeys(arguments(node.args), ""), scope.number + 1)
            return (
                f"lambda {self._arguments(node.args, scope, inner)} {self.write(node.body, inner)}"
            )
        if isinstance(node, ast.ClassDef):
            return self._class(node, scope)
        if isinstance(node, Comprehension):
            return self._comprehension(node, scope)
        if isinstance(node, ast.Name):
            return self._name(node.id, scope)
        if isinstance(node, ast.Attribute):
            path = self._dotted(node, scope)
            if path and self.tree.resolve(path) in self.tree.defined:
                return self.rename(path)
            return f"{self.write(node.value, scope)}.{self.word(node.attr, 'attributes')}"
        if isinstance(node, ast.Call):
            return self._call(node, scope)
        if isinstance(node, ast.AnnAssign):
            value = self.write(node.value, scope) if node.value else ""
            return f"{self.write(node.target, scope)}: = {value}"
        if isinstance(node, ast.ExceptHandler) and node.name:
            caught = self.write(node.type, scope)
            return f"except {caught} {self._name(node.name, scope)} {self.write(node.body, scope)}"
        parts = [
            self.write(value, scope)
            for name, value in ast.iter_fields(node)
            if name not in ("ctx", "type_comment", "kind")
        ]
        return f"{type(node).__name__}({', '.join(parts)})"

    def _name(self, name: str, scope: Scope) -> str:
        found = scope.find(name)
        if found is None:
            return name if hasattr(builtins, name) else f"?{name}"
        holder, stands_for = found
        return self.rename(stands_for) if stands_for else holder.local(name)

    def _dotted(self, node: ast.expr, scope: Scope) -> str:
        """Return the qualified name of attributes of a module, "" of others."""
        if isinstance(node, ast.Name):
            found = scope.find(node.id)
            return found[1] if found else ""
        if isinstance(node, ast.Attribute) and (above := self._dotted(node.value, scope)):
            return f"{above}.{node.attr}"
        return ""

    def _call(self, node: ast.Call, scope: Scope) -> str:
        path = self._dotted(node.func, scope)
        known = self.tree.parameters(self.tree.resolve(path)) if path else None
        words = list[str]()
        for keyword in node.keywords:
            value = self.write(keyword.value, scope)
            if keyword.arg is None:
                words.append(f"**{value}")
            elif known is not None and keyword.arg in known:
                words.append(f"#{known.index(keyword.arg)}={value}")
            elif known is not None:
                words.append(f"unknown {keyword.arg}={value}")
            else:
                words.append(f"{self.word(keyword.arg, 'keywords')}={value}")
        given = ", ".join([*(self.write(one, scope) for one in node.args), *words])
        return f"{self.write(node.func, scope)}({given})"

    def _arguments(self, args: ast.arguments, scope: Scope, inner: Scope) -> str:
        """Return the text of parameters, whose defaults are of the scope around the function."""
        names = [inner.local(name) for name in arguments(args)]
        kinds = len(args.posonlyargs), len(args.args), bool(args.vararg), len(args.kwonlyargs)
        defaults = self.write([*args.defaults, *args.kw_defaults], scope)
        return f"{names} {kinds} {bool(args.kwarg)} {defaults}"

    def _function(self, node: Function, scope: Scope) -> str:
        inner = Scope(scope, self._locals(node), scope.number + 1)
        decorators = self.write(node.decorator_list, scope)
        head = self._arguments(node.args, scope, inner)
        body = node.body[1:] if _is_text(node.body[0]) else node.body
        name = self._own_name(node.name, scope)
        kind = type(node).__name__
        return f"{kind} {name} {decorators} {head} {self.write(body or [ast.Pass()], inner)}"

    def _own_name(self, name: str, scope: Scope) -> str:
        """Return the name of a function or class as it is in NEW."""
        if scope.above is None and scope.number == 0:
            return self.rename(f"{self.path}.{name}").rpartition(".")[2]
        found = scope.find(name)
        if found and found[0] is scope and not found[1]:
            return scope.local(name)
        return self.word(name, "attributes")

    def _class(self, node: ast.ClassDef, scope: Scope) -> str:
        # Names of a class are attributes of it, and its functions do not see them.
        names = {name for statement in node.body for name in bound(statement)}
        body = node.body[1:] if _is_text(node.body[0]) else node.body
        head = self.write([*node.decorator_list, *node.bases], scope)
        keywords = self.write([one.value for one in node.keywords], scope)
        name = self._own_name(node.name, scope)
        parts = list[str]()
        for statement in split(body):
            if isinstance(statement, Function | ast.ClassDef):
                parts.append(self.write(statement, Scope(scope, {}, scope.number)))
            else:
                own = {one: f".{self.word(one, 'attributes')}" for one in names}
                parts.append(self.write(statement, _Fields(scope, own)))
        return f"class {name} {head} {keywords} {parts}"

    def _comprehension(self, node: Comprehension, scope: Scope) -> str:
        names = {
            one.id: ""
            for generator in node.generators
            for one in ast.walk(generator.target)
            if isinstance(one, ast.Name)
        }
        inner = Scope(scope, names, scope.number + 1)
        parts = list[str]()
        for number, generator in enumerate(node.generators):
            source = self.write(generator.iter, inner if number else scope)
            conditions = self.write(generator.ifs, inner)
            parts.append(f"for {self.write(generator.target, inner)} in {source} {conditions}")
        if isinstance(node, ast.DictComp):
            value = f"{self.write(node.key, inner)}: {self.write(node.value, inner)}"
        else:
            value = self.write(node.elt, inner)
        return f"{type(node).__name__} {parts} {value}"

    def _locals(self, node: Function) -> dict[str, str]:
        """Return the names that a function binds, and what those of its imports stand for."""
        names = dict.fromkeys(arguments(node.args), "")
        outside = set[str]()

        def visit(part: ast.AST) -> None:
            for child in ast.iter_child_nodes(part):
                if isinstance(child, Function | ast.ClassDef):
                    names.setdefault(child.name, "")
                    continue
                if isinstance(child, ast.Global | ast.Nonlocal):
                    outside.update(child.names)
                elif isinstance(child, ast.Name) and not isinstance(child.ctx, ast.Load):
                    names.setdefault(child.id, "")
                elif isinstance(child, ast.ExceptHandler | ast.MatchAs | ast.MatchStar):
                    if child.name:
                        names.setdefault(child.name, "")
                elif isinstance(child, ast.Import | ast.ImportFrom):
                    names.update(self.tree.imported(self.path, child))
                if isinstance(child, Comprehension | ast.Lambda):
                    for inner in ast.walk(child):
                        if isinstance(inner, ast.NamedExpr):
                            names.setdefault(inner.target.id, "")
                    continue
                visit(child)

        visit(ast.Module(node.body, []))
        return {name: value for name, value in names.items() if name not in outside}


class _Fields(Scope):
    """The names of a class within its body, which are words and no numbers."""

    def __init__(self, above: Scope, names: dict[str, str]) -> None:
        super().__init__(above, dict.fromkeys(names, ""), above.number)
        self._words = names

    def local(self, name: str) -> str:
        """Return the word of a field."""
        return self._words[name]


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _is_import(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Import | ast.ImportFrom)


def compare(old: Path, new: Path, table: Table) -> list[str]:
    """Return what has no partner in the other tree, with "-" for OLD and "+" for NEW."""
    before = Writer(Tree(old), table).texts()
    after = Writer(Tree(new), None).texts()
    counts = {text: len(places) for text, places in before.items()}
    more = Counter(counts)
    more.subtract({text: len(places) for text, places in after.items()})
    lines = list[str]()
    for text, count in more.items():
        if count > 0:
            lines += [f"- {place}" for place in before[text][-count:]]
        elif count < 0:
            lines += [f"+ {place}" for place in after[text][count:]]
    return sorted(lines)


def main(given: Sequence[str] | None = None) -> int:
    """Compare two trees; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("renames", type=Path)
    options = parser.parse_args(given)
    table = Table.read(options.renames.read_text(encoding="utf-8").splitlines())
    lines = compare(options.old, options.new, table)
    print("\n".join([*lines, f"{len(lines)} without a partner"]))  # noqa: T201
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())

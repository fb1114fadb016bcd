"""What to pass for a parameter, made from the text of its annotation: an expression where one can
be made, else the name of the class with its article.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

from bayesfed.errors.roles import an

# Expressions by the name of a plain type, and of every type that has one.
PLAIN = {"int": "1", "float": "0.5", "str": "'name'", "bool": "True"}
VALUES = {
    **PLAIN,
    "complex": "0.5",
    "bytes": "b''",
    "Path": "'results'",
    "Tensor": "torch.zeros(3)",
    "Tree": "{'name': torch.zeros(3)}",
    "Hashable": "'name'",
    "Missing": "'drop'",
    "Direction": "'up'",
    "Any": "...",
    "object": "...",
    "None": "None",
}
SEQUENCES = ("Sequence", "Iterable", "Collection", "list", "set", "frozenset")
MAPPINGS = ("Mapping", "dict")
# How many ways of a union a hint has.
MOST_WAYS = 2


def make_example(annotation: str, known: Callable[[str], str] = lambda name: "") -> str:
    """Return what to pass for an annotation.

    Parameters
    ----------
    annotation
        Its text, such as ``"Mapping[str, float] | None"``.
    known
        ``(name of a type) -> expression``, "" where there is none.
    """
    try:
        node = ast.parse(annotation, mode="eval").body
    except SyntaxError:
        return "a value"
    hint = _Maker(known).make(node)
    return "a value" if hint == VALUES["Any"] else hint


def is_expression(hint: str) -> bool:
    """Return whether a hint of `make_example` is one expression, and no words."""
    try:
        ast.parse(hint, mode="eval")
    except SyntaxError:
        return False
    return True


class _Maker:
    """Makes examples of annotations."""

    def __init__(self, known: Callable[[str], str]) -> None:
        self.known = known

    def make(self, node: ast.expr) -> str:
        """Return an example of an annotation."""
        if isinstance(node, ast.BinOp):
            return self.union(node)
        if isinstance(node, ast.Subscript):
            return self.of_parts(_name(node.value), node.slice)
        if isinstance(node, ast.Constant):
            # None, or a type in quotes.
            return "None" if node.value is None else make_example(str(node.value), self.known)
        name = _name(node)
        return VALUES.get(name) or self.known(name) or an(name)

    def union(self, node: ast.BinOp) -> str:
        """Return an example of each of the first kinds of a union, without None."""
        kinds = [kind for kind in _kinds(node) if not _is_none(kind)]
        if any(_name(kind) == "Path" for kind in kinds):
            return VALUES["Path"]
        ways = list(dict.fromkeys(self.make(kind) for kind in kinds))
        # An expression can be tried; words beside it say less.
        expressions = [way for way in ways if is_expression(way)]
        if expressions and not all(map(_is_constant, expressions[:MOST_WAYS])):
            return expressions[0]
        return " or ".join((expressions or ways)[:MOST_WAYS])

    def of_parts(self, name: str, inside: ast.expr) -> str:
        """Return an example of a type with parameters."""
        parts = inside.elts if isinstance(inside, ast.Tuple) else [inside]
        if name == "Literal":
            return " or ".join(ast.unparse(part) for part in parts[:MOST_WAYS])
        if name == "Callable":
            return self.function(parts)
        if name in SEQUENCES:
            return self.around("[{}]", "a sequence, each {}", parts[0])
        if name in MAPPINGS:
            key = "0" if _name(parts[0]) == "int" else "'name'"
            return self.around(f"{{{{{key}: {{}}}}}}", "a mapping, each value {}", parts[-1])
        return self.tuple_of(parts) if name == "tuple" else self.known(name) or an(name)

    def tuple_of(self, parts: list[ast.expr]) -> str:
        """Return an example of a tuple."""
        several = [part for part in parts if ast.unparse(part) != "..."]
        if len(several) < len(parts) or len(parts) == 1:
            return self.around("({},)", "a tuple, each {}", several[0])
        inner = [self.first(part) for part in several]
        if all(map(is_expression, inner)):
            return f"({', '.join(inner)})"
        return f"a tuple of {', '.join(inner)}"

    def around(self, expression: str, words: str, part: ast.expr) -> str:
        """Return an example of something that holds values of one type."""
        inner = self.first(part)
        return (expression if is_expression(inner) else words).format(inner)

    def first(self, part: ast.expr) -> str:
        """Return the first way of an example."""
        return self.make(part).partition(" or ")[0]

    def function(self, parts: list[ast.expr]) -> str:
        """Return a function that takes what is asked for, and gives a value of its kind."""
        takes = parts[0].elts if isinstance(parts[0], ast.List) else None
        result = self.first(parts[-1])
        body = result if is_expression(result) else "..."
        if takes is None:
            return f"lambda *values: {body}"
        names = [_argument(part) for part in takes]
        numbered = [
            f"{name}_{number}" if names.count(name) > 1 else name
            for number, name in enumerate(names)
        ]
        return f"lambda {', '.join(numbered)}: {body}" if names else f"lambda: {body}"


def _kinds(node: ast.expr) -> list[ast.expr]:
    """Return the kinds of a union in their order."""
    if isinstance(node, ast.BinOp):
        return [*_kinds(node.left), *_kinds(node.right)]
    return [node]


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_constant(way: str) -> bool:
    return isinstance(ast.parse(way.partition(" or ")[0], mode="eval").body, ast.Constant)


def _name(node: ast.expr) -> str:
    """Return the last word of a dotted name."""
    return ast.unparse(node).rpartition(".")[2]


def _argument(node: ast.expr) -> str:
    """Return the name of an argument of a type."""
    word = _name(node.value if isinstance(node, ast.Subscript) else node)
    plain = {"str": "name", "int": "number", "float": "value", "Tensor": "tensor"}
    return plain.get(word, word.lower() if word.isidentifier() else "value")

"""Formulas as data: `parse_formula` reads one and refuses whatever is not on a list.

A formula may come from a file or from another machine, and is evaluated where the rows are. So it
is read to a tree before any row is, by the scanner and the parser of the package formulae, which
evaluate nothing. Each node of the tree is checked: names of columns are data, functions are those
of a list, and the length, depth and number of terms have limits. `build_design` evaluates the same
tree, with an environment that holds the functions of the list and nothing else.

Functions work on the values of one row, since a site's own minimum or rank would tell a row and
differ by site. Only `center`, `scale` and `standardize` use the mean and the sd of a column, which
are those of all sites.
"""

from __future__ import annotations

import copy
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

import numpy as np

from bayesfed.errors import ArgumentError, DataError, needs
from bayesfed.errors.checks import a
from bayesfed.errors.nearness import nearest

# A frame of pandas, and a node of a formula's tree (`formulae.expr`): both have no types.
Frame = Any
Node = Any
# What a call is: the response, a term of the sum, a part of an interaction or of a group's
# expression, or a part of a group's factor.
Kind = Literal["response", "common", "part", "factor"]

# Limits: they refuse what would take more time or memory than a regression could use.
MAX_CHARACTERS = 20_000
MAX_DEPTH = 20
MAX_TERMS = 1_000
MAX_INTERACTION = 8
MAX_OPERATIONS = 60
# Whole numbers up to it are exact as floats.
MAX_NUMBER = 1e15
# What formulae's scanner takes for a number and for a name.
DIGITS = re.compile(r"\d+")
WORD = re.compile(r"[\w.]+")
# Characters of a formula that a message shows.
SHOWN = 80

WHERE = "regression, formula"
FORMULA = a(str, "a formula with a response", "'y ~ x1 + x2 + (1 | hospital)'")


def censored(time: Any, event: Any) -> Any:
    """Return times ``(N,)`` beside 1 where the event was seen and 0 where it was not until then,
    ``(N, 2)``: what a formula calls.

    Raises
    ------
    DataError
        If events are other than 0 and 1.
    """
    made = np.column_stack([np.asarray(time, np.float64), np.asarray(event, np.float64)])
    if not np.isin(made[:, 1], (0, 1)).all():
        hint = "censored(time, event), event 0 where the time is censored"
        raise DataError("censored", "events 0 and 1", np.unique(made[:, 1])[:4], hint)
    return made


class Elementwise(NamedTuple):
    """A function of the values of one row.

    Parameters
    ----------
    arguments
        Names of its arguments, for messages; their number is how many it takes.
    compute
        The function, of arrays ``(N,)`` of float64 or numbers.
    """

    arguments: tuple[str, ...]
    compute: Callable[..., Any]


ELEMENTWISE: Mapping[str, Elementwise] = {
    "log": Elementwise(("x",), np.log),
    "log2": Elementwise(("x",), np.log2),
    "log10": Elementwise(("x",), np.log10),
    "log1p": Elementwise(("x",), np.log1p),
    "exp": Elementwise(("x",), np.exp),
    "expm1": Elementwise(("x",), np.expm1),
    "sqrt": Elementwise(("x",), np.sqrt),
    "abs": Elementwise(("x",), np.abs),
    "floor": Elementwise(("x",), np.floor),
    "ceil": Elementwise(("x",), np.ceil),
    "sin": Elementwise(("x",), np.sin),
    "cos": Elementwise(("x",), np.cos),
    "minimum": Elementwise(("x", "z"), np.minimum),
    "maximum": Elementwise(("x", "z"), np.maximum),
    "mod": Elementwise(("x", "z"), np.mod),
    "floor_divide": Elementwise(("x", "z"), np.floor_divide),
    "clip": Elementwise(("x", "low", "high"), np.clip),
    "where": Elementwise(
        ("condition", "x", "z"), lambda condition, x, z: np.where(condition != 0, x, z)
    ),
}
# Operators that formulae's grammar lacks, and the functions that they become.
REMAINDERS = {"%": "mod", "//": "floor_divide"}
# Of a column, by its mean and sd over all sites.
MOMENTS = ("center", "scale", "standardize")
# Each is a whole term, or the whole response.
PROPORTIONS = ("p", "prop", "proportion")
WHOLE = ("I", "C", "offset", "censored", *PROPORTIONS)
CONTRASTS: Mapping[str, str] = {"Treatment": "reference", "Sum": "omit"}
FUNCTIONS = (*ELEMENTWISE, *MOMENTS, *WHOLE)
# What will be on the list.
LATER = ("bs", "cr", "cc", "ns", "poly", "s", "tp", "weights")
# Functions of all rows of a site: they would differ by site, and tell a row.
_OF_ALL_ROWS = """
    accumulate argmax argmin argsort average bincount convolve corrcoef count cov cummax cummin
    cumprod cumsum diff digitize ediff1d factorize gradient groupby interp lag len max mean median
    min mode nanmax nanmean nanmin nanstd nansum nanvar ntile nth percentile prod quantile rank
    reduce roll rolling searchsorted shift sort std sum take unique value_counts var
"""
AGGREGATES = frozenset(_OF_ALL_ROWS.split())
# What formulae, R or NumPy call otherwise.
INSTEAD: Mapping[str, str] = {
    "T": "C(x, Treatment('level'))",
    "S": "C(x, Sum)",
    "B": "I(x == 'level'), or y['level'] for the response",
    "binary": "I(x == 'level'), or y['level'] for the response",
    "factor": "C(x)",
    "Surv": "censored(time, event)",
    "cbind": "p(successes, trials)",
    "power": "I(x**2)",
    "square": "I(x**2)",
    "Poly": "C(x, Sum), or C(x, Treatment('level'))",
    "Helmert": "C(x, Sum), or C(x, Treatment('level'))",
}


def _formulae(module: str) -> Any:
    """Return a module of the package formulae."""
    return needs(f"formulae.{module}", "formulas", "formulae")


def _elementwise(name: str, function: Elementwise) -> Callable[..., Any]:
    """Return the function that a formula calls: whole numbers and flags are float64 first, and what
    it returns is a pandas series if an argument is.
    """

    def call(*arguments: Any) -> Any:
        values = function.compute(*(_numbers(name, argument) for argument in arguments))
        series = needs("pandas", "formulas").Series
        index = next((one.index for one in arguments if isinstance(one, series)), None)
        return values if index is None else series(values, index=index)

    return call


def _numbers(name: str, argument: Any) -> Any:
    """Return a column or a number as float64; an error does not say what the column holds."""
    try:
        return np.asarray(argument, np.float64)[()]
    except (TypeError, ValueError):
        kind = getattr(argument, "dtype", type(argument).__name__)
        hint = "numbers, or C(x) for categories"
        raise DataError(f"{name}(...)", "a column of numbers", f"one of {kind}", hint) from None


_CALLED = {name: _elementwise(name, function) for name, function in ELEMENTWISE.items()}
# All that a formula can call beside what formulae has itself; `np` has no more than they.
NAMESPACE: Mapping[str, Any] = {**_CALLED, "censored": censored, "np": SimpleNamespace(**_CALLED)}


@dataclass(frozen=True)
class Formula:
    """A formula that has been read and checked.

    Parameters
    ----------
    text
        As it was written.
    response, predictors
        Texts of the two sides; the response is empty where there is none.
    response_columns, columns
        Names of the columns that the response and the predictors name.
    functions
        Names of the functions that both call, without ``np.``.
    compared
        Names of columns that are compared with a text, as in ``I(ward == 'west')``.
    common, groups
        Names of the common terms, with "Intercept", and of the group terms, such as ``1|hospital``.
    """

    text: str
    response: str
    predictors: str
    response_columns: frozenset[str]
    columns: frozenset[str]
    functions: frozenset[str]
    compared: frozenset[str]
    common: tuple[str, ...]
    groups: tuple[str, ...]
    tree: Node = field(repr=False, compare=False)


def parse_formula(text: str) -> Formula:
    """Return a formula with a response, read and checked; nothing is evaluated.

    Terms are joined by ``+ - * / : **`` and ``(x | group)``. Functions are `FUNCTIONS`; those of
    `ELEMENTWISE` may have ``np.`` before them. A column whose name is no word stands in backticks.

    Raises
    ------
    ArgumentError
        If it cannot be read, has no response, calls what is not on the list, or is too large.
    MissingExtraError
        If formulae is not installed.
    """
    if not isinstance(text, str):
        raise ArgumentError(WHERE, FORMULA.expected, type(text).__name__, FORMULA.hint)
    formula = read_formula(text)
    if not formula.response:
        raise ArgumentError(WHERE, FORMULA.expected, _shown(text), FORMULA.hint)
    return formula


@lru_cache(maxsize=256)
def read_formula(text: str) -> Formula:
    """Return what `parse_formula` returns, also of a formula without a response.

    Raises
    ------
    ArgumentError
        As `parse_formula`.
    """
    return _Reader(text).read()


def describe_terms(text: str) -> Any:
    """Return formulae's model of a formula (``formulae.terms.Model``), whose terms share nothing.

    Raises
    ------
    ArgumentError
        As `parse_formula`; a formula may lack a response here.
    """
    return _description(read_formula(text).tree)


def each_term(model: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the columns and calls of each term of a model but its response, those of both sides of
    a group term; an intercept has none.
    """
    for term in _each_term(model):
        yield tuple(getattr(term, "components", ()))


def build_design(text: str, frame: Frame) -> Any:
    """Return the design matrices of a formula for a frame (``formulae.matrices.DesignMatrices``).

    Raises
    ------
    ArgumentError
        As `parse_formula`; a formula may lack a response here. Or if an interaction of categories
        needs others that formulae would not add, so that columns would be lacking.
    """
    formula = read_formula(text)
    environment = _formulae("environment").Environment([NAMESPACE])
    matrices = _formulae("matrices").DesignMatrices
    model = _description(formula.tree)
    try:
        design = matrices(model, frame, environment)
    except IndexError:
        # It has no coding for a term whose columns those before it have, as that of ``x`` in
        # ``0 + z + x:z + x``; in R's order, by the number of columns, every term has its own.
        model = _description(formula.tree)
        model.common_terms.sort(key=lambda term: len(getattr(term, "components", ())))
        design = matrices(model, frame, environment)
    # It adds to ``a:b:c`` alone what makes it complete, but of each name only once.
    codings = design.model._get_encoding_bools()
    lacking = [
        name for name, ways in codings.items() if not isinstance(ways, bool) and len(ways) > 1
    ]
    if lacking:
        expected = "interactions of categories beside those of fewer columns"
        raise ArgumentError(WHERE, expected, f"none of {lacking[0]!a}", "y ~ x * z * w")
    return design


class _Size(NamedTuple):
    """Bounds of what terms become.

    Parameters
    ----------
    terms, order
        How many terms at most, and how many columns or calls one of them has at most.
    parts
        The different columns and calls.
    """

    terms: int = 0
    order: int = 0
    parts: frozenset[str] = frozenset()

    def bounded(self, terms: int, order: int, other: _Size) -> _Size:
        """Return the size of a combination with another."""
        parts = self.parts | other.parts
        return _Size(terms, min(order, len(parts)), parts)


class _Reader:
    """Reads one formula.

    Parameters
    ----------
    text
        The formula.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.columns = set[str]()
        self.functions = set[str]()
        self.compared = set[str]()
        self.bare_contrasts = set[str]()
        self.operations = self.named = 0
        self.nodes = _formulae("expr")
        self.token = _formulae("token").Token

    def read(self) -> Formula:
        """Return the formula.

        Raises
        ------
        ArgumentError
            As `parse_formula`.
        """
        if len(self.text) > MAX_CHARACTERS:
            raise self.refused(
                f"at most {MAX_CHARACTERS} characters",
                f"{len(self.text)}",
                "columns made before the fit, or fewer terms",
            )
        if not self.text.strip():
            raise self.refused(FORMULA.expected, "none", FORMULA.hint)
        tokens = self.scan()
        marks = [token for token in tokens if token.kind == "TILDE"]
        if len(marks) > 1:
            raise self.refused("one ~", f"{len(marks)}", FORMULA.hint, marks[1])
        tree = self.parse(tokens)
        response, left = "", frozenset[str]()
        if marks:
            mark = marks[0].position
            response, predictors = self.text[:mark].strip(), self.text[mark + 1 :].strip()
            if not (response and predictors and self.is_tilde(tree)):
                raise self.refused(FORMULA.expected, _shown(self.text), FORMULA.hint)
            tree.left = self.check_response(tree.left)
            left, self.columns = frozenset(self.columns), set()
            tree.right = self.check_terms(tree.right, groups=True)[0]
        else:
            predictors = self.text.strip()
            tree = self.check_terms(tree, groups=True)[0]
        if taken := sorted(self.bare_contrasts & self.columns):
            hint = f"C(x, {taken[0]}())"
            raise self.refused("a contrast that is no column", repr(taken[0]), hint)
        common, groups = self.names(tree)
        return Formula(
            self.text,
            response,
            predictors,
            left,
            frozenset(self.columns),
            frozenset(self.functions),
            frozenset(self.compared),
            common,
            groups,
            tree,
        )

    def refused(self, expected: str, found: str, hint: str, token: Any = None) -> ArgumentError:
        """Return the error of a formula, which says where the token is."""
        place = f" at character {token.position + 1} of {_shown(self.text)}" if token else ""
        return ArgumentError(WHERE, expected, f"{found}{place}", hint)

    def is_tilde(self, node: Node) -> bool:
        """Return whether a node is ``response ~ terms``."""
        return isinstance(node, self.nodes.Binary) and node.operator.kind == "TILDE"

    # Tokens.

    def scan(self) -> list[Any]:
        """Return the tokens, each with its position; formulae's scanner makes them."""
        scanner = _formulae("scanner").Scanner(self.text)
        depth = signs = 0
        while not scanner.at_end():
            start = scanner.start = scanner.current
            self.check_character(start)
            count = len(scanner.tokens)
            try:
                scanner.scan_token()
            except Exception as problem:
                raise self.unreadable(start) from problem
            if len(scanner.tokens) == count:
                continue
            token = scanner.tokens[-1]
            token.position = start
            self.check_token(token, scanner.tokens[-2] if count else None)
            depth += token.kind in ("LEFT_PAREN", "LEFT_BRACE")
            depth -= token.kind in ("RIGHT_PAREN", "RIGHT_BRACE")
            signs = signs + 1 if token.kind in ("PLUS", "MINUS") else 0
            if depth > MAX_DEPTH or signs > 2:
                expected = f"at most {MAX_DEPTH} parentheses in one another, and 2 signs in a row"
                hint = "a column made before the fit"
                raise self.refused(expected, repr(token.lexeme), hint, token)
        end = self.token("EOF", "")
        end.position = len(self.text)
        return [*scanner.tokens, end]

    def check_character(self, start: int) -> None:
        """Check the word or number that begins at a character before it is scanned."""
        token = SimpleNamespace(position=start)
        digits = DIGITS.match(self.text, start)
        if digits and len(digits[0]) > len(f"{MAX_NUMBER:.0f}"):
            raise self.too_large(f"a number of {len(digits[0])} digits", token)
        word = WORD.match(self.text, start)
        if word and word[0] in ("True", "False", "None"):
            hint = "1 and 0, or a column"
            raise self.refused("columns and numbers", word[0], hint, token)

    def unreadable(self, start: int) -> ArgumentError:
        """Return the error of a character with which no token begins."""
        token = SimpleNamespace(position=start)
        expected = "names, numbers, texts in quotes, and the signs + - * / : ** | ~ , ( )"
        hint = "I(x**2) for a power, `a name` in backticks for a column whose name has other signs"
        return self.refused(expected, ascii(self.text[start]), hint, token)

    def check_token(self, token: Any, before: Any) -> None:
        """Check one token beside the one before it."""
        quoted = token.kind in ("STRING", "BQNAME")
        inside = token.lexeme[1:-1]
        if quoted and not (inside and inside.isprintable() and token.lexeme[0] == token.lexeme[-1]):
            expected = "a name in quotes of one kind, of characters that can be seen"
            raise self.refused(expected, _shown(token.lexeme), "'west', or `my column`", token)
        if token.kind == "NUMBER" and not token.lexeme.isascii():
            raise self.refused("the digits 0 to 9", ascii(token.lexeme), "0.5", token)
        joined = before is not None and before.position + len(before.lexeme) == token.position
        if token.kind == "IDENTIFIER" and joined and before.kind == "NUMBER":
            found = f"{before.lexeme}{token.lexeme}"
            raise self.refused("numbers without letters", repr(found), "100000, or 0.001", before)
        if joined and before.kind == token.kind == "PIPE":
            hint = "(x | group), whose effects are independent of each other"
            raise self.refused("one |", "'||'", hint, before)
        if token.kind == "PERIOD":
            raise self.refused("names of columns", "'.'", "y ~ x1 + x2, each by its name", token)
        if token.kind == "IDENTIFIER" and token.lexeme == "np":
            raise self.refused("np.log(x)", "'np'", "`np` in backticks for a column", token)
        if token.kind == "IDENTIFIER" and "__" in token.lexeme:
            hint = f"`{token.lexeme}` in backticks for a column"
            raise self.refused("names without two underscores", repr(token.lexeme), hint, token)
        if token.kind in ("MODULO", "SLASH_SLASH"):
            # The parser takes it as a division, whose precedence it has.
            token.kind = "SLASH"

    # The tree.

    def parse(self, tokens: list[Any]) -> Node:
        """Return the tree; formulae's parser makes it, after its scanner's implicit intercept."""
        mark = next((at for at, token in enumerate(tokens) if token.kind == "TILDE"), -1)
        one, plus = self.token("NUMBER", "1", 1), self.token("PLUS", "+")
        one.position = plus.position = tokens[mark + 1].position
        whole = [*tokens[: mark + 1], one, plus, *tokens[mark + 1 :]]
        parser = _formulae("parser").Parser(whole)
        try:
            tree = parser.parse()
        except Exception as problem:
            # It reads an assignment whole before it refuses it.
            equals = [token for token in whole if token.kind == "EQUAL"]
            assigned = bool(equals) and str(problem).startswith("Invalid assignment")
            raise self.unparsed(equals[0] if assigned else parser.peek()) from problem
        if not parser.at_end():
            raise self.unparsed(parser.peek())
        return tree

    def unparsed(self, token: Any) -> ArgumentError:
        """Return the error of a token at which the parser stopped."""
        found = repr(token.lexeme) if token.lexeme else "the end"
        expected = f"{FORMULA.expected}, terms with an operator between them"
        hint = f"{FORMULA.hint[1:-1]}, groups in parentheses and I(x > 1) for a comparison"
        return self.refused(expected, found, hint, token)

    def check_column(self, node: Node) -> _Size:
        """Check that a node is a column, and keep its name."""
        node = self.bare(node)
        if isinstance(node, self.nodes.QuotedName):
            name = node.expression.lexeme[1:-1]
        elif isinstance(node, self.nodes.Variable) and node.level is None:
            name = node.name.lexeme
        else:
            raise self.no_column(node)
        self.columns.add(name)
        self.named += 1
        return _Size(1, 1, frozenset({name}))

    def no_column(self, node: Node) -> ArgumentError:
        """Return the error of what is no column where one is needed."""
        return self.refused(
            "the name of a column", self.said(node), "a column made before the fit", _token(node)
        )

    def bare(self, node: Node) -> Node:
        """Return a node without parentheses around it."""
        while isinstance(node, self.nodes.Grouping):
            node = node.expression
        return node

    def said(self, node: Node) -> str:
        """Return a node in a few words."""
        node, nodes = self.bare(node), self.nodes
        if isinstance(node, nodes.Call):
            token = _token(node)
            return f"{ascii(token.lexeme)[1:-1]}(...)" if token else "a call of no name"
        if isinstance(node, nodes.Variable):
            return ascii(node.name.lexeme) + ("[...]" if node.level is not None else "")
        if isinstance(node, nodes.QuotedName):
            return ascii(node.expression.lexeme)
        if isinstance(node, nodes.Literal):
            return f"the text {node.value!a}" if _is_text(node) else f"the number {node.value}"
        token = _token(node)
        return repr(token.lexeme) if token else "an assignment"

    def check_response(self, node: Node) -> Node:
        """Check the left side, and return it."""
        inner, nodes = self.bare(node), self.nodes
        if isinstance(inner, nodes.Variable) and inner.level is not None:
            if not (isinstance(inner.level, nodes.Literal) and _is_text(inner.level)):
                raise self.no_column(inner)
            self.columns.add(inner.name.lexeme)
            return inner
        if isinstance(inner, nodes.Call):
            return self.check_call(inner, "response")
        if not isinstance(inner, nodes.Variable | nodes.QuotedName):
            expected = "a response that is a column or a function of one"
            raise self.refused(expected, self.said(inner), "I(y - 1), or y['level']", _token(inner))
        self.check_column(inner)
        return inner

    def check_terms(
        self, node: Node, *, groups: bool = False, numbers: bool = True, factor: bool = False
    ) -> tuple[Node, _Size]:
        """Check terms, and return them and their size.

        Parameters
        ----------
        groups, numbers
            Whether ``(x | group)``, and 0 and 1, may be among them.
        factor
            Whether they are those of a group.
        """
        nodes = self.nodes
        # Sums are chains to the left, longer than Python's stack.
        if isinstance(node, nodes.Binary) and node.operator.kind in ("PLUS", "MINUS"):
            chain = [node]
            while isinstance(chain[-1].left, nodes.Binary) and chain[-1].left.operator.kind in (
                "PLUS",
                "MINUS",
            ):
                chain.append(chain[-1].left)
            options = {"groups": groups, "numbers": numbers, "factor": factor}
            chain[-1].left, size = self.check_terms(chain[-1].left, **options)
            for link in reversed(chain):
                link.right, other = self.check_terms(link.right, **options)
                size = size.bounded(size.terms + other.terms, max(size.order, other.order), other)
                self.check_size(size, link)
            return node, size
        if isinstance(node, nodes.Grouping):
            node.expression, size = self.check_terms(
                node.expression, groups=groups, numbers=numbers, factor=factor
            )
            return node, size
        if isinstance(node, nodes.Binary):
            return self.check_operator(node, groups, factor)
        if isinstance(node, nodes.Call):
            kind: Kind = "factor" if factor else "common" if groups and numbers else "part"
            node = self.check_call(node, kind)
            return node, _Size(1, 1, frozenset({_written(node)}))
        return node, self.check_leaf(node, numbers)

    def check_leaf(self, node: Node, numbers: bool) -> _Size:
        """Check a column, or a number that says whether there is an intercept."""
        if isinstance(node, self.nodes.Unary):
            self.check_sign(node, numbers)
            return _Size(1)
        if isinstance(node, self.nodes.Literal):
            self.check_intercept(node, numbers)
            return _Size(1)
        return self.check_column(node)

    def check_operator(self, node: Node, groups: bool, factor: bool) -> tuple[Node, _Size]:
        """Check two terms with an operator other than + and - between them."""
        kind, token = node.operator.kind, node.operator
        if kind == "PIPE" and groups:
            node.left, left = self.check_terms(node.left)
            node.right, right = self.check_terms(node.right, numbers=False, factor=True)
            size = _Size((left.terms + 1) * right.terms)
            self.check_size(size, node)
            return node, size
        if kind not in ("STAR", "SLASH", "COLON", "STAR_STAR") or token.lexeme in REMAINDERS:
            expected = "terms with + - * / : or ** between them, groups as (x | group)"
            hint = "I(x > 1), or y ~ x + (1 | group)"
            raise self.refused(expected, repr(token.lexeme), hint, token)
        node.left, left = self.check_terms(node.left, numbers=False, factor=factor)
        if kind == "STAR_STAR":
            size = self.check_power(node, left)
        else:
            node.right, right = self.check_terms(node.right, numbers=False, factor=factor)
            if kind == "COLON":
                terms, order = left.terms * right.terms, left.order + right.order
            elif kind == "STAR":
                terms = left.terms + right.terms + left.terms * right.terms
                order = left.order + right.order
            else:
                terms = left.terms + right.terms * max(right.order, 1)
                order = left.terms * left.order + right.order
            size = left.bounded(terms, order, right)
        self.check_size(size, node)
        return node, size

    def check_power(self, node: Node, left: _Size) -> _Size:
        """Check the power of a sum of terms, and return its size."""
        power = node.right.value if isinstance(node.right, self.nodes.Literal) else None
        if not isinstance(power, int) or not 1 <= power <= MAX_INTERACTION or left.terms < 2:
            expected = f"a sum of terms to a power of 1 to {MAX_INTERACTION}"
            raise self.refused(
                expected, self.said(node.right), "(x1 + x2)**2, or I(x**2)", node.operator
            )
        terms = sum(math.comb(left.terms, number) for number in range(1, power + 1))
        return left.bounded(terms, left.order * power, left)

    def check_size(self, size: _Size, node: Node) -> None:
        """Check how many terms there are, and of how many columns."""
        if size.terms > MAX_TERMS or size.order > MAX_INTERACTION:
            expected = f"at most {MAX_TERMS} terms of at most {MAX_INTERACTION} columns each"
            found = f"{size.terms} of up to {size.order}"
            hint = "fewer terms, or an interaction as a column made before the fit"
            raise self.refused(expected, found, hint, node.operator)

    def check_sign(self, node: Node, numbers: bool) -> None:
        """Check that a sign is one of 0 or 1."""
        inner = node
        while isinstance(inner, self.nodes.Unary):
            inner = self.bare(inner.right)
        if not isinstance(inner, self.nodes.Literal):
            expected = "a term without a sign of its own"
            raise self.refused(expected, repr(node.operator.lexeme), "I(-x)", node.operator)
        self.check_intercept(inner, numbers)

    def check_intercept(self, node: Node, numbers: bool) -> None:
        """Check that a number among terms says whether there is an intercept."""
        if not numbers or _is_text(node) or node.value not in (0, 1):
            expected = "columns, and 0 or 1 for the intercept in a sum"
            hint = "I(2 * x), or `2` in backticks for a column of that name"
            raise self.refused(expected, self.said(node), hint)

    # Calls.

    def check_call(self, node: Node, kind: Kind) -> Node:
        """Check a call that is a whole term or response, and return it."""
        name, token = self.function(node)
        before, self.operations = self.named, 0
        if name in PROPORTIONS or name == "censored":
            self.check_place(kind == "response", node, f"{name}(...) ~ x, as the response")
            self.check_count(node, 2, f"{name}(successes, trials)")
            arguments = [self.check_value(argument) for argument in node.args]
        elif name == "offset":
            self.check_place(kind == "common", node, "y ~ x + offset(log(days))")
            self.check_count(node, 1, "offset(log(days))")
            arguments = [self.check_value(argument) for argument in node.args]
        elif name == "C":
            arguments = self.check_categories(node)
        elif kind == "factor":
            raise self.refused(
                "groups that are columns", self.said(node), "(1 | group), of a column", token
            )
        elif name in MOMENTS and kind == "response":
            hint = "y ~ x with the column itself, or one made before the fit"
            raise self.refused("a response of each row alone", self.said(node), hint, token)
        else:
            arguments = self.check_function(node, name).args
        if self.named == before:
            raise self.refused("a term that names a column", self.said(node), "I(x + 1)", token)
        return self.nodes.Call(node.callee, arguments)

    def check_place(self, right: bool, node: Node, hint: str) -> None:
        """Check that a function stands where it may."""
        if not right:
            expected = "a function that stands here"
            raise self.refused(expected, self.said(node), hint, _token(node))

    def check_count(self, node: Node, count: int, hint: str) -> None:
        """Check the number of arguments."""
        if len(node.args) != count:
            expected = f"{hint}, with {count} argument{'s' * (count > 1)}"
            raise self.refused(expected, f"{len(node.args)}", hint, _token(node))

    def function(self, node: Node) -> tuple[str, Any]:
        """Return the name of the function that is called, without ``np.``, and its token."""
        callee = node.callee
        if not isinstance(callee, self.nodes.Variable) or callee.level is not None:
            raise self.refused(
                "a function by its name", self.said(callee), "log(x)", _token(callee)
            )
        token = callee.name
        name = token.lexeme.removeprefix("np.")
        listed = ELEMENTWISE if name != token.lexeme else FUNCTIONS
        if name in listed:
            self.functions.add(name)
            return name, token
        found = ascii(token.lexeme)
        last = name.rpartition(".")[2]
        if name in LATER:
            hint = "I(x**2), or a column made before the fit"
            raise self.refused("a function that there is already", f"{found}, not yet", hint, token)
        if AGGREGATES.intersection(name.split(".")):
            hint = "scale(x) or center(x), or a column made before the fit"
            expected = "functions of each row alone, since others differ by site and tell rows"
            raise self.refused(expected, found, hint, token)
        near = INSTEAD.get(last) or nearest(last, FUNCTIONS)
        hint = near or "a column made before the fit"
        raise self.refused(f"a function of {', '.join(FUNCTIONS)}", found, hint, token)

    def check_categories(self, node: Node) -> list[Node]:
        """Check ``C(column, contrast)``, and return the arguments."""
        if not 1 <= len(node.args) <= 2:
            self.check_count(node, 1, "C(x)")
        self.check_column(node.args[0])
        if len(node.args) == 1:
            return [node.args[0]]
        contrast = self.keyword(node.args[1], "contrast")
        called = isinstance(contrast, self.nodes.Call)
        name = contrast.callee if called else contrast
        arguments = contrast.args if called else []
        known = isinstance(name, self.nodes.Variable) and name.level is None
        if not known or name.name.lexeme not in CONTRASTS or len(arguments) > 1:
            expected = "a contrast, Treatment or Sum"
            hint = "C(x, Treatment('level')), or C(x, Sum)"
            raise self.refused(expected, self.said(contrast), hint, _token(contrast))
        if not called:
            self.bare_contrasts.add(name.name.lexeme)
            return [node.args[0], name]
        level = [self.keyword(argument, CONTRASTS[name.name.lexeme]) for argument in arguments]
        for one in level:
            inner = one.right if isinstance(one, self.nodes.Unary) else one
            signed = inner is not one
            if not isinstance(inner, self.nodes.Literal) or (signed and _is_text(inner)):
                expected = "a category, as a text or a whole number"
                hint = "C(x, Treatment('level'))"
                raise self.refused(expected, self.said(one), hint, _token(one))
        return [node.args[0], self.nodes.Call(name, level)]

    def keyword(self, node: Node, name: str) -> Node:
        """Return the value of an argument that may be written ``name=value``."""
        if not isinstance(node, self.nodes.Assign):
            return node
        if node.name.name.lexeme != name:
            hint = f"{name}=..., or an ordered column for an order of levels"
            raise self.refused(f"the keyword {name}", self.said(node.name), hint, node.name.name)
        return node.value

    def check_function(self, node: Node, name: str) -> Node:
        """Check a function within a term, and return it."""
        if name in MOMENTS:
            self.check_count(node, 1, f"{name}(x)")
            self.check_column(node.args[0])
            return node
        if name == "I":
            self.check_count(node, 1, "I(x**2)")
        else:
            arguments = ELEMENTWISE[name].arguments
            self.check_count(node, len(arguments), f"{name}({', '.join(arguments)})")
        return self.nodes.Call(node.callee, [self.check_value(one) for one in node.args])

    def check_value(self, node: Node) -> Node:
        """Check an expression within a function, and return it."""
        nodes = self.nodes
        self.operations += 1
        if self.operations > 2 * MAX_OPERATIONS:
            expected = f"at most {MAX_OPERATIONS} operations in a function"
            raise self.refused(expected, "more", "a column made before the fit", _token(node))
        if isinstance(node, nodes.Grouping):
            return nodes.Grouping(self.check_value(node.expression))
        if isinstance(node, nodes.Literal):
            if _is_text(node):
                expected = "texts after == and !=, and as a category of a contrast"
                raise self.refused(expected, self.said(node), "I(x == 'level')")
            self.check_number(node.value, node)
            return node
        if isinstance(node, nodes.Unary):
            return nodes.Unary(node.operator, self.check_value(node.right))
        if isinstance(node, nodes.Binary):
            return self.check_binary(node)
        if isinstance(node, nodes.Call):
            name, token = self.function(node)
            if name in WHOLE and name != "I":
                expected = "arithmetic and functions of rows within a function"
                raise self.refused(expected, self.said(node), "a term of its own", token)
            return self.check_function(node, name)
        self.check_column(node)
        return node

    def check_binary(self, node: Node) -> Node:
        """Check an operator within a function, and return it."""
        nodes, kind, token = self.nodes, node.operator.kind, node.operator
        comparisons = (
            *("EQUAL_EQUAL", "BANG_EQUAL"),
            *("LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL"),
        )
        if kind not in ("PLUS", "MINUS", "STAR", "SLASH", "STAR_STAR", *comparisons):
            expected = "the operators + - * / // % ** == != < <= > >="
            hint = "I((x > 1) * (z > 2)) for both, I(x * z) for a product"
            raise self.refused(expected, repr(token.lexeme), hint, token)
        left = node.left
        if kind == "STAR_STAR" and (
            isinstance(left, nodes.Unary)
            or (isinstance(left, nodes.Binary) and left.operator.kind == "STAR_STAR")
        ):
            hint = "-(x**2), (-x)**2, or (x**2)**3"
            raise self.refused("parentheses that say what is raised", "'**'", hint, token)
        if (
            kind in comparisons
            and isinstance(left, nodes.Binary)
            and left.operator.kind in comparisons
        ):
            hint = "I((x > 1) * (x < 3))"
            raise self.refused("one comparison at a time", repr(token.lexeme), hint, token)
        texts = [side for side in (left, node.right) if _is_text(side)]
        if texts and kind in comparisons[:2]:
            column = node.right if texts[0] is left else left
            self.compared |= self.check_column(column).parts
            return node
        sides = self.check_value(left), self.check_value(node.right)
        if token.lexeme in REMAINDERS:
            function = self.token("IDENTIFIER", REMAINDERS[token.lexeme])
            function.position = token.position
            made = nodes.Call(nodes.Variable(function), [*sides])
        else:
            made = nodes.Binary(sides[0], token, sides[1])
        self.constant(made)
        return made

    def constant(self, node: Node) -> float | None:
        """Return the value of numbers alone, None if there is more than numbers; Python's whole
        numbers would have as many digits as a power asks for.
        """
        nodes, node = self.nodes, self.bare(node)
        if isinstance(node, nodes.Literal):
            return None if _is_text(node) else float(node.value)
        if isinstance(node, nodes.Unary):
            inner = self.constant(node.right)
            return inner if inner is None or node.operator.kind == "PLUS" else -inner
        if not isinstance(node, nodes.Binary):
            return None
        left, right = self.constant(node.left), self.constant(node.right)
        if left is None or right is None:
            return None
        try:
            value = float(COMPUTED[node.operator.kind](left, right))
        except (ArithmeticError, TypeError, ValueError):
            value = math.inf
        self.check_number(value, node)
        return value

    def check_number(self, value: float, node: Node) -> None:
        """Check the size of a number."""
        if not abs(value) <= MAX_NUMBER:
            raise self.too_large(self.said(node), _token(node))

    def too_large(self, found: str, token: Any) -> ArgumentError:
        """Return the error of a number that is too large, or none."""
        expected = f"real numbers of at most {MAX_NUMBER:g}"
        return self.refused(expected, found, "a column in other units", token)

    # Terms.

    def names(self, tree: Node) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the names of the common and of the group terms, which formulae resolves."""
        try:
            description = _description(tree)
            common = tuple(term.name for term in description.common_terms)
            groups = tuple(term.name for term in description.group_terms)
        except Exception as problem:
            expected = "terms that can be combined"
            hint = "y ~ x + z + x:z, each written out, and 0 or 1 first"
            raise self.refused(expected, _shown(self.text), hint) from problem
        twice = {name for names in (common, groups) for name in names if names.count(name) > 1}
        if twice:
            expected = "terms of different names"
            hint = "a column made before the fit, or one with another name"
            raise self.refused(expected, f"two of the name {sorted(twice)[0]!a}", hint)
        return common, groups


COMPUTED: Mapping[str, Callable[[float, float], Any]] = {
    "PLUS": operator.add,
    "MINUS": operator.sub,
    "STAR": operator.mul,
    "SLASH": operator.truediv,
    "STAR_STAR": operator.pow,
    "EQUAL_EQUAL": operator.eq,
    "BANG_EQUAL": operator.ne,
    "LESS": operator.lt,
    "LESS_EQUAL": operator.le,
    "GREATER": operator.gt,
    "GREATER_EQUAL": operator.ge,
}


def _shown(text: str) -> str:
    """Return a formula as a message shows it: in ASCII, and not whole where it is long."""
    return ascii(text if len(text) <= SHOWN else f"{text[:SHOWN]}...")


def _is_text(node: Node) -> bool:
    return isinstance(getattr(node, "value", None), str)


def _token(node: Node) -> Any:
    """Return the first token that a node keeps, None if it keeps none."""
    nodes = _formulae("expr")
    while isinstance(node, nodes.Grouping | nodes.Call):
        node = node.expression if isinstance(node, nodes.Grouping) else node.callee
    if isinstance(node, nodes.QuotedName):
        return node.expression
    if isinstance(node, nodes.Variable):
        return node.name
    return getattr(node, "operator", None)


def _written(node: Node) -> str:
    """Return a node of a call as a text in which every operation has its parentheses: two calls of
    one text compute the same.
    """
    nodes = _formulae("expr")
    if isinstance(node, nodes.Grouping):
        return _written(node.expression)
    if isinstance(node, nodes.Call):
        return f"{_written(node.callee)}({', '.join(map(_written, node.args))})"
    if isinstance(node, nodes.Binary):
        return f"({_written(node.left)} {node.operator.lexeme} {_written(node.right)})"
    if isinstance(node, nodes.Unary):
        return f"({node.operator.lexeme}{_written(node.right)})"
    if isinstance(node, nodes.Literal):
        return repr(node.value)
    # Names, with or without backticks.
    return f"`{_token(node).lexeme.strip('`')}`"


def _description(tree: Node) -> Any:
    """Return formulae's model of a tree, in which ``x:z`` and ``z:x`` are one term and terms share
    no parts: formulae codes the categories of a part anew for each term, and where two share one
    the first would have the codes of the second.
    """
    terms = _formulae("terms")
    resolved = _resolved(tree)
    model = resolved if isinstance(resolved, terms.Model) else terms.Model(resolved)
    different = dict[Any, Any]()
    for term in model.common_terms:
        parts = getattr(term, "components", None)
        different.setdefault(term.name if parts is None else frozenset(parts), term)
    model.common_terms = [*different.values()]
    for group in model.group_terms:
        group.expr, group.factor = copy.copy(group.expr), copy.copy(group.factor)
    for term in _each_term(model):
        if hasattr(term, "components"):
            term.components = [copy.copy(component) for component in term.components]
    return model


class _Call:
    """A call of formulae (``LazyCall``) that can be compared with any other: its own comparison
    fails where the arguments of one are numbers or calls, and those of the other are not.

    Parameters
    ----------
    call
        The call.
    text
        What it computes, as `_written`.
    """

    def __init__(self, call: Any, text: str) -> None:
        self.call = call
        self.text = text
        self.callee, self.args, self.kwargs = call.callee, call.args, call.kwargs

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Call) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __str__(self) -> str:
        return str(self.call)

    def eval(self, frame: Frame, environment: Any) -> Any:
        """Return what it computes of a frame."""
        return self.call.eval(frame, environment)

    def accept(self, visitor: Any) -> Any:
        """Return what a visitor of formulae makes of it."""
        return self.call.accept(visitor)


def _each_term(model: Any) -> Iterator[Any]:
    """Yield the terms of a model, and both parts of its group terms."""
    yield from model.common_terms
    for group in model.group_terms:
        yield group.expr
        yield group.factor


def _resolved(node: Node) -> Any:
    """Return what formulae makes of terms. Sums are chains to the left, longer than Python's stack,
    so they are followed in a loop.
    """
    nodes = _formulae("expr")
    resolver = _formulae("resolver").Resolver
    response = _formulae("terms").Response
    links = list[Any]()
    while isinstance(node, nodes.Binary) and node.operator.kind in ("PLUS", "MINUS"):
        links.append(node)
        node = node.left
    if isinstance(node, nodes.Grouping):
        result = _resolved(node.expression)
    elif isinstance(node, nodes.Binary) and node.operator.kind == "TILDE":
        result = response(_resolved(node.left)) + _resolved(node.right)
    elif isinstance(node, nodes.Binary):
        result = COMBINED[node.operator.kind](_resolved(node.left), _resolved(node.right))
    else:
        result = resolver(node).resolve()
    if isinstance(node, nodes.Call):
        component = result.components[0]
        component.call = _Call(component.call, _written(node))
    for link in reversed(links):
        combine = operator.add if link.operator.kind == "PLUS" else operator.sub
        result = combine(result, _resolved(link.right))
    return result


def _crossed(left: Any, right: Any) -> Any:
    """Return ``left + right + left:right``, as in R; formulae's own product of two equal sums is
    the sum, and it keeps a term twice that is in both.
    """
    both = left @ right
    return left + right + both


COMBINED: Mapping[str, Callable[[Any, Any], Any]] = {
    "STAR": _crossed,
    "SLASH": operator.truediv,
    "COLON": operator.matmul,
    "STAR_STAR": operator.pow,
    "PIPE": operator.or_,
}

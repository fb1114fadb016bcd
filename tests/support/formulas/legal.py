"""Legal formulas with what they mean: the columns of each term, computed by NumPy from pooled rows.

`legal_formulas` draws them; `problem_of` holds the rows that the package makes of two sites
against that meaning, and against formulae's own matrix of the pooled rows where it has one.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import formulae
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bayesfed.running.formulas.prepared import prepared

Columns = NDArray[np.float64]
ROWS = 100
NAMES = {"x": "x", "z": "z", "days": "days", "my x": "`my x`", "x.2": "x.2"}
# In functions that need it a value is positive.
UNARY = {
    **{name: getattr(np, name) for name in ("log", "log2", "log10", "log1p", "exp", "expm1")},
    **{name: getattr(np, name) for name in ("sqrt", "abs", "floor", "ceil", "sin", "cos")},
}


def pooled() -> pd.DataFrame:
    """Return all sites' rows, with the column of sites."""
    draw = np.random.default_rng(11)
    return pd.DataFrame(
        {
            "y": draw.normal(size=ROWS),
            "x": draw.uniform(0.5, 3, ROWS),
            "z": draw.uniform(0.5, 3, ROWS),
            "days": draw.integers(1, 9, ROWS),
            "my x": draw.uniform(0.5, 3, ROWS),
            "x.2": draw.uniform(0.5, 3, ROWS),
            "ward": np.resize(["east", "north", "west"], ROWS),
            "drug": np.resize(["a", "a", "b", "b", "b"], ROWS),
            "grade": draw.integers(0, 3, ROWS),
            "site": np.repeat(["basel", "bern"], ROWS // 2),
        }
    )


FRAME = pooled()


@dataclass(frozen=True)
class Atom:
    """A column or a call, and the columns ``(N, k)`` that span it with an intercept."""

    text: str
    columns: Columns = field(repr=False, compare=False)


@dataclass(frozen=True)
class Legal:
    """A legal formula.

    Parameters
    ----------
    text
        The formula.
    span
        Columns ``(N, k)`` that span its common terms.
    offset, response
        ``(N,)``.
    groups
        For each group term its name and columns ``(N, L)``.
    """

    text: str
    span: Columns = field(repr=False)
    offset: Columns = field(repr=False)
    response: Columns = field(repr=False)
    groups: Sequence[tuple[str, Columns]] = field(repr=False)


def _number(draw: random.Random, depth: int) -> tuple[str, Columns]:
    """An expression of positive numbers, and its values."""
    kind = draw.choice(["column", "column", "number", "unary", "binary", "choice"])
    if depth == 0 or kind in ("column", "number"):
        if depth and kind == "number":
            value = draw.choice([1, 2, 3, 0.5, 2.25])
            return str(value), np.full(ROWS, float(value))
        name = draw.choice([*NAMES])
        return NAMES[name], FRAME[name].to_numpy(np.float64)
    one, first = _number(draw, depth - 1)
    two, second = _number(draw, depth - 1)
    with np.errstate(all="ignore"):
        if kind == "unary":
            name = draw.choice([*UNARY])
            text, values = f"{draw.choice(['', 'np.'])}{name}({one})", UNARY[name](first)
        elif kind == "binary":
            sign = draw.choice([*"+-*/%", "//", "**"])
            text = f"({one}) {sign} ({two})"
            text, values = f"({text})", _computed(sign, first, second)
        else:
            text, values = draw.choice(
                [
                    (f"minimum({one}, {two})", np.minimum(first, second)),
                    (f"np.maximum({one}, {two})", np.maximum(first, second)),
                    (f"clip({one}, 1, 2)", np.clip(first, 1, 2)),
                    (f"where({one} > {two}, {two}, 1)", np.where(first > second, second, 1)),
                    (f"where(ward == 'west', {one}, 2)", _if_west(first)),
                    (f"({one} >= 1.5) * ({two} < 2)", ((first >= 1.5) & (second < 2)) * 1.0),
                    (f"mod({one}, 2)", np.mod(first, 2)),
                    (f"I({one} != 2)", (first != 2) * 1.0),
                    (f"(+{one} - -{two})", first + second),
                ]
            )
    return text, np.asarray(values, np.float64)


def _if_west(values: Columns) -> Columns:
    return np.where(FRAME["ward"] == "west", values, 2)


def _computed(sign: str, one: Columns, two: Columns) -> Columns:
    """Return the values of an operator."""
    if sign == "**":
        return one**two
    if sign == "//":
        return one // two
    known = {"+": one + two, "-": one - two, "*": one * two, "/": one / two, "%": one % two}
    return known[sign]


def _dummies(name: str) -> Columns:
    values = FRAME[name].to_numpy()
    return np.column_stack([values == level for level in np.unique(values)]).astype(float)


def _categories(draw: random.Random, *, sums: bool) -> dict[str, str]:
    """How a formula writes each column of categories; `sums`: with contrasts of sums as well."""
    written = dict[str, str]()
    for name in ("ward", "drug", "grade"):
        level = repr(draw.choice(np.unique(FRAME[name]).tolist()))
        ways = [f"C({name})", f"C({name}, Treatment)", f"C({name}, Treatment({level}))"]
        ways.append(f"C({name}, contrast=Treatment(reference={level}))")
        ways += [f"C({name}, Sum)", f"C({name}, Sum({level}))"] if sums else []
        written[name] = draw.choice(ways if name == "grade" else [name, name, *ways])
    return written


def _atom(draw: random.Random, written: Mapping[str, str]) -> Atom:
    """A term of one column or call, none of whose columns is constant or too large."""
    while True:
        kind = draw.choice(["column", "call", "call", "moments", "category", "category"])
        if kind == "category":
            name = draw.choice([*written])
            return Atom(written[name], _dummies(name))
        if kind == "column":
            name = draw.choice([*NAMES])
            return Atom(NAMES[name], FRAME[name].to_numpy(np.float64)[:, None])
        if kind == "moments":
            name = draw.choice([*NAMES])
            values = FRAME[name].to_numpy(np.float64)
            function = draw.choice(["center", "scale", "standardize"])
            text, values = f"{function}({NAMES[name]})", values - values.mean()
            values = values if function == "center" else values / values.std()
            if draw.random() < 0.4:
                text, values = f"I({text}**2 + 1)", values**2 + 1
            return Atom(text, values[:, None])
        text, values = _number(draw, 3)
        text = draw.choice([f"I({text})", f"{{{text}}}", f"abs({text})"])
        values = np.abs(values) if text.startswith("abs") else values
        named = any(name in text for name in ("x", "z", "days", "ward"))
        fits = (
            np.isfinite(values).all() and 1e-3 < values.std() < 1e3 and np.abs(values).max() < 1e3
        )
        if named and fits and len(text) < 120:
            return Atom(text, values[:, None])


def _product(atoms: Sequence[Atom]) -> Columns:
    """Return the products of one column of each atom."""
    columns = np.ones((ROWS, 1))
    different = {one.text.replace("{", "I(").replace("}", ")"): one for one in atoms}
    for atom in different.values():
        columns = (columns[:, :, None] * atom.columns[:, None, :]).reshape(ROWS, -1)
    return columns


def _terms(draw: random.Random, written: Mapping[str, str]) -> tuple[str, list[tuple[Atom, ...]]]:
    """A part of the sum, and the terms that it means."""
    a, b, c = (_atom(draw, written) for _ in range(3))
    if len({a.text, b.text, c.text}) < 3:
        return a.text, [(a,)]
    ways: list[tuple[str, list[tuple[Atom, ...]]]] = [
        (a.text, [(a,)]),
        (a.text, [(a,)]),
        (f"{a.text} + {b.text}", [(a,), (b,)]),
        (f"{a.text}:{b.text}", [(a, b)]),
        (f"{a.text} * {b.text}", [(a,), (b,), (a, b)]),
        (f"{a.text} / {b.text}", [(a,), (a, b)]),
        (f"({a.text} + {b.text})**2", [(a,), (b,), (a, b)]),
        (f"({a.text} + {b.text}) * {c.text}", [(a,), (b,), (c,), (a, c), (b, c)]),
        (f"({a.text} + {b.text}):{c.text}", [(a, c), (b, c)]),
        (f"({a.text} * {b.text} - {a.text})", [(b,), (a, b)]),
        (
            f"({a.text} + {b.text} + {c.text})**2",
            [(a,), (b,), (c,), *combinations((a, b, c), 2)],
        ),
    ]
    return draw.choice(ways)


def legal_formulas(seed: int, count: int) -> Iterator[Legal]:
    """Yield legal formulas."""
    draw = random.Random(seed)
    made = 0
    while made < count:
        formula = _legal(draw)
        if formula is not None:
            made += 1
            yield formula


def _legal(draw: random.Random) -> Legal | None:
    """Draw a formula; None if a column is constant, or its columns are nearly those of fewer."""
    texts, terms = list[str](), list[tuple[Atom, ...]]()
    start, intercept = draw.choice([("", True), ("", True), ("1 + ", True), ("0 + ", False)])
    # Without an intercept the first column of a contrast of sums is one, which is refused.
    written = _categories(draw, sums=intercept)
    for _ in range(draw.choice([1, 1, 2])):
        text, some = _terms(draw, written)
        texts.append(text)
        terms += some
    columns = [np.ones((ROWS, 1))] if intercept else []
    columns += [_product(term) for term in terms]
    offset = np.zeros(ROWS)
    if draw.random() < 0.3:
        texts.append("offset(log(z) / 2)")
        offset = np.log(FRAME["z"].to_numpy()) / 2
    groups = list[tuple[str, Columns]]()
    if draw.random() < 0.3:
        name = draw.choice(["ward", "drug"])
        both = draw.random() < 0.5
        texts.append(f"(1 + x | {name})" if both else f"(1 | {name})")
        groups.append((f"1|{name}", _dummies(name)))
        if both:
            groups.append((f"x|{name}", _dummies(name) * FRAME["x"].to_numpy()[:, None]))
    response, values = draw.choice(
        [
            ("y", FRAME["y"]),
            ("log(z)", np.log(FRAME["z"])),
            ("I(y / 2 + x)", FRAME["y"] / 2 + FRAME["x"]),
            ("`my x`", FRAME["my x"]),
        ]
    )
    space = draw.choice(["", " ", "  ", "\n  "])
    text = f"{response} ~{space}{start}{f' +{space} '.join(texts)}"
    span = np.concatenate(columns, axis=1)
    if (np.ptp(span[:, int(intercept) :], axis=0) < 1e-9).any():
        return None
    # Two ways to write a column would be nearly one in the last digits.
    sizes = np.linalg.svd(_scaled(span), compute_uv=False)
    if not ((sizes > 1e-5) | (sizes < 1e-10)).all():
        return None
    return Legal(text, span, offset, values.to_numpy(np.float64), groups)


def _scaled(columns: Columns) -> Columns:
    lengths: Columns = np.linalg.norm(columns, axis=0)
    scaled: Columns = columns / np.maximum(lengths, 1e-300)
    return scaled


def _rank(columns: Columns) -> int:
    return int(np.linalg.matrix_rank(_scaled(columns), tol=1e-7))


def problem_of(formula: Legal) -> str:
    """Return how what the package makes of a formula differs from what it means; nothing if it does
    not.
    """
    try:
        made = prepared(formula.text, FRAME)
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"[:300]
    inputs = np.concatenate([rows.inputs.numpy() for rows in made.clients.values()])
    targets = np.concatenate([rows.targets.numpy() for rows in made.clients.values()])
    count = len(made.design.columns)
    columns, offset, groups = inputs[:, :count], inputs[:, count], inputs[:, count + 2 :]
    if not np.allclose(targets, formula.response):
        return "another response"
    if not np.allclose(offset, formula.offset):
        return "another offset"
    known = [values for _, values in formula.groups]
    if not np.allclose(groups, np.concatenate(known, axis=1) if known else groups[:, :0]):
        return "other columns of groups"
    ranks = _rank(formula.span), _rank(columns), _rank(np.hstack([formula.span, columns]))
    if len({*ranks}) > 1:
        return f"columns of rank {ranks[1]}, which span {ranks[2]} with those of rank {ranks[0]}"
    reference = formulae_matrix(formula.text)
    if reference is not None and not (
        reference.shape == columns.shape and np.allclose(reference, columns)
    ):
        return "other columns than those of formulae"
    return ""


def _exact(function: Any) -> Any:
    """Return a function of float64: NumPy's exponential of a flag is a float16."""

    def call(*arguments: Any) -> Any:
        values = function(*(np.asarray(one, np.float64) for one in arguments))
        return pd.Series(values) if np.ndim(values) else values

    return call


def formulae_matrix(text: str) -> Any:
    """Return formulae's matrix of the common terms of pooled rows; None where it cannot read them
    (``%``, ``//``, and calls that it cannot compare).
    """
    functions = {name: _exact(function) for name, function in UNARY.items()}
    functions |= {name: _exact(getattr(np, name)) for name in ("minimum", "maximum", "clip")}
    functions |= {"mod": _exact(np.mod), "where": np.where}
    functions["np"] = SimpleNamespace(**functions)
    environment = formulae.environment.Environment([functions])
    frame = FRAME.astype({"days": float})
    try:
        # It prints what it raises.
        with redirect_stdout(StringIO()):
            design = formulae.design_matrices(text, frame, env=environment)
        terms = design.common.terms.values()
        columns = [np.reshape(one.data, (ROWS, -1)) for one in terms if one.kind != "offset"]
        return np.hstack(columns)
    except Exception:
        return None

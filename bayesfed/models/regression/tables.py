"""Frames of sites before a formula is applied: their columns, missing values and categories."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np

from bayesfed.data.readers.labels import meant
from bayesfed.errors import ArgumentError, DataError, needs
from bayesfed.errors.checks import Role, a

# A frame of pandas, which has no types.
Frame = Any
Missing = Literal["refuse", "drop"]
Levels = tuple[tuple[str, tuple[Any, ...]], ...]
# Name of the intercept in a formula.
INTERCEPT = "Intercept"
Moments = tuple[tuple[str, tuple[float, float]], ...]
FORMULA = a(str, "a formula with a response", "'y ~ x1 + x2 + (1 | hospital)'")
ROWS = Role(
    lambda frame: isinstance(frame, needs("pandas", "formulas").DataFrame) and len(frame) > 0,
    "a pandas frame with rows",
    "pandas.DataFrame([{'x': 1.0}])",
)


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


NAMES = {"np": np, "log": np.log, "exp": np.exp, "sqrt": np.sqrt, "censored": censored}


def evaluated(formula: str, frame: Frame) -> Any:
    """Return the matrices of a formula for a frame.

    Raises
    ------
    DataError
        If they cannot be made.
    """
    formulae = needs("formulae", "formulas")
    environment = needs("formulae.environment", "formulas").Environment([NAMES])
    try:
        with np.errstate(all="ignore"):
            return formulae.design_matrices(formula, frame, na_action="error", env=environment)
    except DataError:
        raise
    except Exception as problem:
        actual = f"{type(problem).__name__}: {problem}"
        hint = f"columns made before the fit; known are {', '.join(NAMES)}, scale, center, C"
        raise DataError(f"formula {formula!r}", "what can be computed", actual, hint) from problem


@cache
def parsed(formula: str) -> tuple[str, str, frozenset[str], frozenset[str]]:
    """Return the two sides of a formula, and the columns that each names.

    Raises
    ------
    ArgumentError
        If it is no formula with a response.
    """
    formulae, (left, mark, right) = needs("formulae", "formulas"), formula.partition("~")
    expected, hint = FORMULA.expected, FORMULA.hint
    if not (left.strip() and mark and right.strip()):
        raise ArgumentError("regression, formula", expected, repr(formula), hint)
    try:
        sides = [formulae.model_description(side).var_names for side in (f"{left} ~ 1", right)]
        names, others = (frozenset(side - {""}) for side in sides)
    except Exception as problem:
        raise ArgumentError("regression, formula", expected, problem, hint) from problem
    return left.strip(), right.strip(), names, others


def place(site: str) -> str:
    """Return how an error names the rows of a site, or those of none, which are predicted."""
    return f"site {site!r}" if site else "new rows"


def picked(frame: Frame, names: Collection[str], site: str, missing: Missing) -> Frame:
    """Return the columns of a formula, without rows that have missing values; booleans are numbers.

    Raises
    ------
    DataError
        If a column is not there, or rows have missing values and are not to be dropped.
    """
    for name in names:
        if name not in frame.columns:
            there = [str(column) for column in frame.columns]
            expected = f"a column {name!r}"
            raise DataError(place(site), expected, f"{there[:12]}", meant(name, there))
    frame = frame[sorted(names)]
    holes = frame.isna()
    if (count := int(holes.any(axis=1).sum())) and missing == "refuse":
        inside = ", ".join(
            f"{number} in {name!r}" for name, number in holes.sum().items() if number
        )
        actual = f"{count} of {len(frame)} rows with missing values ({inside})"
        raise DataError(place(site), "values in all rows", actual, "missing='drop'")
    frame = frame[~holes.any(axis=1)]
    flags = {name: float for name, kind in frame.dtypes.items() if str(kind) == "bool"}
    return frame.astype(flags)


class Told(NamedTuple):
    """What a site tells of its columns: categories; number, sums and sums of squares."""

    levels: Mapping[str, tuple[Any, ...]]
    sums: Mapping[str, tuple[float, float, float]]


def told(formula: str, frame: Frame, more: Collection[str], site: str) -> Told:
    """Return what a site with rows tells of the columns of a formula; `more` are columns of
    categories whatever they hold, `site` is that of sites, whose names may be numbers.
    """
    made = evaluated(formula, frame)
    terms = [*(made.common.terms.values() if made.common else ())]
    groups = [*made.group.terms.values()] if made.group else []
    for term in groups:
        terms += [term.expr, term.factor]
    parts = [made.response.term.term] + [term for term in terms if term.kind != "intercept"]
    kinds = [component for term in parts for component in term.components]
    names = {name for one in kinds if one.kind == "categoric" for name in one.var_names} | {*more}
    # Those that C(...) or a group makes categories are meant to be.
    groupers = {one.name for term in groups for one in term.factor.components}
    bare = {one.name for one in kinds} - {*more, *groupers, site}
    levels, sums = dict[str, tuple[Any, ...]](), dict[str, tuple[float, float, float]]()
    for name, column in frame.items():
        if name in names:
            levels[name] = _levels(column)
            if name in bare and _are_numbers(levels[name]):
                expected, hint = "numbers", f"frame[{name!r}].astype(float), or C({name})"
                actual = f"texts such as {levels[name][0]!r}"
                raise DataError(f"column {name!r}", expected, actual, hint)
        else:
            try:
                values = column.to_numpy(np.float64)
            except ValueError as problem:
                expected, hint = "numbers", f"C({name}), or (1 | {name})"
                raise DataError(f"column {name!r}", expected, problem, hint) from problem
            sums[name] = (float(len(values)), float(values.sum()), float((values**2).sum()))
    return Told(levels, sums)


def _are_numbers(levels: tuple[Any, ...]) -> bool:
    """Return whether categories are texts that all are numbers, as of a column read as text."""
    try:
        return all(isinstance(one, str) and math.isfinite(float(one)) for one in levels)
    except ValueError:
        return False


def _levels(column: Any) -> tuple[Any, ...]:
    """Return the categories of a column: in their order if they have one, else sorted."""
    kind = column.dtype
    if isinstance(kind, needs("pandas", "formulas").CategoricalDtype) and kind.ordered:
        return tuple(kind.categories.tolist())
    found = sorted(column.unique().tolist())
    if any(isinstance(one, float) and not one.is_integer() for one in found):
        expected, hint = (
            "categories that are texts or whole numbers",
            "a column made with pandas.cut",
        )
        raise DataError(f"column {column.name!r}", expected, found[:4], hint)
    return tuple(found)


def agreed(sites: Mapping[str, Told]) -> tuple[Levels, Moments]:
    """Return the categories of all sites, in the order of an ordered column if all have the same,
    else sorted; and means and sds of the other columns.

    Raises
    ------
    DataError
        If a column has categories of different types.
    """
    levels, moments = list[tuple[str, tuple[Any, ...]]](), list[tuple[str, tuple[float, float]]]()
    names = sorted({name for one in sites.values() for name in (*one.levels, *one.sums)})
    for name in names:
        lists = {one.levels[name] for one in sites.values() if name in one.levels}
        every = {level for some in lists for level in some}
        mixed = lists and any(name in one.sums for one in sites.values())
        if mixed or len({type(level) for level in every}) > 1:
            actual = {
                site: type(one.levels[name][0]).__name__ if name in one.levels else "numbers"
                for site, one in sites.items()
            }
            frames = f"frame[{name!r}].astype"
            hint = f"{frames}(float) at all sites, or {frames}(str)"
            raise DataError(f"column {name!r}", "one type at all sites", actual, hint)
        if lists:
            levels.append((name, lists.pop() if len(lists) == 1 else tuple(sorted(every))))
        else:
            moments.append(
                (
                    name,
                    moments_of(
                        *map(sum, zip(*(s.sums[name] for s in sites.values()), strict=True))
                    ),
                )
            )
    return tuple(levels), tuple(moments)


def moments_of(count: float, total: float, squares: float) -> tuple[float, float]:
    """Return mean and sd of a number of values, their sum and that of their squares; an sd that
    is rounding alone is 0.
    """
    mean, square = total / count, squares / count
    variance = square - mean**2
    return mean, (variance**0.5 if variance > 1e-12 * square else 0.0)


def categorised(frame: Frame, levels: Levels, *, free: frozenset[str] = frozenset()) -> Frame:
    """Return a frame whose ordered categories are the agreed ones.

    Parameters
    ----------
    free
        Columns that may have others, which are then missing.

    Raises
    ------
    DataError
        If another column has a category that no site had.
    """
    pandas, made = needs("pandas", "formulas"), frame.copy()
    for name, known in levels:
        if name not in frame:
            continue
        there = frame[name].isin(known)
        if not there.all() and name not in free:
            new = sorted(frame[name][~there].astype(str).unique())
            hint = f"rows with {', '.join(map(repr, known[:8]))}, or a fit of sites with the others"
            raise DataError(f"column {name!r}", "categories of the fit", f"{new[:8]}", hint)
        values = frame[name].where(there)
        # Texts in another order than theirs are an ordered column's.
        ordered = any(isinstance(one, str) for one in known) and [*known] != sorted(known)
        made[name] = (
            pandas.Categorical(values, categories=known, ordered=True)
            if ordered
            else values.astype(object if isinstance(known[0], str) else values.dtype)
        )
    return made


class Group(NamedTuple):
    """A term ``(EXPR | FACTOR)``.

    Parameters
    ----------
    name, factor
        Its name, ``x|hospital``, and that of its factor.
    columns
        Names of the q columns of the expression.
    levels
        Names of the L groups; of a site's own they are numbers, of as many as a site has at most.
    own
        Whether each group is at one site, as where groups are sites or wards of them.
    """

    name: str
    factor: str
    columns: tuple[str, ...]
    levels: tuple[str, ...]
    own: bool

    @property
    def spread(self) -> str:
        """Name of the site of its sds."""
        return f"{self.name}_spread"

    @property
    def size(self) -> int:
        """L q, the number of columns that it has in the rows."""
        return len(self.columns) * len(self.levels)

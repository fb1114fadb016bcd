"""Categories and moments of columns: what each site tells of its own, and what all of them have.

A site tells the names of categories, with their order if the column has one, and of every other
column the number of values, their mean, and the sum of squares about it. The last two are merged
without cancellation (Chan, Golub and LeVeque, 1983), so a column of times in seconds since 1970
keeps the sd of an hour.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any, Literal, NamedTuple

import networkx as nx
import numpy as np

from bayesfed.errors import DataError, complain, needs
from bayesfed.errors.checks import shown
from bayesfed.models.regression.frames import Frame, describe_rows

Levels = tuple[tuple[str, tuple[Any, ...]], ...]
Moments = tuple[tuple[str, tuple[float, float]], ...]
# None: sorted. Listed: as the categories of a pandas column stand. Ordered: that order has meaning.
Order = Literal["none", "listed", "ordered"]
# Texts of a column of numbers or dates that was read as texts.
DECIMAL_COMMA = re.compile(r"\s*[-+]?\d+,\d+\s*")
THOUSANDS = re.compile(r"\s*[-+]?\d{1,3}([,.' ]\d{3})+([.,]\d+)?\s*")
DETECTION_LIMIT = re.compile(r"\s*[<>]=?\s*[-+]?\d.*")
DATE = re.compile(r"\s*(\d{4}-\d{1,2}-\d{1,2}|\d{1,2}[./-]\d{1,2}[./-]\d{2,4})([ T].*)?\s*")
# A column of texts with more than this share of a site's rows as categories names its rows.
MAX_SHARE_OF_LEVELS = 0.5
MIN_LEVELS_OF_NAMES = 20
# Numbers of groups that every site may count from one: 3, p017, P-3.
NUMBERED = re.compile(r"[A-Za-z]{0,3}[-_]?0*\d+")


class Categories(NamedTuple):
    """Categories of a column of one site.

    Parameters
    ----------
    levels
        Their names, texts or whole numbers, in their order.
    observed
        Those that rows of the site have.
    order
        What the order means.
    """

    levels: tuple[Any, ...]
    observed: tuple[Any, ...]
    order: Order


class Summary(NamedTuple):
    """Number of values, their mean, and the sum of squares about it."""

    number: float
    mean: float
    squares: float

    @classmethod
    def of(cls, values: Any) -> Summary:
        """Return the summary of values ``(N,)``, N at least 1."""
        mean = float(values.mean())
        return cls(float(len(values)), mean, float(((values - mean) ** 2).sum()))

    def merge(self, other: Summary) -> Summary:
        """Return the summary of both sets of values."""
        number = self.number + other.number
        if not number:
            return self
        step = other.mean - self.mean
        mean = self.mean + step * other.number / number
        between = step**2 * self.number * other.number / number
        return Summary(number, mean, self.squares + other.squares + between)

    @property
    def moments(self) -> tuple[float, float]:
        """Mean and sd; an sd that is rounding alone is 0."""
        variance = self.squares / self.number if self.number else 0.0
        rounding = 4 * np.finfo(np.float64).eps * abs(self.mean)
        return self.mean, (variance**0.5 if variance**0.5 > rounding else 0.0)


class ColumnSummary(NamedTuple):
    """What a site tells of its columns.

    Parameters
    ----------
    levels
        Categories, by the column's name.
    sums
        Number, mean and squares of the columns of numbers.
    """

    levels: Mapping[str, Categories]
    sums: Mapping[str, Summary]


def merge_all(parts: Sequence[Summary]) -> Summary:
    """Return the summary of the values of all parts."""
    total = Summary(0.0, 0.0, 0.0)
    for part in parts:
        total = total.merge(part)
    return total


def read_categories(column: Any, site: str) -> Categories:
    """Return the categories of a column without missing values.

    Raises
    ------
    DataError
        If they are numbers that are not whole.
    """
    kind = column.dtype
    values = sorted(column.unique().tolist(), key=lambda level: (isinstance(level, str), level))
    if isinstance(kind, needs("pandas", "formulas").CategoricalDtype):
        order: Order = "ordered" if kind.ordered else "listed"
        return Categories(tuple(kind.categories.tolist()), tuple(values), order)
    if any(isinstance(level, float) and not level.is_integer() for level in values):
        where = f"{describe_rows(site)}, column {column.name!r}"
        expected = "categories that are texts or whole numbers"
        raise DataError(where, expected, values[:4], "a column made with pandas.cut")
    return Categories(tuple(values), tuple(values), "none")


def check_texts(name: str, levels: Sequence[Any], rows: int, site: str) -> None:
    """Raise `DataError` if categories seem to be numbers or dates that were read as texts, or names
    of rows.

    Parameters
    ----------
    name
        The column, which no ``C(...)`` and no group makes categories.
    levels
        Its categories at a site.
    rows
        Number of rows of the site.
    site
        Its name.
    """
    texts = [level for level in levels if isinstance(level, str)]
    if not texts:
        return
    where = f"{describe_rows(site)}, column {name!r}"
    actual = f"texts such as {texts[0]!r}"
    plain = [text for text in texts if _is_number(text)]
    if len(plain) == len(texts):
        hint = f"frame[{name!r}].astype(float), or C({name})"
        raise DataError(where, "numbers", actual, hint)
    shapes = {
        # First, since 38,000 may be both.
        "thousands": [text for text in texts if THOUSANDS.fullmatch(text)],
        "decimal": [text for text in texts if DECIMAL_COMMA.fullmatch(text)],
        "limits": [text for text in texts if DETECTION_LIMIT.fullmatch(text)],
        "dates": [text for text in texts if DATE.fullmatch(text)],
    }
    alike = set(plain).union(*shapes.values())
    if 2 * len(alike) > len(texts):
        shape = max(shapes, key=lambda kind: len(shapes[kind]))
        actual = f"{len(texts)} categories, most of them texts such as {min(alike)!r}"
        hints = {
            "decimal": "pandas.read_csv(..., decimal=',') or thousands=','",
            "thousands": "pandas.read_csv(..., thousands=',') or decimal=','",
            "limits": f"pandas.to_numeric(frame[{name!r}], errors='coerce'), or a number for them",
            "dates": (
                f"(pandas.to_datetime(frame[{name!r}]) - pandas.Timestamp('2020-01-01')).dt.days"
            ),
        }
        expected = "dates as numbers" if shape == "dates" else "numbers"
        raise DataError(where, expected, actual, f"{hints[shape]}; or C({name}) for categories")
    if len(levels) >= MIN_LEVELS_OF_NAMES and len(levels) > MAX_SHARE_OF_LEVELS * rows:
        actual = f"{len(levels)} in {rows} rows"
        hint = f"a column of numbers, (1 | {name}) for groups, or C({name}) if it is meant"
        raise DataError(where, "fewer categories than half of the rows", actual, hint)


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def merge_summaries(
    sites: Mapping[str, ColumnSummary], *, response: Collection[str] = (), site: str = ""
) -> tuple[Levels, Moments]:
    """Return the categories of all sites, and means and sds of the columns of numbers.

    Categories are in the order that the sites' columns have, else sorted. A site that lacks some of
    the others' is no other order.

    Parameters
    ----------
    sites
        What each site with rows tells.
    response
        The columns of an ordinal response: its order must be known, and categories that no row has
        stay.
    site
        The column of sites, whose whole numbers are sorted as numbers.

    Raises
    ------
    DataError
        If a column has categories of different types, or orders that contradict each other.
    """
    levels = list[tuple[str, tuple[Any, ...]]]()
    moments = list[tuple[str, tuple[float, float]]]()
    names = sorted({name for part in sites.values() for name in (*part.levels, *part.sums)})
    for name in names:
        lists = {key: part.levels[name] for key, part in sites.items() if name in part.levels}
        sums = [part.sums[name] for part in sites.values() if name in part.sums]
        _check_types(name, sites)
        if lists:
            merged = _merge_levels(name, lists, ordinal=name in response, numbered=name == site)
            levels.append((name, merged))
        if sums:
            moments.append((name, merge_all(sums).moments))
    return tuple(levels), tuple(moments)


def _check_types(name: str, sites: Mapping[str, ColumnSummary]) -> None:
    """Raise `DataError` if a column is of categories at one site and of numbers at another, or of
    texts at one and of whole numbers at another.
    """
    kinds = dict[str, str]()
    for site, part in sites.items():
        if name in part.levels:
            types = sorted({type(level).__name__ for level in part.levels[name].levels})
            kinds[site] = " and ".join(types)
        elif name in part.sums:
            kinds[site] = "numbers"
    if len(set(kinds.values())) > 1:
        frames = f"frame[{name!r}].astype"
        hint = f"{frames}(float) at all sites, or {frames}(str)"
        raise DataError(f"column {name!r}", "one type at all sites", kinds, hint)


def _merge_levels(
    name: str, sites: Mapping[str, Categories], *, ordinal: bool, numbered: bool
) -> tuple[Any, ...]:
    """Return the categories of all sites."""
    observed = {level for part in sites.values() for level in part.observed}
    every = observed | {level for part in sites.values() for level in part.levels}
    texts = any(isinstance(level, str) for level in every)
    ordered = {part.levels: site for site, part in sites.items() if part.order == "ordered"}
    listed = {part.levels: site for site, part in sites.items() if part.order == "listed"}
    if ordinal and texts:
        unknown = sorted(map(str, every - {level for known in ordered for level in known}))
        if not ordered or unknown:
            words = ", ".join(repr(str(level)) for level in sorted(every, key=str)[:3])
            hint = (
                f"pandas.Categorical(frame[{name!r}], [{words}, ...], ordered=True) at each site, "
                "lowest first"
            )
            actual = f"categories without an order: {', '.join(unknown[:8])}"
            raise DataError(f"column {name!r}", "an order of the response", actual, hint)
    kept = every if ordinal else observed
    if ordered:
        merged = merge_orders([*ordered])
        if merged is None or not _is_total([*ordered], merged):
            actual = _show_orders(ordered)
            hint = f"frame[{name!r}].cat.set_categories([...], ordered=True) at all sites"
            raise DataError(f"column {name!r}", "one order at all sites", actual, hint)
        rest = sorted(every.difference(merged), key=str)
        return tuple(level for level in (*merged, *rest) if level in kept)
    rest = sorted(every.difference(*listed), key=lambda level: (isinstance(level, str), level))
    if listed:
        merged = merge_orders([*listed])
        if merged is not None:
            return tuple(level for level in (*merged, *rest) if level in kept)
        hint = f"frame[{name!r}].cat.set_categories([...]) at all sites; they are sorted until then"
        expected = "one order of its categories, whose first is the reference"
        text = complain(f"column {name!r}", expected, _show_orders(listed), hint)
        warnings.warn(text, stacklevel=2)
    if numbered and all(str(level).isdecimal() for level in kept):
        return tuple(sorted(kept, key=lambda level: (int(level), level)))
    return tuple(sorted(kept))


def _show_orders(orders: Mapping[tuple[Any, ...], str]) -> str:
    """Return orders in words, each with a site that has it."""
    return "; ".join(f"{', '.join(map(str, order))} at {site!r}" for order, site in orders.items())


def merge_orders(orders: Sequence[tuple[Any, ...]]) -> tuple[Any, ...] | None:
    """Return one order in which all of these orders are parts, None if there is none.

    Where several would do, what is not determined is sorted.
    """
    graph: nx.DiGraph[Any] = nx.DiGraph()
    for order in orders:
        graph.add_nodes_from(order)
        graph.add_edges_from(pairwise(order))
    if not nx.is_directed_acyclic_graph(graph):
        return None
    return tuple(nx.lexicographical_topological_sort(graph, key=str))


def _is_total(orders: Sequence[tuple[Any, ...]], merged: Sequence[Any]) -> bool:
    """Return whether these orders leave no other merged one: neighbours in it are in some."""
    known = {pair for order in orders for pair in pairwise(order)}
    return all(pair in known for pair in pairwise(merged))


def apply_categories(
    frame: Frame,
    levels: Levels,
    site: str = "",
    *,
    free: frozenset[str] = frozenset(),
    plain: frozenset[str] = frozenset(),
) -> Frame:
    """Return a frame whose categories are those of all sites, in their order.

    Parameters
    ----------
    frame
        Rows without missing values.
    levels
        The categories by column.
    site
        Name of the site, for messages.
    free
        Columns that may have others, which are then missing.
    plain
        Columns that a formula uses as numbers as well, which stay numbers.

    Raises
    ------
    DataError
        If another column has a category that no site had.
    """
    pandas = needs("pandas", "formulas")
    columns = dict[str, Any]()
    for name, known in levels:
        if name not in frame:
            continue
        by_text = {_level_text(level): level for level in known}
        # 3, 3.0 and "3" are one category, as in the column of sites.
        values = frame[name].astype(object).map(_level_text)
        there = values.isin(by_text.keys())
        if not there.all() and name not in free:
            new = sorted(values[~there].unique())
            where = f"{describe_rows(site)}, column {name!r}"
            hint = f"rows with {', '.join(map(repr, known[:8]))}, or a fit of sites with the others"
            raise DataError(where, "categories of the fit", f"{new[:8]}", hint)
        if name in plain:
            continue
        matched = [by_text.get(value) for value in values]
        categorical = pandas.Categorical(matched, categories=list(known), ordered=True)
        columns[name] = pandas.Series(categorical, index=frame.index)
    return frame.assign(**columns)


def _level_text(level: Any) -> str:
    """Return a category as text, whole numbers without a decimal point."""
    if isinstance(level, float) and level.is_integer():
        return str(int(level))
    return str(level)


def warn_of_spellings(levels: Levels) -> None:
    """Warn of categories that differ only by blanks around them, or capitals."""
    for name, known in levels:
        texts = sorted((level for level in known if isinstance(level, str)), key=_fold)
        alike: Sequence[Sequence[str]] = [[*same] for _, same in groupby(texts, _fold)]
        if twice := [same for same in alike if len(same) > 1]:
            expected = "categories that differ by more than blanks and capitals"
            hint = f"frame[{name!r}].str.strip().str.lower() at all sites, unless meant"
            text = complain(f"column {name!r}", expected, shown(twice[0]), hint)
            warnings.warn(text, stacklevel=2)


def _fold(level: str) -> str:
    return level.strip().casefold()


def warn_of_numbered_groups(
    factor: str, expression: str, site: str, groups: Mapping[str, Collection[str]]
) -> None:
    """Warn of groups that are numbered, and have the same numbers at two sites: patients who are
    counted from one at every site would be one person.

    Parameters
    ----------
    factor, expression
        Both sides of ``(expression | factor)``; the factor does not name the site.
    site
        The column of sites.
    groups
        Names of the groups of each site.
    """
    seen = dict[str, str]()
    shared = set[str]()
    for name, levels in groups.items():
        for level in levels:
            if level in seen and seen[level] != name:
                shared.add(level)
            seen.setdefault(level, name)
    if shared and all(NUMBERED.fullmatch(level) for level in shared):
        text = complain(
            f"groups of {factor!r}",
            "numbers that mean one thing at all sites",
            f"{len(shared)} of them at two sites or more",
            f"({expression} | {site}:{factor}) if every site numbers its own; keep "
            f"({expression} | {factor}) if a number is the same at all sites",
        )
        warnings.warn(text, stacklevel=2)

"""Frames of sites at the door: whose rows they are, which columns a formula needs, and their types.

A site's name is a text everywhere: the whole numbers 3 and 3.0 and the text "3" are one name. Every
number becomes float64 before a formula sees it, since integers of a byte or two would wrap in
``x**2``; the codes of categories become int64, so that their names have no decimal point.
"""

from __future__ import annotations

import datetime
import numbers
import warnings
from collections.abc import Collection
from typing import Any, Literal, get_args

import numpy as np

from bayesfed.data.readers.labels import meant
from bayesfed.errors import ArgumentError, DataError, complain, needs
from bayesfed.errors.checks import Role

# A frame of pandas, which has no types.
Frame = Any
Missing = Literal["refuse", "drop"]
ROWS = Role(
    lambda frame: isinstance(frame, needs("pandas", "formulas").DataFrame) and len(frame) > 0,
    "a pandas frame with rows",
    "pandas.DataFrame([{'x': 1.0}])",
)
# The site of new rows that are of none: a character that no name has.
NEW_SITE = "\ue000"
MISSING = Role(lambda word: word in get_args(Missing), "'refuse' or 'drop'", "'drop'")


def describe_rows(site: str) -> str:
    """Return how an error names the rows of a site, or new rows, which have no site."""
    return f"site {site!r}" if site else "new rows"


def name_site(value: object) -> str | None:
    """Return the name of a site, from a cell of the column of sites; None if the cell is empty.

    Whole numbers have one name, whether they are stored as integers or as floats.
    """
    if value is None or value is needs("pandas", "formulas").NA:
        return None
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        if value != value:  # noqa: PLR0124 NaN alone is unlike itself
            return None
        number = float(value)
        return str(int(number)) if number.is_integer() else str(value)
    text = str(value)
    return text if text.strip() and text != "NaT" else None


def name_sites(column: Any) -> Any:
    """Return a column of sites as texts, None where a cell is empty."""
    names = [name_site(value) for value in column]
    return needs("pandas", "formulas").Series(names, index=column.index, dtype=object)


def split_by_site(data: Frame, site: str, missing: Missing) -> dict[str, Frame]:
    """Return the rows of each site of a frame, by its name, in the order of the names.

    Raises
    ------
    ArgumentError
        If the frame has no column of sites, or two.
    DataError
        If rows have no site and are not to be dropped.
    """
    if site not in data.columns:
        expected = f"frames by site, or a frame with the column {site!r}"
        there = ", ".join(map(str, data.columns[:12]))
        raise ArgumentError("regression, data", expected, there, "site='name of that column'")
    check_columns_once(data, [site], "")
    names = name_sites(data[site])
    empty = int(names.isna().sum())
    if empty:
        actual = f"{empty} of {len(data)} rows without one"
        if missing == "refuse":
            hint = "missing='drop'"
            raise DataError(f"column {site!r}", "a site in every row", actual, hint)
        hint = f"frame[{site!r}].fillna('unknown') before the fit"
        text = complain(f"column {site!r}", "a site in every row", f"{actual}, dropped", hint)
        warnings.warn(text, stacklevel=4)
    named = data.assign(**{site: names})
    return {str(name): rows for name, rows in named.groupby(site, sort=True)}


def add_site(frame: Frame, site: str, name: str) -> Frame:
    """Return a frame whose column of sites is of texts; frames without that column get it.

    Parameters
    ----------
    frame
        Rows of one site, or rows to predict.
    site
        Name of the column.
    name
        Name of the site of all rows; "" if they are of no site of the fit, or of several.

    Raises
    ------
    DataError
        If the column says that rows are of another site than `name`.
    """
    if site not in frame.columns:
        return frame.assign(**{site: name or NEW_SITE})
    check_columns_once(frame, [site], name)
    names = name_sites(frame[site])
    if name:
        others = int((names.notna() & (names != name)).sum())
        if others:
            expected = f"rows of this site alone in the column {site!r}"
            actual = f"{others} of {len(frame)} rows of others"
            hint = f"frames by the values of that column, or frame.drop(columns={site!r})"
            raise DataError(describe_rows(name), expected, actual, hint)
        names = names.fillna(name)
    return frame.assign(**{site: names})


def check_columns_once(frame: Frame, names: Collection[str], site: str) -> None:
    """Raise `DataError` if a frame has two columns of one of these names."""
    columns = [column for column in frame.columns if column in names]
    for name in sorted(names):
        if columns.count(name) > 1:
            hint = "frame.loc[:, ~frame.columns.duplicated()]"
            found = f"{columns.count(name)} of them"
            raise DataError(describe_rows(site), f"one column {name!r}", found, hint)


def select_columns(
    frame: Frame,
    names: Collection[str],
    site: str,
    missing: Missing,
    categories: Collection[str] = (),
) -> Frame:
    """Return the columns of a formula without rows that have missing values, in types that a
    formula can compute with (`convert_column`).

    Parameters
    ----------
    frame
        Rows.
    names
        Names of the columns.
    site
        Name of the site, for messages; "" for new rows.
    missing
        "refuse" or "drop".
    categories
        The columns that the formula makes categories.

    Raises
    ------
    DataError
        If a column is not there, is there twice or has a type that cannot be used, or if rows have
        missing values and are not to be dropped.
    """
    for name in names:
        if name not in frame.columns:
            there = [str(column) for column in frame.columns]
            expected = f"a column {name!r}"
            raise DataError(describe_rows(site), expected, f"{there[:12]}", meant(name, there))
    check_columns_once(frame, names, site)
    frame = frame[sorted(names)]
    holes = frame.isna()
    incomplete = holes.any(axis=1)
    count = int(incomplete.sum())
    if count and missing == "refuse":
        inside = ", ".join(
            f"{number} in {name!r}" for name, number in holes.sum().items() if number
        )
        actual = f"{count} of {len(frame)} rows with missing values ({inside})"
        raise DataError(describe_rows(site), "values in all rows", actual, "missing='drop'")
    complete = frame[~incomplete]
    converted = {
        name: convert_column(complete[name], site, category=name in categories)
        for name in complete.columns
    }
    return needs("pandas", "formulas").DataFrame(converted, index=complete.index)


def convert_column(column: Any, site: str, *, category: bool) -> Any:
    """Return a column without missing values as float64, as int64 if it holds the codes of
    categories, as texts, or as pandas' categories with names that are texts or whole numbers.

    Raises
    ------
    DataError
        If it holds dates, spans of time, complex numbers, or values of several types.
    """
    pandas = needs("pandas", "formulas")
    kind = column.dtype
    if isinstance(kind, pandas.CategoricalDtype):
        if all(isinstance(level, str | int) for level in kind.categories):
            return column
        # Intervals, as of pandas.cut without labels, and other numbers.
        levels = kind.categories
        if all(isinstance(level, float) and level.is_integer() for level in levels):
            return column.cat.rename_categories([int(level) for level in levels])
        return column.cat.rename_categories([str(level) for level in levels])
    types = pandas.api.types
    if types.is_object_dtype(kind) or types.is_string_dtype(kind):
        return _convert_objects(column.astype(object), site, category=category)
    if types.is_bool_dtype(kind):
        return column.astype(np.int64 if category else np.float64)
    if types.is_complex_dtype(kind) or not types.is_numeric_dtype(kind):
        raise _refuse_type(column.name, site, str(kind))
    values = column.to_numpy(np.float64)
    if category and types.is_integer_dtype(kind):
        values = column.to_numpy(np.int64)
    elif category and (values == np.round(values)).all() and np.isfinite(values).all():
        values = values.astype(np.int64)
    return pandas.Series(values, index=column.index, name=column.name)


def _convert_objects(column: Any, site: str, *, category: bool) -> Any:
    """Return a column of objects as texts or as numbers."""
    if all(isinstance(value, str) for value in column):
        return column
    if all(isinstance(value, bool | np.bool_) for value in column):
        return column.astype(bool).astype(np.int64 if category else np.float64)
    numeric = needs("decimal", "formulas").Decimal, numbers.Real
    if all(isinstance(value, numeric) and not isinstance(value, bool) for value in column):
        return convert_column(column.astype(np.float64), site, category=category)
    kinds = sorted({type(value).__name__ for value in column})
    for value in column:
        if isinstance(value, datetime.date | datetime.timedelta | datetime.time):
            raise _refuse_type(column.name, site, type(value).__name__)
    expected = f"one type in column {column.name!r}"
    hint = f"pandas.to_numeric(frame[{column.name!r}]), or .astype(str) for categories"
    raise DataError(describe_rows(site), expected, f"values of {', '.join(kinds)}", hint)


def _refuse_type(name: str, site: str, kind: str) -> DataError:
    """Return the error of a column of a type that is neither numbers nor categories."""
    expected = f"numbers or categories in column {name!r}"
    hint = f"frame[{name!r}].abs(), or its real part"
    if "timedelta" in kind:
        hint = f"frame[{name!r}].dt.days, or .dt.total_seconds()"
    elif "date" in kind or "period" in kind or "time" in kind:
        hint = (
            f"days since a date, (pandas.to_datetime(frame[{name!r}]) - "
            "pandas.Timestamp('2020-01-01')).dt.days"
        )
    return DataError(describe_rows(site), expected, f"the type {kind}", hint)

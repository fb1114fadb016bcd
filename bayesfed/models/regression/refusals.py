"""What is refused, or warned of, before a fit: terms that look at other rows, names that the fit
has itself, and what only seems to be one category or is a site no more.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from bayesfed.errors import ArgumentError, DataError, complain
from bayesfed.models.regression.families import FAMILIES
from bayesfed.models.regression.frames import Frame, describe_rows
from bayesfed.models.regression.tables import INTERCEPT

# Rows in another order: all but the first, both halves, and the first alone.
PARTS = (
    *(slice(None), slice(None, 0, -1)),
    *(slice(None, None, -2), slice(-2, None, -2), slice(1)),
)


def is_alone(frame: Frame, values: Any, *computed: Callable[[Frame], Any]) -> bool:
    """Return whether functions make these values of each row alone: the same of parts of a frame,
    whose rows are in another order.
    """
    if values.shape[:1] != (len(frame),):
        return False
    size = np.abs(values[np.isfinite(values)]).max(initial=0.0)
    for part in (part for part in PARTS if len(values[part])):
        for compute in computed:
            try:
                with np.errstate(all="ignore"):
                    found = np.asarray(compute(frame.iloc[part]), np.float64)
            except ValueError:
                # C(...) of rows that lack a category.
                continue
            one, close = values[part], {"rtol": 1e-6, "atol": 1e-8 * size}
            if one.shape != found.shape or not np.allclose(one, found, equal_nan=True, **close):
                return False
    return True


def check_alone(name: str, frame: Frame, values: Any, *computed: Callable[[Frame], Any]) -> None:
    """Raise `ArgumentError` unless `is_alone` of a term."""
    if not is_alone(frame, values, *computed):
        expected = "terms of a row alone, of means and sds of columns, and of categories"
        hint = "scale(x), center(x), or a column made before the fit"
        raise ArgumentError("regression, formula", expected, name, hint)


def columns_of(term: Any, frame: Frame, site: str) -> Any:
    """Return the columns of a term for a frame.

    Raises
    ------
    ArgumentError, DataError
        If they cannot be computed, of each row alone, or are not finite.
    """
    where = f"{describe_rows(site)}, {term.name!r}"
    try:
        with np.errstate(all="ignore"):
            values = np.asarray(term.eval_new_data(frame), np.float64)
    except ValueError as problem:
        hint = "the column without C(...)"
        raise DataError(where, "what can be computed", problem, hint) from problem
    check_alone(term.name, frame, values, term.eval_new_data)
    values = values[:, None] if values.ndim == 1 else values
    if bad := int((~np.isfinite(values)).any(axis=1).sum()):
        actual, hint = f"{bad} rows of {len(values)} with others", "other rows, or log(x + 1)"
        raise DataError(where, "finite numbers", actual, hint)
    return values


def check_free(labels: Iterable[str], family: str) -> None:
    """Raise `ArgumentError` if a column of the design has the name of another value of the fit."""
    for name in sorted({INTERCEPT, *FAMILIES[family].further(1.0, 2)}.intersection(labels)):
        expected = f"columns of other names than {name!r}, which the fit has itself"
        hint = f"frame.rename(columns={{{name!r}: '{name}_x'}}) at all sites"
        raise ArgumentError("regression, formula", expected, name, hint)


def warn_of_emptied(frames: Mapping[str, Frame], chosen: Mapping[str, Frame]) -> None:
    """Warn of sites that had rows, but no complete ones."""
    if none := [name for name, frame in frames.items() if len(frame) and not len(chosen[name])]:
        found = f"none at {', '.join(map(repr, none[:5]))}{', ...' if none[5:] else ''}"
        hint = "a formula without the columns that are missing there, or frames of other sites"
        text = complain("regression, missing='drop'", "complete rows at each site", found, hint)
        warnings.warn(text, stacklevel=2)

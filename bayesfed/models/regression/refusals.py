"""What is refused, or warned of, before a fit: columns that are not finite, names that the fit has
itself, and sites without complete rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from bayesfed.errors import ArgumentError, DataError, complain
from bayesfed.models.regression.families import FAMILIES
from bayesfed.models.regression.frames import Frame, describe_rows
from bayesfed.models.regression.tables import INTERCEPT


def columns_of(term: Any, frame: Frame, site: str) -> Any:
    """Return the columns of a term for a frame.

    Raises
    ------
    DataError
        If they are not finite.
    """
    where = f"{describe_rows(site)}, {term.name!r}"
    with np.errstate(all="ignore"):
        values = np.asarray(term.eval_new_data(frame), np.float64)
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

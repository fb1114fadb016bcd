"""A regression as data that JSON can hold: its design (formula, family, levels, moments, homes),
its model and how it was asked. Snapshots carry it, so that a fit is opened from its folder without
the frames, and fingerprints cover it.

Tuples are lists, and what JSON has no word for is an object with a "kind": a record of this
package, a mapping, a date. Nothing else is read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from bayesfed.errors import CheckpointError, needs
from bayesfed.models.regression.design import Design
from bayesfed.models.regression.model import RegressionModel
from bayesfed.models.regression.tables import Group

# Where an algorithm's origin has a regression.
REGRESSION = "regression"
KIND, ITEMS, TEXT = "kind", "items", "text"
MAP, DATE, NUMBER = "map", "date", "number"
RECORDS: Mapping[str, type] = {kind.__name__: kind for kind in (Design, RegressionModel, Group)}


def to_record(
    design: Design, model: RegressionModel, least_rows: int | None = None, secure: int | None = None
) -> dict[str, Any]:
    """Return a regression as data that JSON can hold; parameters are those of `Prepared`."""
    return {
        "design": _written(design),
        "model": _written(model),
        "least_rows": least_rows,
        "secure": secure,
    }


def of_record(record: Mapping[str, Any]) -> tuple[Design, RegressionModel]:
    """Return the design and the model of a record.

    Raises
    ------
    CheckpointError
        If it is none that `to_record` of this version wrote.
    """
    try:
        design, model = _read(record["design"]), _read(record["model"])
        if not (isinstance(design, Design) and isinstance(model, RegressionModel)):
            raise ValueError("other records")
        return design, model
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise CheckpointError(
            "regression in a checkpoint",
            "a design and a model that this version wrote",
            f"{type(problem).__name__}: {problem}",
            "open(folder, algorithm=prepared(...).algorithm), with the frames",
        ) from problem


def _written(value: Any) -> Any:  # noqa: PLR0911 a case a kind
    if isinstance(value, np.generic):
        return _written(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        # JSON has no such numbers.
        return {KIND: NUMBER, TEXT: repr(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    name = type(value).__name__
    if name in RECORDS:
        names = getattr(value, "_fields", None) or _fields(value)
        return {KIND: name} | {one: _written(getattr(value, one)) for one in names}
    if isinstance(value, Mapping):
        return {KIND: MAP, ITEMS: [[_written(one) for one in pair] for pair in value.items()]}
    if isinstance(value, tuple | list):
        return [_written(one) for one in value]
    if hasattr(value, "isoformat"):
        return {KIND: DATE, TEXT: value.isoformat()}
    # A level of another type: it is known by its text, and the fit cannot be read again.
    return {KIND: name, TEXT: str(value)}


def _fields(value: Any) -> list[str]:
    return [one.name for one in fields(value) if one.init]


def _read(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_read(one) for one in value)
    if not isinstance(value, Mapping):
        return value
    kind = value[KIND]
    if kind == MAP:
        return {_read(name): _read(one) for name, one in value[ITEMS]}
    if kind == DATE:
        return needs("pandas", "formulas").Timestamp(value[TEXT])
    if kind == NUMBER:
        return float(value[TEXT])
    parts = {name: _read(one) for name, one in value.items() if name != KIND}
    return RECORDS[kind](**parts)

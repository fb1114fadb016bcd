"""Records of rounds as lines of JSON: figures to the last bit, what has its default value left out."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields, replace
from typing import TYPE_CHECKING, Any

from bayesfed.federated.core.costs import Cost
from bayesfed.federated.engine.ledger import Row
from bayesfed.federated.engine.reports import Record

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def to_line(record: Record) -> bytes:
    """Return a record as one line."""
    rows = [_changed(row) | {"cost": _changed(row.cost)} for row in record.rows]
    return json.dumps(_figures(record) | {"rows": rows}, separators=(",", ":"), default=float).encode() + b"\n"


def from_line(line: bytes) -> Record:
    """Read what `to_line` wrote.

    Raises
    ------
    ValueError, TypeError, KeyError
        For anything else.
    """
    found = json.loads(line)
    rows = tuple(Row(**{**row, "cost": Cost(**row["cost"])}) for row in found.pop("rows"))
    return Record(rows=rows, **found)


def untimed(record: Record) -> Record:
    """Return a record without what a clock measured: two runs of the same bits have the same ones."""
    return replace(record, seconds=0.0, rows=tuple(replace(row, seconds=0.0) for row in record.rows))


def _figures(record: Record) -> dict[str, Any]:
    # A record's own fields: a report's further ones are the run itself.
    return {part.name: getattr(record, part.name) for part in fields(Record) if part.name != "rows"}


def _changed(value: DataclassInstance) -> dict[str, Any]:
    found = ((part, getattr(value, part.name)) for part in fields(value))
    return {part.name: content for part, content in found if part.default is MISSING or content != part.default}

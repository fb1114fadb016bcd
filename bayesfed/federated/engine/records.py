"""Records of rounds as lines of JSON. Figures keep all their bits, and fields with their default
value are left out.
"""

from __future__ import annotations

import json
from dataclasses import MISSING, fields, replace
from typing import TYPE_CHECKING, Any

from bayesfed.federated.core import Cost
from bayesfed.federated.engine.ledger import Row
from bayesfed.federated.engine.reports import Record

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def to_line(record: Record) -> bytes:
    """Return a record as one line of JSON."""
    rows = [_changed(row) | {"cost": _changed(row.cost)} for row in record.rows]
    return (
        json.dumps(_figures(record) | {"rows": rows}, separators=(",", ":"), default=float).encode()
        + b"\n"
    )


def from_line(line: bytes) -> Record:
    """Return the record that `to_line` wrote as `line`.

    Raises
    ------
    ValueError, TypeError, KeyError
        If the line is not such a record.
    """
    content = json.loads(line)
    rows = tuple(Row(**{**row, "cost": Cost(**row["cost"])}) for row in content.pop("rows"))
    return Record(rows=rows, **content)


def untimed(record: Record) -> Record:
    """Return a record without measured times, so that two runs with the same bits have equal
    records.
    """
    return replace(
        record, seconds=0.0, rows=tuple(replace(row, seconds=0.0) for row in record.rows)
    )


def _figures(record: Record) -> dict[str, Any]:
    # Only the fields of `Record`: a `RoundReport` has further ones.
    return {part.name: getattr(record, part.name) for part in fields(Record) if part.name != "rows"}


def _changed(value: DataclassInstance) -> dict[str, Any]:
    contents = ((part, getattr(value, part.name)) for part in fields(value))
    return {
        part.name: content
        for part, content in contents
        if part.default is MISSING or content != part.default
    }

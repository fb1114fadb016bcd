"""Records of rounds as lines of JSON, and `RecordFile`: those of a run in a file, of which only the
one that is looked at is in memory.

Figures keep all their bits, and fields with their default value are left out.
"""

from __future__ import annotations

import json
import os
import weakref
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from bayesfed.data.files import pour
from bayesfed.errors import CheckpointError
from bayesfed.errors.plurals import plural
from bayesfed.federated.core import Cost
from bayesfed.federated.engine.reports import Record, Row

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

FILE = "records.jsonl"
BLOCK = 1 << 20


def to_line(record: Record) -> bytes:
    """Return a record as one line of JSON."""
    rows = [_changed(row) | {"cost": _changed(row.cost)} for row in record.rows]
    # Only the fields of `Record`: a `RoundReport` has further ones.
    figures = {part.name: getattr(record, part.name) for part in fields(Record)}
    return (
        f"{json.dumps(figures | {'rows': rows}, separators=(',', ':'), default=float)}\n".encode()
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


def _changed(value: DataclassInstance) -> dict[str, Any]:
    contents = ((part, getattr(value, part.name)) for part in fields(value))
    return {
        part.name: content
        for part, content in contents
        if part.default is MISSING or content != part.default
    }


class RecordFile(Sequence[Record]):
    """Records of a run as a sequence: ``history[-1]`` reads one line of the file, a loop over it
    one after another.

    Parameters
    ----------
    path
        File of the records, a line of JSON each.
    length
        Number of bytes of the file that count. Default: those of all whole lines.
    write
        Whether records are appended. The file is made if it does not exist, and what is after
        `length` is cut off.

    Raises
    ------
    CheckpointError
        If the file cannot be opened, or is shorter than `length`. While it is used, if it cannot be
        read or written, or a line is no record.
    """

    def __init__(self, path: str | Path, length: int | None = None, *, write: bool = False) -> None:
        self.path, self._ends = Path(path), array("q", [0])
        with self._told():
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT if write else os.O_RDONLY, 0o666)
            # The file stays open: the name may be given to a newer file, while these records stay
            # what they are.
            weakref.finalize(self, os.close, self._file)
            self._index(length)
            if write:
                os.ftruncate(self._file, self._ends[-1])
            if length is not None and self._ends[-1] != length:
                raise ValueError(f"{self._ends[-1]} bytes of whole lines, not {length}")

    def append(self, record: Record) -> None:
        """Write one more record."""
        line, end = to_line(record), self._ends[-1]
        with self._told():
            os.lseek(self._file, end, os.SEEK_SET)
            pour(self._file, line)
        self._ends.append(end + len(line))

    def cut(self, count: int) -> None:
        """Remove all but the first `count` records."""
        del self._ends[count + 1 :]
        with self._told():
            os.ftruncate(self._file, self._ends[-1])

    def blocks(self) -> Iterator[bytes]:
        """Yield the file in parts, as it is."""
        for start in range(0, self._ends[-1], BLOCK):
            yield self._bytes(start, min(start + BLOCK, self._ends[-1]))

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, place: int) -> Record: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Record, ...]: ...
    def __getitem__(self, place: int | slice) -> Record | tuple[Record, ...]:
        numbers = range(len(self))[place]
        if isinstance(numbers, range):
            return tuple(self[number] for number in numbers)
        line = self._bytes(self._ends[numbers], self._ends[numbers + 1])
        with self._told():
            return from_line(line)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Sequence)
            and len(self) == len(other)
            and all(a == b for a, b in zip(self, other, strict=True))
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"RecordFile({str(self.path)!r}, {plural(len(self), 'record')})"

    def _index(self, length: int | None) -> None:
        with open(self._file, "rb", closefd=False) as file:
            for line in file:
                end = self._ends[-1] + len(line)
                if not line.endswith(b"\n") or (length is not None and end > length):
                    break
                self._ends.append(end)

    def _bytes(self, start: int, end: int) -> bytes:
        with self._told():
            content = os.pread(self._file, end - start, start)
            if len(content) != end - start:
                raise ValueError(f"{plural(len(content), 'byte')} in place of {end - start}")
        return content

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Say which file cannot be read or written."""
        try:
            yield
        except (OSError, ValueError, TypeError, KeyError) as problem:
            where, hint = f"records in {self.path}", "room on the disk, a copy, or another folder"
            raise CheckpointError(where, "a file of whole records", problem, hint) from problem


def history_in(folder: str | Path, earlier: Sequence[Record] = ()) -> RecordFile:
    """Return the records of a run in a folder, ready for those of further rounds.

    Parameters
    ----------
    folder
        Folder of the file ``records.jsonl``; made if it does not exist.
    earlier
        Records of the rounds before. If the file has them, what comes after them is cut off; if it
        is empty, they are written to it.

    Raises
    ------
    CheckpointError
        If the folder has records that are not those of the rounds before, or cannot be written to.
    """
    # Where there can be no folder, there can be no file in it.
    with suppress(OSError):
        Path(folder).mkdir(parents=True, exist_ok=True)
    history = RecordFile(Path(folder) / FILE, write=True)
    common = min(len(history), len(earlier))
    # As lines, since no record with a metric that is not a number equals another.
    if not len(history) or (
        common and to_line(history[common - 1]) == to_line(earlier[common - 1])
    ):
        history.cut(common)
        for number in range(common, len(earlier)):
            history.append(earlier[number])
    else:
        raise CheckpointError(
            f"records in {folder}",
            (
                f"the {plural(len(earlier), 'record')} that the run goes on from"
                if len(earlier)
                else "no records"
            ),
            f"{plural(len(history), 'record')}, the last of round {history[-1].round}",
            "resume=newest(checkpoints) of that run, or another folder",
        )
    return history


def lines(history: Iterable[Record]) -> Iterator[bytes]:
    """Yield records as parts of a file; those of a `RecordFile` as they are."""
    return history.blocks() if isinstance(history, RecordFile) else map(to_line, history)

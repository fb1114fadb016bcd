"""Tables of your own: CSV with a heading, a column of labels and columns of numbers."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import overload

import numpy as np
import torch

from bayesfed.data.dataset import Dataset
from bayesfed.data.partition import by_domain, federate
from bayesfed.data.readers.labels import meant
from bayesfed.data.rows import labelled
from bayesfed.errors import ArgumentError, DataError, LocalText
from bayesfed.errors.checks import ITSELF, Role, checked
from bayesfed.errors.plurals import plural

# Characters that files have between cells.
DELIMITERS = (";", "\t", "|", ",")
MARK = Role(lambda mark: isinstance(mark, str) and len(mark) == 1, "one character", "','")
MARK_OR_NONE = Role(
    lambda mark: isinstance(mark, str) and len(mark) <= 1, "one character, or ''", "'.'"
)


@overload
def from_csv(
    path: str | Path,
    *,
    label: str,
    columns: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    regression: bool = False,
    delimiter: str = ",",
    decimal: str = ".",
    thousands: str = "",
    encoding: str = "utf-8",
    domain: str | None = None,
    client: None = None,
) -> Dataset: ...


@overload
def from_csv(
    path: str | Path,
    *,
    label: str,
    columns: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    regression: bool = False,
    delimiter: str = ",",
    decimal: str = ".",
    thousands: str = "",
    encoding: str = "utf-8",
    domain: str | None = None,
    client: str,
) -> dict[str, Dataset]: ...


@checked(path=ITSELF, decimal=MARK, thousands=MARK_OR_NONE)
def from_csv(
    path: str | Path,
    *,
    label: str,
    columns: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    regression: bool = False,
    delimiter: str = ",",
    decimal: str = ".",
    thousands: str = "",
    encoding: str = "utf-8",
    domain: str | None = None,
    client: str | None = None,
) -> Dataset | dict[str, Dataset]:
    """Read a table whose first line names its columns: inputs ``(N, columns)``, float32, and
    targets ``(N,)``.

    Nothing is scaled or imputed. Columns that do not hold numbers must be encoded first or left out
    with `columns`.

    Parameters
    ----------
    path
        The CSV file.
    label
        The column of targets.
    columns
        The columns of inputs, in this order. None: all other columns, without those of `domain` and
        `client`.
    classes
        Names of the classes in the order of their numbers, such as ``.classes`` of the training set
        for its test set. None: all labels that occur, integers by value and texts alphabetically.
    regression
        Whether targets are numbers instead of labels.
    delimiter
        Character between cells, such as ``";"`` or a tab.
    decimal, thousands
        Character before the decimals of a number, and between its thousands; "" for none.
    encoding
        Encoding of the file.
    domain
        The column of the names of the rows' domains, `Dataset.domains`.
    client
        The column of the names of the rows' clients. The result is then a data set for each client
        by name, as `run` takes it.

    Raises
    ------
    DataError
        If the file is missing, empty or in another encoding; a column is missing (the message names
        the nearest one) or occurs twice; a line has too many or too few cells; cells are not finite
        numbers (the message names line and column of the first, and counts all); a label, domain or
        client is missing; or one column is both the label and the client's name.
    """
    if decimal == thousands:
        hint = "decimal=',', thousands='.'"
        raise ArgumentError("from_csv", "a decimal unlike thousands", repr(decimal), hint)
    if not isinstance(path, str | Path):
        raise DataError(
            "from_csv",
            "the path of a file",
            type(path).__name__,
            "Dataset(frame[columns], frame[label])",
        )
    if client is not None and client == label:
        raise DataError(
            "from_csv, client",
            "another column than the label's",
            f"{label!r} for both, so that every client has one label",
            "the column of the clients' names",
        )
    path, lines, rows = Path(path), list[int](), list[list[str]]()
    try:
        with path.open(
            newline="", encoding="utf-8-sig" if encoding == "utf-8" else encoding
        ) as file:
            reader = csv.reader(file, delimiter=delimiter, strict=True)
            heading = [name.strip() for name in next(reader, [])]
            wanted = _wanted(
                path,
                heading,
                label,
                columns,
                tuple(name for name in (domain, client) if name is not None),
                delimiter,
            )
            for cells in reader:
                if not cells:
                    continue
                if len(cells) != len(heading):
                    raise DataError(
                        LocalText(f"{path}, line {reader.line_num}"),
                        f"{plural(len(heading), 'cell')}, as in the first line",
                        len(cells),
                        "quotes around cells that hold the delimiter",
                    )
                rows.append(cells)
                lines.append(reader.line_num)
    except FileNotFoundError as problem:
        there = sorted(file.name for file in path.parent.glob(f"*{path.suffix}"))
        raise DataError(
            LocalText(path),
            "a file",
            "none of this name",
            meant(path.name, there) if there else f"a path that begins in {Path.cwd()}",
        ) from problem
    except (OSError, UnicodeError, LookupError, csv.Error) as problem:
        hint = "encoding='latin-1' or another, or a file that was saved anew"
        raise DataError(
            LocalText(path), f"a readable table in {encoding}", problem, hint
        ) from problem
    if not rows:
        raise DataError(
            LocalText(path), "a line of names and at least one row", "no rows", "another file"
        )

    def column(name: str) -> list[str]:
        return [cells[heading.index(name)] for cells in rows]

    def at(row: int) -> str:
        return LocalText(f"{path}, line {lines[row]}, column {label!r}")

    marks = decimal, thousands
    numbers = _numbers(path, rows, lines, wanted, heading, marks)
    inputs = torch.from_numpy(np.array(numbers, np.float32))
    domains = (
        _names(column(domain), lines, LocalText(f"{path}, column {domain!r}"))
        if domain is not None
        else ()
    )
    targets = column(label)
    if regression:
        targets = [plain_number(cell, *marks) for cell in targets]
    data = labelled(inputs, targets, classes, at, regression=regression, domains=domains)
    return (
        data
        if client is None
        else federate(
            data, by_domain(_names(column(client), lines, LocalText(f"{path}, column {client!r}")))
        )
    )


def _wanted(
    path: Path,
    heading: list[str],
    label: str,
    columns: Sequence[str] | None,
    names: tuple[str, ...],
    delimiter: str,
) -> list[int]:
    """Return the positions of the columns of inputs."""
    if not any(heading):
        raise DataError(
            LocalText(path), "a first line with the columns' names", "nothing", "another file"
        )
    if other := [mark for mark in DELIMITERS if mark in heading[0] and len(heading) == 1]:
        decimal = ", decimal=','" if other[0] == ";" else ""
        raise DataError(
            LocalText(f"{path}, line 1"),
            f"names of columns with {delimiter!r} between them",
            f"one name that holds {other[0]!r}",
            f"delimiter={other[0]!r}{decimal}",
        )
    if double := [name for name in dict.fromkeys(heading) if heading.count(name) > 1]:
        raise DataError(
            LocalText(f"{path}, line 1"),
            "distinct names of columns",
            f"{double[0]!r} twice",
            "renaming one",
        )
    for name in (label, *names, *(columns or ())):
        if name not in heading:
            raise DataError(
                LocalText(f"{path}, line 1"),
                f"a column {name!r}",
                f"{plural(len(heading), 'other')}",
                meant(name, heading),
            )
    others = [name for name in heading if name not in (label, *names)]
    chosen = others if columns is None else list(columns)
    if not chosen or label in chosen:
        raise DataError(
            LocalText(f"{path}, columns"),
            "columns of inputs beside the label",
            "none" if not chosen else f"the label {label!r} among them",
            "columns=None" if others else "a table with more columns",
        )
    return [heading.index(name) for name in chosen]


def _names(cells: list[str], lines: list[int], where: str) -> tuple[str, ...]:
    """Return the names in a column of domains or clients."""
    if empty := [line for cell, line in zip(cells, lines, strict=True) if not cell.strip()]:
        raise DataError(
            where,
            "a name in every row",
            f"{len(empty)} without, first in line {empty[0]}",
            "dropping them",
        )
    return tuple(cell.strip() for cell in cells)


def plain_number(cell: str, decimal: str, thousands: str) -> str:
    """Return a number as Python writes it, from a cell with other marks.

    A cell with a point where another mark stands before decimals is no number: the point may be one
    between thousands.
    """
    text = cell.strip()
    if thousands:
        text = text.replace(thousands, "")
    if decimal == ".":
        return text
    return f"{cell!r} with a point" if "." in text else text.replace(decimal, ".")


def _numbers(
    path: Path,
    rows: list[list[str]],
    lines: list[int],
    wanted: list[int],
    heading: list[str],
    marks: tuple[str, str],
) -> list[list[float]]:
    """Return the numbers in the columns of inputs; raise one `DataError` for all bad cells."""
    numbers = [[_number(plain_number(cells[at], *marks)) for at in wanted] for cells in rows]
    bad = [
        (row, place)
        for row, values in enumerate(numbers)
        for place, value in zip(wanted, values, strict=True)
        if value is None
    ]
    if not bad:
        return [[value for value in values if value is not None] for values in numbers]
    row, place = bad[0]
    counts = Counter(heading[place] for _, place in bad)
    empty = sum(not rows[row][place].strip() for row, place in bad)
    more = (
        f"; {len(bad)} such cells, {empty} of them empty: "
        f"{', '.join(f'{count} in {name!r}' for name, count in counts.most_common(5))}"
    )
    hint = (
        "dropping or imputing empty cells, as pandas.read_csv(path).dropna() does"
        if empty
        else "columns=[...] without it, or encoding it; for texts, tokenised(Texts(...), ...)"
    )
    if 0 < empty < len(bad):
        hint += ", and columns=[...] without texts"
    if "," in rows[row][place] and marks == (".", ""):
        hint = "decimal=',', or thousands=',', as the file was written"
    if "." in rows[row][place] and marks[0] != ".":
        hint = f"thousands='.', or decimal='.', where decimal={marks[0]!r} now"
    raise DataError(
        LocalText(f"{path}, line {lines[row]}, column {heading[place]!r}"),
        "a finite number",
        f"{rows[row][place]!r}{more if len(bad) > 1 else ''}",
        hint,
    )


def _number(cell: str) -> float | None:
    try:
        number = float(cell)
    except ValueError:
        return None
    # A number outside the range of float32 would become infinite in the conversion.
    return number if abs(number) <= float(np.finfo(np.float32).max) else None

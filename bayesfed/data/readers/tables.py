"""Tables of your own: CSV with a heading, a column of labels and columns of numbers."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from bayesfed.data.dataset import Dataset
from bayesfed.data.readers.labels import class_numbers, nearest, regression_targets
from bayesfed.errors import DataError, complain


def from_csv(
    path: str | Path,
    *,
    label: str,
    columns: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    regression: bool = False,
    delimiter: str = ",",
    encoding: str = "utf-8",
) -> Dataset:
    """Read a table whose first line names its columns: inputs ``(N, columns)``, float32, and targets ``(N,)``.

    Nothing is scaled or imputed. Columns that do not hold numbers must be encoded first or left out with `columns`.

    Parameters
    ----------
    path
        The CSV file.
    label
        The column of targets.
    columns
        The columns of inputs, in this order. None: all other columns.
    classes
        Names of the classes in the order of their numbers, such as ``.classes`` of the training set for its test set. None: all labels that occur,
        integers by value and texts alphabetically.
    regression
        Whether targets are numbers instead of labels.
    delimiter
        Character between cells, such as ``";"`` or a tab.
    encoding
        Encoding of the file.

    Raises
    ------
    DataError
        If the file is missing, empty or in another encoding; a column is missing (the message names the nearest one) or occurs twice; a line has
        too many or too few cells; a cell is not a finite number or a label is missing (the message names line and column).
    """
    path = Path(path)
    try:
        with path.open(newline="", encoding="utf-8-sig" if encoding == "utf-8" else encoding) as file:
            reader = csv.reader(file, delimiter=delimiter, strict=True)
            heading = [name.strip() for name in next(reader, [])]
            wanted = _wanted(path, heading, label, columns)
            rows, labels, lines = [], [], []
            for cells in reader:
                if not cells:
                    continue
                where = f"{path}, line {reader.line_num}"
                if len(cells) != len(heading):
                    expected = f"{len(heading)} cells, as in the first line"
                    raise DataError(complain(where, expected=expected, actual=len(cells), hint="quotes around cells that hold the delimiter"))
                rows.append([_number(cells[place], f"{where}, column {heading[place]!r}") for place in wanted])
                labels.append(cells[heading.index(label)])
                lines.append(f"{where}, column {label!r}")
    except (OSError, UnicodeError, csv.Error) as problem:
        raise DataError(complain(str(path), expected=f"a readable table in {encoding}", actual=problem, hint="checking the file")) from problem
    if not rows:
        raise DataError(complain(str(path), expected="a line of names and at least one row", actual="no rows", hint="another file"))
    inputs = torch.from_numpy(np.array(rows, np.float32))
    if regression:
        return Dataset(inputs, regression_targets(labels, lines.__getitem__))
    numbers, names = class_numbers(labels, classes, lines.__getitem__)
    return Dataset(inputs, numbers, names)


def _wanted(path: Path, heading: list[str], label: str, columns: Sequence[str] | None) -> list[int]:
    """Return the positions of the columns of inputs."""
    if not any(heading):
        raise DataError(complain(str(path), expected="a first line with the columns' names", actual="nothing", hint="another file"))
    if double := [name for name in dict.fromkeys(heading) if heading.count(name) > 1]:
        raise DataError(complain(f"{path}, line 1", expected="distinct names of columns", actual=f"{double[0]!r} twice", hint="renaming one"))
    for name in (label, *(columns or ())):
        if name not in heading:
            actual = f"{len(heading)} others"
            raise DataError(complain(f"{path}, line 1", expected=f"a column {name!r}", actual=actual, hint=nearest(name, heading)))
    chosen = [name for name in heading if name != label] if columns is None else list(columns)
    if not chosen or label in chosen:
        actual = "none" if not chosen else f"the label {label!r} among them"
        raise DataError(complain(f"{path}, columns", expected="columns of inputs beside the label", actual=actual, hint="columns=None"))
    return [heading.index(name) for name in chosen]


def _number(cell: str, where: str) -> float:
    try:
        number = float(cell)
    except ValueError:
        number = float("nan")
    # A number outside the range of float32 would become infinite in the conversion.
    if not abs(number) <= float(np.finfo(np.float32).max):
        raise DataError(complain(where, expected="a finite number", actual=repr(cell), hint="columns=[...] without it, or encoding it"))
    return number

"""Tables of one's own: CSV with a heading, a column of labels and columns of numbers."""

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

    Nothing is scaled or imputed. Columns with other figures than numbers need encoding first, or are left out by `columns`.

    Parameters
    ----------
    label
        The column of targets.
    columns
        Those of inputs, in this order. None: all others.
    classes
        Names in the order of the classes' numbers, such as a training set's ``.classes`` for its test set. None: every label that occurs,
        integers by size and texts by alphabet.
    regression
        Targets are numbers instead of labels.
    delimiter
        Between cells: ``";"``, a tab, ...

    Raises
    ------
    DataError
        If the file is missing, empty or not of the encoding; a column is missing (the message names the nearest one) or there twice; a line has
        too many or too few cells; a cell is no finite number or a label is missing (the message names line and column).
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
    """Return the places of the inputs' columns."""
    if not any(heading):
        raise DataError(complain(str(path), expected="a first line with the columns' names", actual="nothing", hint="another file"))
    if double := [name for name in dict.fromkeys(heading) if heading.count(name) > 1]:
        raise DataError(complain(f"{path}, line 1", expected="columns of unlike names", actual=f"{double[0]!r} twice", hint="renaming one"))
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
    # Beyond float32 is as useless as infinite, and would be so once converted.
    if not abs(number) <= float(np.finfo(np.float32).max):
        raise DataError(complain(where, expected="a finite number", actual=repr(cell), hint="columns=[...] without it, or encoding it"))
    return number

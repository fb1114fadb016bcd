"""A regression by formula in an experiment file: its rows are those of a CSV, and it needs no
recipe.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayesfed.data.readers.labels import meant
from bayesfed.errors import ArgumentError, DataError, needs
from bayesfed.models.regression.families import Name
from bayesfed.models.regression.formulas import parse_formula
from bayesfed.models.regression.frames import Frame, Missing
from bayesfed.running.formulas.prepared import Prepared, prepared

# Sections that a file with a regression may have.
BESIDE = ("seeds", "pool", "save_every")


@dataclass(frozen=True)
class RegressionOf:
    """The section ``[regression]``.

    Parameters
    ----------
    formula, family, missing, least_rows, secure
        As of `bayesfed.regression`.
    data
        A CSV whose first line names its columns.
    site
        The column of sites.
    test
        A CSV of rows to predict, which need no response.
    delimiter
        Character between cells.
    decimal, thousands
        Character before the decimals of a number, and between its thousands, if there is one.
    """

    formula: str
    data: Path
    site: str
    family: Name = "normal"
    missing: Missing = "refuse"
    least_rows: int | None = None
    secure: int | None = None
    test: Path | None = None
    delimiter: str = ","
    decimal: str = "."
    thousands: str | None = None

    def prepared(self) -> Prepared:
        """Return the regression before its fit.

        Raises
        ------
        ArgumentError
            If the formula cannot be read, or calls what is not on the list, or the delimiter is no
            character; before any file is read.
        DataError
            If a file cannot be read.
        """
        parse_formula(self.formula)
        if len(self.delimiter) != 1:
            # pandas takes more than one character for a regular expression.
            hint = "delimiter = ';' or delimiter = '|'"
            raise ArgumentError(
                "regression, delimiter", "one character", repr(self.delimiter), hint
            )
        frame = self._frame(self.data)
        for part in (frame, self.new()):
            if part is not None and self.site not in part:
                there = [str(name) for name in part.columns]
                expected, hint = f"a column {self.site!r}", meant(self.site, there)
                raise DataError("regression", expected, f"{there[:12]}", hint)
        given = self.family, self.site, self.missing, self.least_rows, self.secure
        return prepared(self.formula, frame, *given)

    def new(self) -> Frame | None:
        """Return the rows of the test file; None without one."""
        return None if self.test is None else self._frame(self.test)

    def _frame(self, path: Path) -> Frame:
        pandas = needs("pandas", "formulas")
        try:
            # Names of sites are texts: 007 is another than 7.
            frame: Any = pandas.read_csv(
                path,
                sep=self.delimiter,
                decimal=self.decimal,
                thousands=self.thousands,
                dtype={self.site: str},
                skipinitialspace=True,
            )
        except (OSError, ValueError) as problem:
            hint = "a CSV file with a line of names; paths begin at the folder of the file"
            raise DataError(str(path), "a readable table", problem, hint) from problem
        if not len(frame):
            hint = "a file whose rows follow the line of names"
            raise DataError(str(path), "rows", "a line of names alone", hint)
        if self.site not in frame and len(frame.columns) == 1:
            name = str(frame.columns[0])
            marks = [mark for mark in ";\t|," if mark in name and mark != self.delimiter]
            if marks:
                hint = f"delimiter = {marks[0]!r}" + (", decimal = ','" if marks[0] == ";" else "")
                raise DataError(str(path), "several columns", f"one, {name!r}", hint)
        return frame

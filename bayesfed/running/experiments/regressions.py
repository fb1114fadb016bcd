"""A regression by formula in an experiment file: its rows are those of a CSV, and it needs no
recipe.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bayesfed.data.readers.labels import meant
from bayesfed.errors import DataError, needs
from bayesfed.models.regression.families import Name
from bayesfed.models.regression.tables import Frame, Missing
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

    def prepared(self) -> Prepared:
        """Return the regression before its fit.

        Raises
        ------
        DataError
            If a file cannot be read.
        """
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
        read = partial(needs("pandas", "formulas").read_csv, sep=self.delimiter)
        try:
            made: Any = read(path, skipinitialspace=True)
        except (OSError, ValueError) as problem:
            hint = "a CSV file with a line of names; paths begin at the folder of the file"
            raise DataError(str(path), "a readable table", problem, hint) from problem
        return made.astype({self.site: str}) if self.site in made else made

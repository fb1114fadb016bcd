"""`prepared`: from a formula and frames of sites to a model and rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from bayesfed.algorithms.federated_svi.recipe import federated_svi
from bayesfed.data import Dataset
from bayesfed.errors import ArgumentError, needs
from bayesfed.errors.checks import ITSELF, checked, shown
from bayesfed.federated import Algorithm
from bayesfed.models.regression.design import Design
from bayesfed.models.regression.families import Name, check_family
from bayesfed.models.regression.formulas import parse_formula
from bayesfed.models.regression.frames import Frame, Missing, split_by_site
from bayesfed.models.regression.model import RegressionModel
from bayesfed.running.formulas.records import REGRESSION, to_record


@dataclass(frozen=True)
class Prepared:
    """A regression before its fit.

    Parameters
    ----------
    design
        How frames become rows: ``design.rows(frame, site)`` are those of any site's frame.
    model
        The Pyro model of these rows.
    clients
        The rows of each site.
    least_rows, secure, vault
        As of `federated_svi`.
    """

    design: Design
    model: RegressionModel
    clients: Mapping[str, Dataset]
    least_rows: int | None = None
    secure: int | None = None
    vault: str | Path | None = None

    @property
    def algorithm(self) -> Algorithm:
        """The method that finds the posterior of all rows."""
        asked = self.least_rows, self.secure
        made = federated_svi(
            self.model, least_rows=self.least_rows, secure=self.secure, vault=self.vault
        )
        return replace(made, origin={REGRESSION: to_record(self.design, self.model, *asked)})


@checked(formula=ITSELF, data=ITSELF, family=ITSELF)
def prepared(
    formula: str,
    data: Mapping[str, Any] | Any,
    family: Name = "normal",
    site: str = "site",
    missing: Missing = "refuse",
    least_rows: int | None = None,
    secure: int | None = None,
    vault: str | Path | None = None,
) -> Prepared:
    """Return a regression before its fit; parameters are those of `regression`, and `vault`, which
    `secure` needs over Flower (`federated_svi`).

    It is how a regression runs where no process has all frames, as over Flower: everybody prepares
    it from the same made-up frames. These have all sites and categories, and means and sds by which
    the priors are scaled. A site's rows are then ``design.rows(frame, site)``, the method is
    ``algorithm``, and ``Regression(design, model, result)`` reads the result.

    Raises
    ------
    ArgumentError, DataError
        As `regression`.
    """
    check_family(family)
    frames, pandas = data, needs("pandas", "formulas")
    parse_formula(formula)
    if isinstance(data, pandas.DataFrame):
        frames = split_by_site(data, site, missing)
    named = isinstance(frames, Mapping) and frames
    if not named or not all(isinstance(one, pandas.DataFrame) for one in frames.values()):
        hint = (
            "{'name': pandas.read_csv('name.csv'), ...}, to_pandas() of frames of other libraries, "
            "or running.prepared of made-up frames"
        )
        raise ArgumentError("regression, data", "pandas frames by site", shown(data), hint)
    if others := [name for name in frames if not isinstance(name, str)]:
        hint = f"{{str(name): frame for name, frame in data.groupby({site!r})}}"
        raise ArgumentError("regression, names of sites", "texts", shown(others[0]), hint)
    tables = cast(Mapping[str, Frame], frames)
    design = Design.of(formula, family, site, missing, tables)
    clients = {name: design.rows(frame, name) for name, frame in tables.items()}
    model = RegressionModel.of(design, list(clients.values()))
    return Prepared(design, model, clients, least_rows, secure, vault)

"""`regression`: from a formula and frames of sites to the posterior of its coefficients."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from bayesfed.errors import ArgumentError, UndeterminedWarning, needs
from bayesfed.errors.checks import COUNT, ITSELF, PART, check, checked, one_of
from bayesfed.inference.exact.posterior import ExactPosterior
from bayesfed.inference.exact.refusals import not_kept
from bayesfed.inference.exact.traced import doubled
from bayesfed.inspect.intervals import Interval, intervals
from bayesfed.keys import Key, forked
from bayesfed.models.regression.design import Design
from bayesfed.models.regression.families import Name
from bayesfed.models.regression.formulas import FORMULA
from bayesfed.models.regression.frames import MISSING, ROWS, Frame, Missing, add_site
from bayesfed.models.regression.model import RegressionModel
from bayesfed.running.formulas.prepared import prepared
from bayesfed.running.formulas.refits import Refits
from bayesfed.running.launch import run
from bayesfed.running.result import Result
from bayesfed.trees import Tree

# What is known of the memory of a client that is elsewhere, as over Flower, in place of the memory.
SLOT = "slot.round"

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@checked(formula=FORMULA, data=ITSELF, family=ITSELF)
def regression(
    formula: str,
    data: Mapping[str, Any] | Any,
    *,
    family: Name = "normal",
    site: str = "site",
    missing: Missing = "refuse",
    least_rows: int | None = None,
    secure: int | None = None,
    seed: int = 0,
    progress: bool = True,
) -> Regression:
    """Fit a regression by formula to the rows of all sites without pooling them.

    Needs the extra `formulas`. Formulas are those of the package formulae, as of lme4 and Bambi:
    ``y ~ x1 * x2 + C(ward) + offset(log(days)) + (1 + x1 | hospital)``. A formula is data: it is
    read before any row is, and may call these functions and no others.

    =================================================== ============================================
    functions                                           of
    =================================================== ============================================
    log, log2, log10, log1p, exp, expm1, sqrt, abs,     the values of a row; also with ``np.``
    floor, ceil, sin, cos, minimum, maximum, mod,       before the name
    floor_divide, clip, where
    ``I(x**2)``, ``{x**2}``                             arithmetic and comparisons of a row
    center, scale, standardize                          a column, by mean and sd of all sites
    ``C(x)``, ``C(x, Treatment('b'))``, ``C(x, Sum)``   a column of categories
    offset                                              a number that is added to the predictor
    p, prop, proportion, censored                       the response
    =================================================== ============================================

    Functions of all rows of a site (`min`, `mean`, `rank`, ...) are refused, since they would
    differ by site and tell rows.

    Sites tell which categories a column has, the number of rows, and means and sums of squares of
    columns; then what `federated_svi` of a model alone asks.

    Categories are coded as those of pooled rows, also where a site lacks some. The first of a
    pandas categorical is the reference; those of texts and codes are sorted.

    Priors are weakly informative, as rstanarm's and Bambi's: normal with sd 2.5 sd(y) / sd(x) for a
    slope, mean(y) and 2.5 sd(y) for the intercept at the mean of the columns, an exponential of
    mean sd(y) for sigma. For the families after "student_t" sd(y) is 1, and the intercept's mean
    log mean(y) where the link is the logarithm, else 0. Sds of group effects are half-normal with
    the scale of their column's slope; effects are independent. A group that is at one site, as a
    site itself or a ward of it, is integrated there, and its effects stay there.

    Parameters
    ----------
    formula
        The formula.
    data
        A pandas frame for each site by name, or a frame with a column of sites.
    family
        ===================== ===================================== ====================
        family                response                              linear predictor
        ===================== ===================================== ====================
        "normal", "student_t" numbers                               mean
        "bernoulli"           0 and 1, or ``y['yes']``              log odds
        "binomial"            ``p(successes, trials)``              log odds
        "poisson"             counts                                log mean
        "negative_binomial"   counts                                log mean
        "ordinal"             categories, in order                  log odds of higher
        "weibull"             times, or ``censored(time, event)``   log scale
        ===================== ===================================== ====================
    site
        The name by which a formula calls the site. Frames without this column get it.
    missing
        "refuse", or "drop": leave out rows with missing values, and warn of sites without others.
    least_rows, secure
        As of `federated_svi`. Under secure sums no site can be left out (`Regression.without`): a
        sum of all sites less that of the others is what one site says.
    seed
        As of `run`; the fit depends on it only by the own effects of sites.
    progress
        As of `run`, also for the fits of other sites that `Regression.without` may need.

    Raises
    ------
    ArgumentError
        If the formula cannot be read, or calls what is not on the list above.
    DataError
        If a column is missing (the message names the nearest), its values are, it has another type
        at some site, one value, or numbers that are not finite; or the response is not the
        family's.
    MissingExtraError
        If formulae is not installed.

    Examples
    --------
    >>> formula = "died ~ age + (1 | hospital)"
    >>> fit = bf.regression(formula, frames, family="bernoulli", site="hospital")
    >>> fit.without("Basel").predict(new_rows)
    """
    made = prepared(formula, data, family, site, missing, least_rows, secure)
    result = run(made.algorithm, made.clients, seed=seed, progress=progress)
    return Regression(made.design, made.model, result, refits=Refits(made, seed, progress))


@dataclass(frozen=True, repr=False)
class Regression:
    """A fitted regression.

    Parameters
    ----------
    design, model
        As of `Prepared`.
    result
        The run: ledger, posterior, `Result.to_arviz`. Of a regression without some of the sites it
        is the run of the others if they were fitted by themselves, else still that of all sites:
        then `posterior` alone is without their rows.
    left_out
        Sites whose rows are not in the posterior.
    refits
        What asks the sites again; None where they cannot be asked, as after `open`.
    """

    design: Design
    model: RegressionModel
    result: Result
    left_out: tuple[str, ...] = ()
    refits: Refits | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        left = f", without {', '.join(self.left_out)}" if self.left_out else ""
        head = f"{self.design.formula}, {self.design.family}{left}; status {self.status}"
        told = [head, self.table().round(3)] if "points" in self.posterior.state else [head]
        return "\n".join(line.rstrip() for part in told for line in str(part).splitlines())

    @cached_property
    def posterior(self) -> ExactPosterior:
        """The posterior of the shared unknowns."""
        posterior, memories = cast(ExactPosterior, self.result.posterior), self._memories
        for name in self.left_out:
            if name in memories:
                posterior = posterior.leave_out(memories[name])
        return posterior

    @property
    def status(self) -> str:
        """How far the draws can be trusted: that of the posterior, "exact" at best."""
        return self.posterior.status

    @property
    def _memories(self) -> Mapping[str, Tree]:
        """What the sites of the run keep."""
        return self.result.snapshot.memories

    def without(self, site: str) -> Regression:
        """Return the regression without the rows of a site.

        The site's likelihood is taken out of the weights of the draws, which needs no round. Where
        the weights that are left do not do, as for a site that is unlike the others, the other
        sites are fitted by themselves, with the same priors and levels, once for the same sites.
        Where they cannot be asked, as after `open`, the status is "uneven weights".

        Parameters
        ----------
        site
            Name of the site.

        Raises
        ------
        ArgumentError
            If there is no such site, or it is left out already.
        PosteriorError
            If sites keep nothing, as under secure sums.

        Warns
        -----
        UndeterminedWarning
            If the weights do not do and the other sites cannot be asked.
        """
        part = self._leave_out(site)
        if part.posterior.uneven:
            names = ", ".join(map(repr, part.left_out))
            text = f"regression without {names}: {part.posterior.lack}"
            warnings.warn(text, UndeterminedWarning, stacklevel=2)
        return part

    def _leave_out(self, site: str) -> Regression:
        """Return what `without` does, and do not warn."""
        memories = self._memories
        sites = self.posterior.sites_in(memories)
        if not sites and self.left_out:
            expected, hint = "a site whose rows are in the fit", "the fit of all sites"
            raise ArgumentError("regression, site", expected, f"{site!r}, and none is left", hint)
        if not sites:
            raise not_kept("value", memories.get(site, {}))
        check("regression, site", site, one_of(sorted(sites)))
        part = replace(self, left_out=(*self.left_out, site))
        if part.posterior.uneven and self.refits:
            result = self.refits.without(part.left_out)
            return part if result is None else replace(part, result=result)
        return part

    @checked(count=COUNT)
    def draws(self, count: int = 1000, *, seed: int = 0) -> Frame:
        """Return draws of coefficients, cutpoints, sds of group effects (``1|hospital_sigma``) and
        further unknowns in the units of columns and response: a frame, one column for each.
        """
        pandas, values = needs("pandas", "formulas"), self._values(count, seed)
        leaves = dict[str, Tensor]()
        if self.model.columns:
            leaves |= dict(zip(self.model.columns, self.model.slopes(values).T, strict=True))
        for group, spread in self.model.spreads(values).items():
            for column, leaf in zip(group.columns, spread.T, strict=True):
                more = "" if len(group.columns) == 1 else f"[{column}]"
                leaves[f"{group.name}_sigma{more}"] = leaf
        if names := self.model.classes:
            pairs = [f"{one}|{two}" for one, two in pairwise(names)]
            leaves |= dict(zip(pairs, self.model.cuts(values).T, strict=True))
        else:
            leaves |= {name: values[name] for name in self.model.further}
        return pandas.DataFrame({name: leaf.numpy() for name, leaf in leaves.items()})

    @checked(interval=PART, draws=COUNT)
    def table(self, *, interval: float = 0.9, draws: int = 4000) -> Frame:
        """Return mean, sd and the ends of the central interval of everything that `draws` has."""
        frame = self.draws(draws)
        low, high = (frame.quantile(0.5 + side * interval / 2) for side in (-1, 1))
        columns = {"mean": frame.mean(), "sd": frame.std(), "low": low, "high": high}
        return needs("pandas", "formulas").DataFrame(columns).rename_axis("coefficient")

    def plot(self, *, axes: Axes | None = None) -> Axes:
        """Plot mean and 90 % interval of all that `draws` has, also without each site, by
        `bayesfed.inspect.plot_intervals`. The legend has the status of each; what is not "exact" or
        "adapted" has open marks and dotted lines.
        """
        return plot_coefficients(self.tables(None)["coefficients"], axes)

    def _each(self) -> dict[str, Regression]:
        """Return this fit, under an empty name, and that without each site that has rows."""
        sites = self.posterior.sites_in(self._memories)
        return {"": self} | {name: self._leave_out(name) for name in sorted(sites)}

    def tables(self, rows: Frame | None) -> dict[str, Frame]:
        """Return coefficients, also without each site, with the status of each fit, and predictions
        of rows if there are any.
        """
        pandas = needs("pandas", "formulas")
        parts = [
            part.table().assign(without=name, status=part.status)
            for name, part in self._each().items()
        ]
        tables = {"coefficients": pandas.concat(parts)}
        if rows is not None:
            # An index may repeat, so rows are matched by their places.
            numbered = rows.reset_index(drop=True)
            joined = numbered.join(self.predict(numbered))
            tables["predictions"] = joined.set_axis(rows.index)
        return tables

    @checked(frame=ROWS, missing=MISSING, interval=PART, draws=COUNT)
    def predict(
        self,
        frame: Any,
        *,
        site: str = "",
        missing: Missing | None = None,
        interval: float = 0.9,
        draws: int = 1000,
        seed: int = 0,
    ) -> Frame:
        """Predict new rows of a site, or of one that was not there.

        Groups that are not of the fit, as that of a new site or of one that is left out, have
        effects from their distribution. A binomial row is predicted for one trial.

        Parameters
        ----------
        frame
            Rows; they need no response. A column of the formula's name for sites says of which site
            a row is.
        site
            Name of the site of all rows. Without it and that column they are of a new site.
        missing
            "refuse" rows with missing values, or "drop" them from the answer. By default as in the
            fit.
        interval
            Mass of the central intervals.
        draws, seed
            Number of draws, and what names them.

        Returns
        -------
        A frame with a row for each row, in their order and with their index: the ``mean`` of the
        response with its interval, ``mean_low`` and ``mean_high``, and the interval of a new
        response, ``low`` and ``high``; for an ordinal response the probability of each class.

        Raises
        ------
        ArgumentError, DataError
            As `regression`; and if the site is not one of the fit, or its own effects are not here,
            as after a run over Flower, where they stay at the sites.
        """
        pandas = needs("pandas", "formulas")
        column = self.design.site
        if site:
            sites = {*self._memories, *self.left_out}
            if not sites:
                raise not_kept("own", {})
            check("regression, site", site, one_of(sorted(sites)))
        # An index may repeat: places do not.
        rows = add_site(frame.reset_index(drop=True), column, site)
        kept = {*self._memories} - {*self.left_out}
        known = rows[column].where(rows[column].isin(kept), "")
        parts = [
            self._predicted(part, str(name), missing, interval, draws, seed)
            for name, part in rows.groupby(known.to_numpy(), sort=False)
        ]
        predictions = pandas.concat(parts).sort_index()
        return predictions.set_axis(frame.index[predictions.index])

    def _predicted(
        self,
        frame: Frame,
        site: str,
        missing: Missing | None,
        interval: float,
        draws: int,
        seed: int,
    ) -> Frame:
        """Predict rows of one site, or of none of the fit."""
        values, model = self._values(draws, seed, site), self.model
        inputs, unknown, index = self.design.new(frame, site, missing)
        with doubled(), forked(Key(seed, "regression", "rows", site)):
            eta, spreads = model.predictor(values, inputs), model.spreads(values)
            for group, columns in zip(model.groups, unknown, strict=True):
                effects = spreads[group] * torch.randn(draws, len(group.columns))
                eta = eta + effects @ columns.T
            made = model.of_predictor(values, eta, inputs)
            shares, new = (made.probs.mean(0), eta) if model.classes else (eta, made.sample())
        frame_of = partial(needs("pandas", "formulas").DataFrame, index=index)
        if names := model.classes:
            return frame_of(shares.numpy(), columns=list(names))
        ends = torch.tensor([0.5 - interval / 2, 0.5 + interval / 2], dtype=torch.float64)
        mean = model.mean(made, eta)
        leaves = [mean.mean(0), *mean.quantile(ends, 0), *new.double().quantile(ends, 0)]
        names = "mean", "mean_low", "mean_high", "low", "high"
        return frame_of(dict(zip(names, (leaf.numpy() for leaf in leaves), strict=True)))

    def _values(self, count: int, seed: int, site: str = "") -> Tree:
        """Return draws of all unknowns, own ones of a site that is given."""
        posterior = self.posterior
        if site and any(group.own for group in self.model.groups):
            memory = self._memories[site]
            if SLOT in memory:
                expected, actual = "a site whose own effects are here", "one that keeps them"
                hint = 'site="", for a site that was not there; own effects never leave a site'
                raise ArgumentError("regression, site", expected, actual, hint)
            posterior = posterior.at_client(memory)
        generator = Key(seed, "regression", "draws").generator()
        places = torch.multinomial(posterior.weights, count, replacement=True, generator=generator)
        values = {name: leaf[places].double() for name, leaf in posterior.values.items()}
        for group in self.model.groups:
            zeros = torch.zeros(count, len(group.levels), 1, len(group.columns))
            values.setdefault(group.name, zeros.double())
        return values


def plot_coefficients(coefficients: Frame, axes: Axes | None = None) -> Axes:
    """Plot the coefficients of `Regression.tables`, as `Regression.plot` does."""
    drawn, statuses = dict[str, dict[str, Interval]](), dict[str, str]()
    for (name, status), part in coefficients.groupby(["without", "status"], sort=False):
        label = f"without {name}" if name else "all sites"
        statuses[label] = str(status)
        columns = part[["mean", "sd", "low", "high"]]
        drawn[label] = {str(row[0]): Interval(*map(float, row[1:])) for row in columns.itertuples()}
    return intervals(drawn, axes, statuses)

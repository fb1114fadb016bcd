"""`Design`: from the frames of sites to rows of numbers, the same columns at every site.

What sites tell for it, in two rounds of sums, is the categories of columns, the number of rows, and
sums and sums of squares of columns and of the design's columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import torch

from bayesfed.data import Dataset
from bayesfed.errors import DataError, needs
from bayesfed.models.regression.families import FAMILIES, response_of
from bayesfed.models.regression.refusals import (
    check_alone,
    check_free,
    columns_of,
    is_alone,
    warn_of_emptied,
    warn_of_spellings,
)
from bayesfed.models.regression.tables import (
    Frame,
    Group,
    Levels,
    Missing,
    Moments,
    agreed,
    categorised,
    evaluated,
    parsed,
    picked,
    told,
)


@dataclass(frozen=True)
class Design:
    """How frames become rows. Inputs ``(N, p + 2 + ...)`` are p columns of the design, the offset,
    the number of trials, and L q columns for each group term.

    Parameters
    ----------
    formula, family, site, missing
        As of `bayesfed.regression`.
    levels
        Categories of columns.
    moments
        Means and sds of the other columns.
    homes
        For each group term, the numbers of those groups that each site has.
    """

    formula: str
    family: str
    site: str
    missing: Missing
    levels: Levels
    moments: Moments
    homes: tuple[Mapping[str, tuple[int, ...]], ...] = field(default=(), compare=False)

    @classmethod
    def of(
        cls, formula: str, family: str, site: str, missing: Missing, frames: Mapping[str, Frame]
    ) -> Design:
        """Return the design of all sites' frames.

        Raises
        ------
        ArgumentError, DataError
            If the formula, its columns or their types do not fit, or a term is not one of a row.
        """
        _, _, response, others = parsed(formula)
        chosen = {
            name: picked(_sited(frame, site, name), response | others, name, missing)
            for name, frame in frames.items()
        }
        if not any(map(len, chosen.values())):
            raise DataError("regression, data", "a site with complete rows", "none", "other rows")
        warn_of_emptied(frames, chosen)
        chosen = {name: frame for name, frame in chosen.items() if len(frame)}
        more = response if family == "ordinal" else ()
        sites = {name: told(formula, frame, more, site) for name, frame in chosen.items()}
        made = cls(formula, family, site, missing, *agreed(sites))
        warn_of_spellings(made.levels)
        named = (term for term in made._terms() if term.kind != "offset")
        check_free((label for term in named for label in term.labels), family)
        made._check_alone()
        tables = {name: categorised(frame, made.levels) for name, frame in chosen.items()}
        homes = [
            {
                name: tuple(np.unique(term.eval_new_data_group_index(table)[0]).tolist())
                for name, table in tables.items()
            }
            for term in made._grouped
        ]
        return replace(made, homes=tuple(homes))

    def _check_alone(self) -> None:
        """Check that what a row becomes depends on other rows by means and sds of columns alone:
        it is the same of two tables that share these, and of parts of one.
        """
        rows = _made_up(self.levels, self.moments, second=False)
        for one, two in zip(self._terms(), self._terms(second=True), strict=True):
            with np.errstate(all="ignore"):
                values = np.asarray(one.eval_new_data(rows), np.float64)
            check_alone(one.name, rows, values, one.eval_new_data, two.eval_new_data)

    def _terms(self, *, second: bool = False) -> Iterator[Any]:
        """Yield all terms of the right side but intercepts, those of groups after the others."""
        made = _template(self, second)
        if made.common:
            yield from (t for t in made.common.terms.values() if t.kind != "intercept")
        for term in made.group.terms.values() if made.group else ():
            if term.kind != "intercept":
                yield term.expr

    @property
    def _common(self) -> list[Any]:
        made = _template(self, False).common
        return [*made.terms.values()] if made else []

    @property
    def _grouped(self) -> list[Any]:
        made = _template(self, False).group
        return [*made.terms.values()] if made else []

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the p columns of the design; an ordinal response has cutpoints for an
        intercept.
        """
        return tuple(
            label
            for term in self._common
            if term.kind != "offset" and not (self.cuts and term.kind == "intercept")
            for label in ([term.name] if term.kind == "intercept" else term.labels)
        )

    @property
    def cuts(self) -> bool:
        """Whether the response is ordinal."""
        return self.family == "ordinal"

    @property
    def classes(self) -> tuple[Any, ...]:
        """The classes of an ordinal response in their order; none of others."""
        return next(
            (
                levels
                for name, levels in self.levels
                if self.cuts and name in parsed(self.formula)[2]
            ),
            (),
        )

    @property
    def groups(self) -> tuple[Group, ...]:
        """The group terms."""
        found = list[Group]()
        for term, homes in zip(self._grouped, self.homes, strict=True):
            columns = [term.expr.name] if term.kind == "intercept" else term.expr.labels
            places = [place for home in homes.values() for place in home]
            own = len(places) == len(set(places))
            most = map(str, range(max(map(len, homes.values()))))
            levels = tuple(most if own else term.groups)
            found.append(Group(term.name, term.factor.name, tuple(columns), levels, own))
        return tuple(found)

    def names(self, number: int, site: str) -> tuple[str, ...]:
        """Return the names of a group term's groups, those of a site where they are its own."""
        term, group = self._grouped[number], self.groups[number]
        home = self.homes[number].get(site, ())
        return tuple(term.groups[place] for place in home) if group.own else group.levels

    @property
    def factors(self) -> frozenset[str]:
        """Names of columns that are of group factors alone."""
        named = {name for term in self._grouped for name in term.factor.var_names}
        return frozenset(named - {name for term in self._terms() for name in term.var_names})

    def rows(self, frame: Frame, site: str) -> Dataset:
        """Return the rows of a site.

        Raises
        ------
        DataError
            If a column is missing, its values are, a category is new, or a value is not finite or
            not one of the family.
        """
        left, _, response, others = parsed(self.formula)
        frame = picked(_sited(frame, self.site, site), response | others, site, self.missing)
        frame = categorised(frame, self.levels)
        where, y = f"site {site!r}, response {left!r}", np.zeros((0, FAMILIES[self.family].columns))
        if len(frame):

            def made(rows: Frame) -> Any:
                if self.cuts:
                    return rows[next(iter(response))].map(self.classes.index)
                return evaluated(f"{left} ~ 1", rows).response.design_matrix

            values = np.asarray(made(frame), np.float64)
            y = response_of(self.family, values, where)
            if not np.isfinite(y).all():
                raise DataError(
                    where, "finite numbers", "others", "other rows, or a column of them"
                )
            if not is_alone(frame, values, made):
                hint = "a column made before the fit"
                raise DataError(where, "numbers of each row alone", left, hint)
        trials = y[:, 1] if self.family == "binomial" else np.ones(len(y))
        targets = torch.tensor(y[:, 0] if self.family != "weibull" else y)
        whole = FAMILIES[self.family].whole
        inputs, _ = self.inputs(frame, site, trials)
        return Dataset(inputs, targets.long() if whole else targets)

    def new(self, frame: Frame, site: str) -> tuple[torch.Tensor, list[torch.Tensor], Any]:
        """Return the inputs of rows to predict, without response, of one trial each; for each group
        term the columns ``(N, q)`` of those rows whose group the fit does not know, zero elsewhere;
        and the index of the rows.

        Raises
        ------
        DataError
            As `rows`.
        """
        needed = parsed(self.formula)[3]
        frame = picked(_sited(frame, self.site, site), needed, site, self.missing)
        table = categorised(frame, self.levels, free=self.factors)
        return *self.inputs(table, site, np.ones(len(frame))), frame.index

    def inputs(
        self, frame: Frame, site: str, trials: Any
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Return inputs of a frame, and the columns of rows of unknown groups."""
        count, parts = len(frame), list[Any]()
        offset = np.zeros(count)
        for term in self._common:
            if term.kind == "intercept":
                parts += [] if self.cuts else [np.ones((count, 1))]
            elif term.kind == "offset":
                offset = offset + columns_of(term, frame, site).reshape(count)
            else:
                parts.append(columns_of(term, frame, site))
        parts += [offset[:, None], np.asarray(trials, np.float64)[:, None]]
        unknown = list[torch.Tensor]()
        for term, group, homes in zip(self._grouped, self.groups, self.homes, strict=True):
            expr = np.ones((count, 1))
            if term.kind != "intercept":
                expr = columns_of(term.expr, frame, site)
            place, known = term.eval_new_data_group_index(frame)[0], range(len(group.levels))
            home = homes.get(site, ()) if group.own else known
            block = np.zeros((count, len(known) + 1, expr.shape[1]))
            for number, level in enumerate(home):
                block[place == level, number] = expr[place == level]
            others = ~np.isin(place, home)
            block[others, -1] = expr[others]
            parts.append(block[:, :-1].reshape(count, len(known) * expr.shape[1]))
            unknown.append(torch.from_numpy(block[:, -1].copy()))
        return torch.from_numpy(np.concatenate(parts, axis=1)), unknown


def _sited(frame: Frame, site: str, name: str) -> Frame:
    """Return a frame with the column of its site's name."""
    return frame if site in frame.columns else frame.assign(**{site: name})


@cache
def _template(design: Design, second: bool) -> Any:
    """Return the matrices of a formula's right side for a made-up frame."""
    return evaluated(
        parsed(design.formula)[1], _made_up(design.levels, design.moments, second=second)
    )


def _made_up(levels: Levels, moments: Moments, *, second: bool) -> Frame:
    """Return a frame that has the categories, means and sds of all sites' rows; `second`: another
    one.
    """
    count = 6 * max((len(known) for _, known in levels), default=1) + 6
    steps = np.array([-1.0, 0.0, 1.0]) * 1.5**0.5 if second else np.array([-1.0, 1.0])
    columns = {name: np.resize(mean + sd * steps, count) for name, (mean, sd) in moments}
    for name, known in levels:
        columns[name] = np.resize([*known[:1], *known] if second else [*known], count)
    frame = needs("pandas", "formulas").DataFrame(columns, index=range(count))
    return categorised(frame, levels)

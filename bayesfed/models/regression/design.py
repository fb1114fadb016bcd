"""`Design`: from the frames of sites to rows of numbers, the same columns at every site.

What sites tell for it, in two rounds, is the categories of columns, the number of rows, and the
means and sums of squares of columns and of the design's columns.
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
from bayesfed.models.regression.categories import (
    ColumnSummary,
    Levels,
    Moments,
    Summary,
    apply_categories,
    check_texts,
    merge_summaries,
    read_categories,
    warn_of_numbered_groups,
    warn_of_spellings,
)
from bayesfed.models.regression.families import FAMILIES, response_of
from bayesfed.models.regression.frames import (
    Frame,
    Missing,
    add_site,
    select_columns,
)
from bayesfed.models.regression.refusals import (
    check_free,
    columns_of,
    warn_of_emptied,
)
from bayesfed.models.regression.tables import (
    Group,
    category_columns,
    check_contrasts,
    classify_columns,
    evaluated,
    parsed,
    reuse_coding,
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
        ordinal = response if family == "ordinal" else frozenset()
        chosen = {
            name: _select(frame, formula, site, name, missing, response | others, ordinal)
            for name, frame in frames.items()
        }
        if not any(map(len, chosen.values())):
            raise DataError("regression, data", "a site with complete rows", "none", "other rows")
        warn_of_emptied(frames, chosen)
        chosen = {name: frame for name, frame in chosen.items() if len(frame)}
        summaries = {
            name: summarize_columns(formula, frame, ordinal, name, site)
            for name, frame in chosen.items()
        }
        levels, moments = merge_summaries(summaries, response=ordinal, site=site)
        design = cls(formula, family, site, missing, levels, moments)
        warn_of_spellings(levels)
        check_contrasts(formula, dict(levels))
        named = (term for term in design._terms() if term.kind != "offset")
        check_free((label for term in named for label in term.labels), family)
        tables = {name: design.categorise(frame, name) for name, frame in chosen.items()}
        groups_by_site = [
            {
                name: tuple(np.unique(term.eval_new_data_group_index(table)[0]).tolist())
                for name, table in tables.items()
            }
            for term in design._grouped
        ]
        design = replace(design, homes=tuple(groups_by_site))
        design._warn_of_groups()
        return design

    def categorise(self, frame: Frame, site: str, *, free: frozenset[str] = frozenset()) -> Frame:
        """Return a frame with the categories of all sites (`apply_categories`)."""
        return apply_categories(frame, self.levels, site, free=free, plain=self._plain)

    @property
    def _plain(self) -> frozenset[str]:
        """Columns that are numbers in one term and categories in another."""
        return frozenset(dict(self.levels).keys() & dict(self.moments).keys())

    def _warn_of_groups(self) -> None:
        """Warn of groups that seem to be numbered anew at every site."""
        warned = set[str]()
        for term, by_site in zip(self._grouped, self.homes, strict=True):
            factor = term.factor.name
            if self.site in term.factor.var_names or factor in warned:
                continue
            warned.add(factor)
            expression = "1" if term.kind == "intercept" else term.expr.name
            groups = {
                site: [term.groups[number].rpartition("[")[2].rstrip("]") for number in numbers]
                for site, numbers in by_site.items()
            }
            warn_of_numbered_groups(factor, expression, self.site, groups)

    def _terms(self) -> Iterator[Any]:
        """Yield all terms of the right side but intercepts, those of groups after the others."""
        made = _template(self)
        if made.common:
            yield from (t for t in made.common.terms.values() if t.kind != "intercept")
        for term in made.group.terms.values() if made.group else ():
            if term.kind != "intercept":
                yield term.expr

    @property
    def _common(self) -> list[Any]:
        made = _template(self).common
        return [*made.terms.values()] if made else []

    @property
    def _grouped(self) -> list[Any]:
        made = _template(self).group
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
        needed = response | others
        ordinal = response if self.cuts else frozenset()
        frame = _select(frame, self.formula, self.site, site, self.missing, needed, ordinal)
        frame = self.categorise(frame, site)
        where, y = f"site {site!r}, response {left!r}", np.zeros((0, FAMILIES[self.family].columns))
        if len(frame):

            def made(rows: Frame) -> Any:
                if self.cuts:
                    return [self.classes.index(level) for level in rows[next(iter(response))]]
                return evaluated(f"{left} ~ 1", rows).response.design_matrix

            values = np.asarray(made(frame), np.float64)
            known = dict(self.levels).get(left, ())
            if known and not self.cuts and values.reshape(len(values), -1).shape[1] > 1:
                expected = f"for family {self.family!r} {FAMILIES[self.family].response}"
                hint = f"{left}[{str(known[-1])!r}] for 1 where it is that"
                if self.family != "bernoulli":
                    hint = "a column of numbers, or family='ordinal' for ordered categories"
                raise DataError(where, expected, f"{len(known)} categories", hint)
            y = response_of(self.family, values, where)
            if not np.isfinite(y).all():
                raise DataError(
                    where, "finite numbers", "others", "other rows, or a column of them"
                )
        trials = y[:, 1] if self.family == "binomial" else np.ones(len(y))
        targets = torch.tensor(y[:, 0] if self.family != "weibull" else y)
        whole = FAMILIES[self.family].whole
        inputs, _ = self.inputs(frame, site, trials)
        return Dataset(inputs, targets.long() if whole else targets)

    def new(
        self, frame: Frame, site: str, missing: Missing | None = None
    ) -> tuple[torch.Tensor, list[torch.Tensor], Any]:
        """Return the inputs of rows to predict, without response, of one trial each; for each group
        term the columns ``(N, q)`` of those rows whose group the fit does not know, zero elsewhere;
        and the index of the rows.

        Parameters
        ----------
        frame
            Rows of a site.
        site
            Its name; "" for rows of no site of the fit.
        missing
            What to do with rows that have missing values; by default as in the fit.

        Raises
        ------
        DataError
            As `rows`.
        """
        needed = parsed(self.formula)[3]
        frame = _select(frame, self.formula, self.site, site, missing or self.missing, needed)
        table = self.categorise(frame, site, free=self.factors)
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


def summarize_columns(
    formula: str, frame: Frame, ordinal: frozenset[str], site: str, site_column: str
) -> ColumnSummary:
    """Return what a site with rows tells of the columns of a formula.

    Parameters
    ----------
    formula
        The formula.
    frame
        The columns that it names, without missing values.
    ordinal
        The columns of an ordinal response, which are categories whatever they hold.
    site, site_column
        Name of the site, and of the column of sites.

    Raises
    ------
    DataError
        If the formula cannot be computed, or a column seems to have been read wrongly.
    """
    kinds = classify_columns(formula, frame)
    levels, sums = {}, {}
    for name, column in frame.items():
        if name in kinds.categories or name in ordinal:
            levels[name] = read_categories(column, site)
            if name in kinds.bare and name != site_column and name not in ordinal:
                check_texts(name, levels[name].observed, len(frame), site)
        if name in kinds.numbers and name not in ordinal:
            sums[name] = Summary.of(column.to_numpy(np.float64))
    return ColumnSummary(levels, sums)


def _select(
    frame: Frame,
    formula: str,
    site_column: str,
    site: str,
    missing: Missing,
    names: frozenset[str],
    ordinal: frozenset[str] = frozenset(),
) -> Frame:
    """Return the columns of a formula, with that of sites, as `select_columns`; `ordinal` are those
    of an ordinal response.
    """
    named = add_site(frame, site_column, site)
    categories = category_columns(parsed(formula)[1]) | {site_column} | ordinal
    return select_columns(named, names, site, missing, categories)


@cache
def _template(design: Design) -> Any:
    """Return the matrices of a formula's right side for a made-up frame, which code all rows."""
    matrices = evaluated(parsed(design.formula)[1], _made_up(design))
    reuse_coding(matrices)
    return matrices


def _made_up(design: Design) -> Frame:
    """Return a frame that has the categories, means and sds of all sites' rows."""
    count = 6 * max((len(known) for _, known in design.levels), default=1) + 6
    signs = np.array([-1.0, 1.0])
    columns = {name: np.resize(mean + sd * signs, count) for name, (mean, sd) in design.moments}
    for name, known in design.levels:
        columns[name] = np.resize(np.array([*known], dtype=object), count)
        if name in dict(design.moments):
            # Numbers that are categories in one term and numbers in another.
            columns[name] = columns[name].astype(np.int64)
    frame = needs("pandas", "formulas").DataFrame(columns, index=range(count))
    return design.categorise(frame, "")

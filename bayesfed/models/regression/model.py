"""`RegressionModel`: a Pyro model of rows, whose unknowns are all of order one.

==============================  ====================================================================
notation                        here
==============================  ====================================================================
X, m, s                         p columns of the design; their means and sds over all sites
b_j = 2.5 sd(y) / s_j z_j       slopes, z_j standard normal: rstanarm's and Bambi's default priors;
                                sd(y) counts as 1 for families that are not on the scale of y
a = start + 2.5 sd(y) z_0       the linear predictor at X = m, as rstanarm's intercept
u_lq                            effects of group l, normal with sd tau_q, which is half-normal with
                                the scale that the coefficient of the same column has; independent,
                                as Bambi's; beside ``1|g`` those of a column of ``x|g`` are of x - m
==============================  ====================================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from bayesfed.data import Dataset
from bayesfed.errors import DataError
from bayesfed.models.likelihoods.classes import cutpoints
from bayesfed.models.likelihoods.survival import Censored
from bayesfed.models.regression.categories import Summary, merge_all
from bayesfed.models.regression.design import Design
from bayesfed.models.regression.families import FAMILIES
from bayesfed.models.regression.tables import INTERCEPT, Group
from bayesfed.trees import Tree

# The plate of what is a site's own, of `federated_svi`; names of sites; sd of the priors.
CLIENT, STANDARD, SHARES = "client", "standardised", "shares"
WIDTH = 2.5


@dataclass(frozen=True)
class RegressionModel:
    """``model(inputs, targets=None)``, of rows of a `Design`.

    Parameters
    ----------
    family
        Name of the family.
    columns, groups, classes
        As of the `Design`.
    moments
        Mean and sd of each column over all sites' rows, and then of each column of each group term.
    start, scale
        What the intercept's prior is centred at; sd(y), or 1.
    """

    family: str
    columns: tuple[str, ...]
    groups: tuple[Group, ...]
    classes: tuple[str, ...]
    moments: tuple[tuple[float, float], ...]
    start: float
    scale: float

    @classmethod
    def of(cls, design: Design, rows: Sequence[Dataset]) -> RegressionModel:
        """Return the model of a design, with sums of all sites' rows.

        Raises
        ------
        DataError
            If a column or the response is the same in all rows.
        """
        family, columns = FAMILIES[design.family], design.columns
        by_site = [summarize_rows(part, len(columns), design.groups) for part in rows if len(part)]
        summaries = [merge_all(column) for column in zip(*by_site, strict=True)]
        mean, sd = summaries.pop().moments
        moments = [summary.moments for summary in summaries]
        made = [(name, moments[number][1]) for number, name in enumerate(columns)]
        for name, width in [*made, ("response", sd if family.scaled else 1.0)]:
            if not width and name != INTERCEPT:
                expected, hint = "more than one value", "leaving it out, or other rows"
                raise DataError(f"regression, {name!r}", expected, "one at all sites", hint)
        start = float(family.start(mean)) - moments[len(columns)][0]
        # The number of trials has no moments that count.
        del moments[len(columns) : len(columns) + 2]
        names = tuple(map(str, design.classes))
        scale = sd if family.scaled else 1.0
        return cls(design.family, columns, design.groups, names, tuple(moments), start, scale)

    def __call__(self, inputs: Tensor, targets: Tensor | None = None) -> None:
        """Sample or observe the response, ``y``."""
        values = Tree()
        if self.columns:
            with pyro.plate("coefficient", len(self.columns)):
                values[STANDARD] = pyro.sample(STANDARD, dist.Normal(0.0, 1.0))
        values |= _effects(self.groups)
        for name, prior in self.further.items():
            values[name] = pyro.sample(name, prior)
        eta = self.predictor(values, inputs)
        given = targets if targets is None or self.classes else targets.double()
        if targets is None or targets.ndim == 1:
            made = self.of_predictor(values, eta, inputs)
        else:
            made = Censored(self.of_predictor(values, eta[:, None], inputs))
        with pyro.plate("rows", len(inputs)):
            pyro.sample("y", made, obs=given)

    def distribution(self, values: Tree, inputs: Tensor) -> dist.TorchDistribution:
        """Return the distribution of the response of rows ``(N, ...)``, at values of all unknowns,
        with axes of draws in front or none.
        """
        return self.of_predictor(values, self.predictor(values, inputs), inputs)

    def of_predictor(self, values: Tree, eta: Tensor, inputs: Tensor) -> dist.TorchDistribution:
        """Return the distribution at linear predictors ``(..., N)``."""
        family, trials = FAMILIES[self.family], inputs[:, len(self.columns) + 1]
        more = {
            name: values[name].unsqueeze(-1 - prior.event_dim)
            for name, prior in self.further.items()
        }
        made: dist.TorchDistribution = family.likelihood.made(eta, more, trials)
        return made

    def mean(self, made: dist.TorchDistribution, eta: Tensor) -> Tensor:
        """Return the mean of a response, ``(..., N)``; the centre of Student's t, which may have
        none.
        """
        return eta if self.family == "student_t" else made.mean

    def predictor(self, values: Tree, inputs: Tensor) -> Tensor:
        """Return the linear predictor, ``(..., N)``."""
        count = len(self.columns)
        eta = inputs[:, count]
        if count:
            slopes = self.slopes(values)
            eta = eta + slopes @ inputs[:, :count].T
            if self.classes:
                eta = eta - (slopes @ self._means)[..., None]
        place = count + 2
        for group, effects in self.effects(values).items():
            block = inputs[:, place : place + group.size]
            eta = eta + effects.flatten(-2) @ block.T
            place += group.size
        return eta

    def slopes(self, values: Tree) -> Tensor:
        """Return the coefficients of the columns as they are, ``(..., p)``."""
        sds = _numbers(self.moments[: len(self.columns)])[:, 1]
        first = torch.tensor([name == INTERCEPT for name in self.columns])
        scaled = WIDTH * self.scale * values[STANDARD].double() / torch.where(first, 1.0, sds)
        if not first.any():
            return scaled
        centred = (scaled * self._means * ~first).sum(-1, keepdim=True)
        return scaled + first * (self.start - centred)

    def cuts(self, values: Tree) -> Tensor:
        """Return the cutpoints of an ordinal response for columns as they are, ``(..., K - 1)``."""
        made = cutpoints(values[SHARES].double())
        return made + (self.slopes(values) @ self._means)[..., None] if self.columns else made

    def spreads(self, values: Tree) -> dict[Group, Tensor]:
        """Return the sds of each group term's effects, ``(..., q)``."""
        place, found = len(self.columns), dict[Group, Tensor]()
        for group in self.groups:
            sds = _numbers(self.moments[place : place + len(group.columns)])[:, 1]
            place += len(sds)
            widths = WIDTH * self.scale / torch.where(sds > 0, sds, 1.0)
            found[group] = widths * values[group.spread].double()
        return found

    def effects(self, values: Tree) -> dict[Group, Tensor]:
        """Return the effects of each group term for columns as they are, ``(..., L, q)``."""
        place, found, spreads = len(self.columns), dict[Group, Tensor](), self.spreads(values)
        for group in self.groups:
            effects = values[group.name][..., 0, :] if group.own else values[group.name]
            found[group] = effects * spreads[group].unsqueeze(-2)
        for group in self.groups:
            means = _numbers(self.moments[place : place + len(group.columns)])[:, :1]
            place += len(group.columns)
            for other in self.groups:
                if other.factor == group.factor and other.columns == (INTERCEPT,) != group.columns:
                    found[other] = found[other] - found[group] @ means
        return found

    @property
    def _means(self) -> Tensor:
        return _numbers(self.moments[: len(self.columns)])[:, 0]

    @property
    def further(self) -> Mapping[str, dist.TorchDistribution]:
        """Priors of the family's further unknowns."""
        return FAMILIES[self.family].further(self.scale, len(self.classes))


def _effects(groups: Sequence[Group]) -> Tree:
    """Sample all standardised effects of groups, ``(L, q)``, and their standardised sds, ``(q,)``;
    those of a site's own under its plate, ``(L, 1, q)``.
    """
    values, client = Tree(), pyro.plate(CLIENT, 1, dim=-1)
    plates = {
        factor: pyro.plate(f"{factor}_groups", len(one.levels), dim=-2 if one.own else -1)
        for factor, one in {one.factor: one for one in groups}.items()
    }
    for group in groups:
        count = len(group.columns)
        spread = dist.HalfNormal(1.0).expand([count]).to_event(1)
        values[group.spread] = pyro.sample(group.spread, spread)
        with plates[group.factor], client if group.own else nullcontext():
            normal = dist.Normal(0.0, 1.0).expand([count]).to_event(1)
            values[group.name] = pyro.sample(group.name, normal)
    return values


def _numbers(values: Sequence[object]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def summarize_rows(rows: Dataset, count: int, groups: Sequence[Group]) -> list[Summary]:
    """Return what a site tells of its rows: summaries of the `count` columns of the design, of
    offset and trials, of the columns of each group term, and of the response.
    """
    inputs = rows.inputs.double()
    columns = [*inputs[:, : count + 2].T]
    start = count + 2
    for group in groups:
        block = inputs[:, start : start + group.size]
        # A row is zero in the columns of the groups that it is not of.
        columns += [*block.reshape(len(rows), -1, len(group.columns)).sum(1).T]
        start += group.size
    response = rows.targets.double()
    columns.append(response[:, 0] if response.ndim > 1 else response)
    return [Summary.of(column.numpy()) for column in columns]

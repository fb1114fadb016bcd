"""Sums over rows for a Gaussian around a trained network: `CurvatureSums` at the clients,
`FitGaussian` at the server.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from bayesfed.algorithms.surveys import (
    Asked,
    Limit,
    Limits,
    curvature_limits,
    nll_limits,
    over_rows,
)
from bayesfed.data import Dataset
from bayesfed.errors import UndeterminedWarning
from bayesfed.federated import Fit, LocalOptions, Reducer
from bayesfed.federated.aggregation.servers import PublishesModel, summed
from bayesfed.federated.core import MODEL, Info, of, owned
from bayesfed.federated.core.settings import with_settings
from bayesfed.inference.laplace import evidence
from bayesfed.inference.laplace.posterior import LaplacePosterior
from bayesfed.inference.laplace.roots import roots
from bayesfed.inference.laplace.structures import Structure
from bayesfed.inference.objectives.likelihood import check_data
from bayesfed.keys import Key
from bayesfed.models import Categorical, Likelihood
from bayesfed.models.likelihoods.rows import temperature_of
from bayesfed.models.modules import check_last
from bayesfed.trees import Shapes, Tree, only, to

# Owner of the leaves of the state that describe the Gaussian, and the names of those that are
# numbers.
OWN, NLL, ROWS, PRECISION = "laplace", "nll", "rows", "precision"
# What the names of the sums of a structure begin with, beside such numbers.
BLOCK = "block"

PriorPrecision = float | Literal["evidence"]
# Mean NLL in nats below which the curvature of the rows is no measure of what they say: at .008
# draws still helped, at .001 they never did.
FITTED = 0.005
# Draws that are expected to raise the NLL of the rows they come from by more nats a row than the
# first, and by more times the network's own NLL than the second, are worse than the network on
# other rows too: 1.4 to 2.7 times its NLL on digits, below these 1.4 times at most.
RISE, TIMES = 0.03, 2.0
HINT = (
    "fewer rounds or prior_precision= in the training, a larger prior_precision= here, or "
    "calibrated() on held-out rows"
)


@dataclass(frozen=True)
class CurvatureSums(Asked):
    """Run all rows through the network once and return the means of what they add to the GGN, and
    of their negative log likelihood.

    A client without rows sends zeros; its weight is its number of rows.

    Parameters
    ----------
    net, likelihood
        Network, in evaluation mode, and distribution of the targets.
    structure
        Form of the GGN.
    batch_size
        Number of rows of a pass; it affects memory only.
    last
        Path of the layer that must be the network's last; None if none must.
    """

    net: nn.Module
    likelihood: Likelihood
    structure: Structure
    batch_size: int
    last: str | None = None

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Return the means; remember nothing.

        Raises
        ------
        DataError
            If the rows do not fit the network or the likelihood, or another layer is the last.
        """
        check_data(self.net, self.likelihood, message, data)
        if self.last is not None:
            check_last(self.net, message, self.last, data.inputs, where="laplace, subset='last'")
        columns, rows = roots(self.likelihood), max(len(data), 1)

        def of_part(part: Dataset) -> Tree:
            outputs, found = self.structure.sums(self.net, message, part.inputs, columns)
            nll = -self.likelihood.pointwise(outputs.double(), part.targets).sum()
            return of(BLOCK, found) | {NLL: nll[None]}

        zeros = to(zero(sent_shapes(self.structure)), data.inputs.device)
        sums = over_rows(data, self.batch_size, of_part, zeros)
        return Fit(
            {name: total / rows for name, total in sums.items()},
            {},
            {"samples": float(len(data)), "nll": float(sums[NLL]) / rows},
        )


@dataclass(frozen=True)
class FitGaussian(PublishesModel):
    """Make the Gaussian of the clients' sums, and choose the precision of its prior.

    Parameters
    ----------
    net, likelihood, structure
        As of `CurvatureSums`.
    precision
        Precision of the prior, or "evidence".
    """

    net: nn.Module
    likelihood: Likelihood
    structure: Structure
    precision: PriorPrecision

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Return the state with the Gaussian, and the evidence in nats.

        Raises
        ------
        UpdateError
            If no client with rows took part.
        """
        total = summed(reducer, "moments")
        means, rows = total.mean(), total.number()
        sums, nll = owned(means, BLOCK), float(means[NLL])
        posterior = LaplacePosterior(
            self.net, self.likelihood, owned(state, MODEL), self.structure, sums, rows, nll, 1.0
        )
        values, norm = posterior.values, posterior.norm
        if self.precision == "evidence":
            chosen = evidence.best_precision(values, norm)
        else:
            chosen = float(self.precision)
        temperature = temperature_of(self.likelihood)
        fit = -rows * nll / temperature
        determined = evidence.determined(values, chosen)
        if isinstance(self.likelihood, Categorical):
            # Half a nat for every parameter that the rows determine, at the likelihood's
            # temperature.
            rise = temperature * determined / (2 * rows)
            if self.precision == "evidence" and nll < FITTED:
                _warn_of_no_curvature(nll, chosen)
            elif rise > max(RISE, TIMES * nll):
                _warn_of_rise(nll, rise, chosen)
        info = {
            "log_evidence": evidence.log_evidence(values, fit, norm, chosen),
            "determined": determined,
            "prior_precision": chosen,
            "nll": nll,
        }
        return state | gaussian(means, rows, chosen), info


def _warn_of_no_curvature(nll: float, chosen: float) -> None:
    text = (
        f"laplace: the network fits its rows exactly (NLL {nll:.1g} a row), so that they "
        "hardly bound its weights; the evidence finds a prior of "
        f"precision {chosen:.2g}, and draws from it doubt everything"
    )
    warnings.warn(f"{text}; try {HINT}", UndeterminedWarning, stacklevel=2)


def _warn_of_rise(nll: float, rise: float, chosen: float) -> None:
    text = (
        f"laplace: the network fits its rows closely (NLL {nll:.2g} a row), and draws from the "
        f"Gaussian are expected to have an NLL of {nll + rise:.2g} on the same rows; with a prior "
        f"of precision {chosen:.2g} the posterior predicts worse than the network"
    )
    warnings.warn(f"{text}; try {HINT}", UndeterminedWarning, stacklevel=2)


def sent_shapes(structure: Structure) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of what a client sends."""
    blocks = {f"{BLOCK}/{name}": shape for name, shape in structure.shapes.items()}
    return blocks | {NLL: (1,)}


def empty(structure: Structure, precision: PriorPrecision) -> Tree:
    """Return the leaves of a Gaussian of no rows: the prior, of precision 1 where the evidence is
    to choose it.
    """
    start = 1.0 if precision == "evidence" else float(precision)
    return gaussian(zero(sent_shapes(structure)), 0.0, start)


def gaussian(means: Tree, rows: float, precision: float) -> Tree:
    """Return the leaves of a Gaussian: means over so many rows, and the precision of the prior."""
    wide = torch.tensor([precision], dtype=torch.float64)
    return of(OWN, means | {ROWS: torch.tensor([rows]), PRECISION: wide})


def zero(shapes: Shapes) -> Tree:
    """Return zeros in double precision."""
    return {name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes.items()}


def posterior_of(
    state: Tree, net: nn.Module, likelihood: Likelihood, structure: Structure
) -> LaplacePosterior:
    """Return the posterior of a state around its model."""
    own = owned(state, OWN)
    rows, nll, precision = (float(own[name]) for name in (ROWS, NLL, PRECISION))
    blocks = owned(own, BLOCK)
    means: dict[str, Tensor] = only(blocks, structure.shapes)
    centre = owned(state, MODEL)
    return LaplacePosterior(net, likelihood, centre, structure, means, rows, nll, precision)


def sums_limits(structure: Structure, likelihood: Likelihood) -> Limits:
    """Return what the means of `CurvatureSums` can be."""

    @with_settings(likelihood=likelihood, structure=structure)
    def limits(payload: Tree, rows: float) -> Iterator[Limit]:
        yield nll_limits(payload[NLL], likelihood, 1.0)
        yield from curvature_limits(structure, likelihood, owned(payload, BLOCK))

    return limits

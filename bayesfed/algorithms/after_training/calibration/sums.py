"""What clients send of rows that they held out, NLLs at a grid of temperatures and then histograms
of scores, and what the server makes of it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from bayesfed.algorithms.surveys import Asked, Limit
from bayesfed.data import Dataset
from bayesfed.errors import DataError, UndeterminedWarning
from bayesfed.errors.plurals import plural
from bayesfed.federated import Fit, LocalOptions, Model, Reducer
from bayesfed.federated.aggregation.servers import PublishesModel, summed
from bayesfed.federated.core import MODEL, Info, of, owned
from bayesfed.inference.evaluation.conformal import histogram
from bayesfed.inference.objectives.likelihood import check_data
from bayesfed.keys import Key
from bayesfed.models import Categorical
from bayesfed.trees import Tree

# Leaves of the state that are not the network's.
TEMPERATURE, SCORES, CLIENTS = (
    f"calibration/{name}" for name in ("temperature", "scores", "clients")
)


@dataclass(frozen=True)
class GridOfTemperatures(Asked):
    """Sum the negative log likelihood of a client's rows at each temperature.

    Parameters
    ----------
    net
        The network.
    temperatures
        The grid.
    """

    net: nn.Module
    temperatures: tuple[float, ...]

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Send the sums; keep the memory.

        Raises
        ------
        DataError
            If the rows are not of the network's classes.
        """
        check_data(self.net, Categorical(), message, data)
        sums = torch.zeros(len(self.temperatures), dtype=torch.float64)
        if len(data):
            logits = _logits(self.net, message, data)
            sums = torch.stack(
                [
                    cross_entropy(logits / one, data.targets, reduction="sum")
                    for one in self.temperatures
                ]
            ).cpu()
        return Fit({"nll": sums}, memory, {"samples": float(len(data))})


@dataclass(frozen=True)
class BestTemperature(PublishesModel):
    """Take the temperature with the least sum."""

    temperatures: tuple[float, ...]

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Return the state with the temperature; with no rows at all it is 1.

        Warns
        -----
        UndeterminedWarning
            If the temperature is at an end of the grid, of more than two.
        """
        sums = summed(reducer, "moments").total["nll"]
        known, least, most = float(sums.max()) > 0, min(self.temperatures), max(self.temperatures)
        best = self.temperatures[int(sums.argmin())] if known else 1.0
        if known and len(self.temperatures) > 2 and best in (least, most):
            further = best / 4 if best == least else 4 * best
            text = (
                f"calibrated: the best temperature, {best:g}, is at the end of those that were "
                "tried"
            )
            warnings.warn(
                f"{text}; try temperatures= as far as {further:g}, or more held-out rows",
                UndeterminedWarning,
                stacklevel=2,
            )
        return state | {TEMPERATURE: torch.tensor([best], dtype=torch.float64)}, {
            "temperature": best
        }


@dataclass(frozen=True)
class ScoreHistograms(Asked):
    """Count a client's rows by class and by ``1 - p_y`` at the chosen temperature. The client keeps
    its own counts.

    Parameters
    ----------
    net
        The network.
    classes, bins
        C, and the number of bins.
    """

    net: nn.Module
    classes: int
    bins: int

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Send the counts, and one for the client if it has rows.

        Raises
        ------
        DataError
            If the network's outputs are not `classes`, or a label lies outside.
        """
        counts = torch.zeros(self.classes, self.bins, dtype=torch.float64)
        if len(data):
            logits = _logits(self.net, owned(message, MODEL), data)
            Categorical().check(logits, data.targets)
            if logits.shape[1] != self.classes:
                found = logits.shape[1]
                raise DataError(
                    "calibrated",
                    f"a network of {plural(self.classes, 'output')}",
                    found,
                    f"classes={found}",
                )
            p = (logits / float(message[TEMPERATURE])).softmax(1)
            owns = [data.targets == label for label in range(self.classes)]
            counts = torch.stack(
                [histogram(p[own], data.targets[own], bins=self.bins) for own in owns]
            )
        return Fit(
            {"scores": counts, "clients": torch.tensor([float(len(data) > 0)])},
            {SCORES: counts},
            {"samples": float(len(data))},
        )


@dataclass(frozen=True)
class SumOfHistograms:
    """Keep the sum of the clients' counts."""

    def publish(self, state: Tree, round: int, version: int | None) -> Tree:
        """Publish the network and its temperature."""
        return of(MODEL, owned(state, MODEL)) | {TEMPERATURE: state[TEMPERATURE]}

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Return the state with the sum."""
        total = summed(reducer, "moments").total
        return state | {SCORES: total["scores"], CLIENTS: total["clients"]}, {
            "held_out_rows": float(total["scores"].sum())
        }


def _logits(net: nn.Module, parameters: Tree, data: Dataset) -> Tensor:
    model = Model(net, parameters)
    return torch.cat([model(part) for part in data.inputs.split(2000)]).double()


def counts_limits(payload: Tree, rows: float) -> Iterator[Limit]:
    """Yield what histograms of rows can be: whole numbers, not more than rows."""
    scores = payload["scores"]
    yield "scores", scores, 0.0, rows
    yield "fractions of scores", scores - scores.round(), 0.0, 0.0
    yield "sum of scores", scores.sum(), 0.0, rows
    yield "clients", payload["clients"], 0.0, min(rows, 1.0)

"""Simulation-based calibration: fits of data sets that a model made itself, whose true values are
known (Talts, Betancourt, Simpson, Vehtari and Gelman, 2018).

If truths are drawn from the prior and rows from the model, the rank of a truth among draws of its
posterior is uniform, whatever the model. `ranks` says whether it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from pyro import poutine
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from bayesfed.data import Dataset
from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import checked, number, whole
from bayesfed.inference.evaluation.ranks import RankStatistics, rank_statistics
from bayesfed.keys import Key, forked
from bayesfed.trees import Tree


class Drawn(Protocol):
    """A posterior that can be drawn from."""

    def draw(self, key: Key, /) -> Tree:
        """Return one draw of every site."""
        ...


@dataclass(frozen=True, eq=False)
class Calibration:
    """Ranks of true values among draws.

    Parameters
    ----------
    ranks
        By site: integers ``(n, size)``, how many of the draws were below the truth.
    draws
        Number of draws behind a rank.
    """

    ranks: Mapping[str, Tensor]
    draws: int

    @checked(level=number("(0, 1)", "0.95"))
    def statistics(self, level: float = 0.95) -> dict[str, RankStatistics]:
        """Return the ECDF of every coordinate, by names as ``beta[0]``, and bands that hold all of
        them together with this probability, if ranks are uniform.
        """
        columns = {
            f"{name}[{place}]" if leaf.shape[1] > 1 else name: leaf[:, place]
            for name, leaf in self.ranks.items()
            for place in range(leaf.shape[1])
        }
        own = 1 - (1 - level) / len(columns)
        return {name: rank_statistics(one, self.draws, own) for name, one in columns.items()}

    @property
    def uniform(self) -> bool:
        """Whether all ECDFs lie in their bands, which hold 95 % together."""
        return all(one.inside for one in self.statistics().values())

    @checked(level=number("(0, 1)", "0.9"))
    def coverage(self, level: float = 0.9) -> float:
        """Return the share of truths in the central intervals of this probability, over all
        coordinates and data sets.
        """
        total = torch.cat([leaf.flatten() for leaf in self.ranks.values()]).double()
        return float((((total + 0.5) / (self.draws + 1) - 0.5).abs() < level / 2).double().mean())


@checked(simulations=whole(1, "100"), draws=whole(1, "99"), seed=whole(0, "0"))
def simulated_calibration(
    model: Callable[..., object],
    fit: Callable[[Dataset], Drawn],
    inputs: Tensor,
    *,
    simulations: int = 100,
    draws: int = 99,
    seed: int = 0,
) -> Calibration:
    """Fit data sets that a model made itself, and rank the true values among draws.

    Parameters
    ----------
    model
        ``model(inputs, targets=None)`` with proper priors.
    fit
        From rows to a posterior: ``lambda rows: bf.run(bf.federated_svi(model),
        bf.federate(rows, parts)).posterior``.
    inputs
        Inputs of the rows of every data set, ``(N, ...)``.
    simulations
        Number n of data sets.
    draws
        Number of draws from each posterior.
    seed
        Of truths, rows and draws.

    Raises
    ------
    ArgumentError
        If the model has no site, or several, whose values it takes as targets.
    """
    key, ranks = Key(seed, "simulated calibration"), dict[str, list[Tensor]]()
    for simulation in range(simulations):
        truth, rows = simulated(model, inputs, key.child(simulation, "rows"))
        posterior = fit(rows)
        found = [posterior.draw(key.child(simulation, "draws", n)) for n in range(draws)]
        for name, value in truth.items():
            below = torch.stack([one[name].double() < value.double() for one in found])
            ranks.setdefault(name, []).append(below.sum(0).flatten())
    return Calibration({name: torch.stack(several) for name, several in ranks.items()}, draws)


def simulated(model: Callable[..., object], inputs: Tensor, key: Key) -> tuple[Tree, Dataset]:
    """Draw true values from the prior of a model, and rows from the model.

    Raises
    ------
    ArgumentError
        If the model has no site, or several, whose values it takes as targets.
    """
    with forked(key):
        nodes: Mapping[str, Any] = poutine.trace(model).get_trace(inputs).nodes
        values = {
            name: node["value"].detach()
            for name, node in nodes.items()
            if node["type"] == "sample" and not node["is_observed"] and not site_is_subsample(node)
        }
        taken = list[str]()
        for name, value in values.items():
            if value.shape[:1] == inputs.shape[:1]:
                again = poutine.trace(model).get_trace(inputs, value).nodes
                taken += [name] if name in again and again[name]["is_observed"] else []
    if len(taken) != 1:
        hint = "pyro.sample('y', ..., obs=targets) under a plate of the rows"
        raise ArgumentError("simulated_calibration, model", "one site of targets", taken, hint)
    targets = values.pop(taken[0])
    return values, Dataset(inputs, targets)

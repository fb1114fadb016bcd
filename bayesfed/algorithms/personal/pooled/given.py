"""`GivenInputs` and `PopulationGivenInputs`: factors whose population depends on a client's inputs
(`covariates.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bayesfed.algorithms.personal.bayes.objective import MEAN
from bayesfed.algorithms.personal.pooled.covariates import (
    CENTRE,
    COVARIATES,
    DIRECTIONS,
    HEARD,
    LENGTH,
    MORE,
    SKETCH,
    expected,
    principal,
    sketched,
    summary,
)
from bayesfed.algorithms.personal.pooled.local import PooledParts
from bayesfed.algorithms.personal.pooled.server import Population
from bayesfed.data import Dataset
from bayesfed.federated import Fit, LocalOptions, Reducer
from bayesfed.federated.aggregation.servers import summed
from bayesfed.federated.core import Around, Info
from bayesfed.keys import Key
from bayesfed.trees import Shapes, Tree, without


def unknown(count: int, like: Tensor) -> Tree:
    """Return the server's leaves before any client was heard, for a number of factors."""
    shapes: Shapes = {
        CENTRE: (LENGTH,),
        SKETCH: (LENGTH, count + MORE),
        HEARD: (1,),
        DIRECTIONS: (LENGTH, count),
    }
    return {name: like.new_zeros(shape) for name, shape in shapes.items()}


@dataclass(frozen=True)
class GivenInputs(Around):
    """Steps of `PooledParts` about the factors that a client's inputs make expect, and moments of
    these inputs.

    Parameters
    ----------
    local
        Steps under a population of which the client knows the mean.
    leaf
        Name of the factors.
    """

    local: PooledParts
    leaf: str

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Send what `PooledParts` does, and the moments of the summary. Before the server has
        directions, factors are expected to be 0.

        Raises
        ------
        DataError
            If inputs are whole numbers.
        """
        centre, seen = expected(message, data.inputs), summary(data.inputs)
        told = without(message, COVARIATES) | {f"{MEAN}/{self.leaf}": centre}
        fit = self.local.fit(told, memory, data, key, options)
        sketch = sketched(seen, message[SKETCH].shape[1])
        moments = {CENTRE: seen.to(centre), SKETCH: sketch.to(centre)}
        return fit._replace(payload=fit.payload | moments)


@dataclass(frozen=True)
class PopulationGivenInputs:
    """The step of `Population`; the directions are those of all clients that were heard so far,
    each as often as it was.

    Parameters
    ----------
    population
        Step of the other leaves.
    """

    population: Population

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Return the next state. A round in which no client has data changes nothing."""
        stepped, info = self.population.step(without(state, COVARIATES), reducer, round)
        total = summed(reducer, "moments")
        if not total.weighs:
            return state, info
        heard, mean = state[HEARD] + total.number(), total.mean()
        given = {
            name: torch.lerp(state[name], mean[name], total.number() / float(heard))
            for name in (CENTRE, SKETCH)
        }
        directions = principal(given[CENTRE], given[SKETCH], state[DIRECTIONS])
        return dict(state) | stepped | given | {HEARD: heard, DIRECTIONS: directions}, info

"""`averaged`: predict by the mean of the server's last models (Polyak and Juditsky, 1992; Izmailov
et al., 2018).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

import torch

from bayesfed.algorithms.registry import ALGORITHM
from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import checked
from bayesfed.federated.aggregation.beside import Beside
from bayesfed.federated.aggregation.server_optimisers import OPTIMISER
from bayesfed.federated.core.algorithm import Algorithm
from bayesfed.federated.core.protocols import Info
from bayesfed.federated.core.update import Reducer
from bayesfed.trees import Tree, under, without

# Prefix of the leaves of the state that are not the method's own.
OWN = "averaged/"
MEAN, COUNT = OWN + "mean/", OWN + "count"
Served = TypeVar("Served")


@checked(algorithm=ALGORITHM)
def averaged(algorithm: Algorithm, *, begin: int) -> Algorithm:
    """Predict by the mean of the models that the server has after round `begin` and later ones,
    ``bf.averaged(bf.fed_avg(net), begin=20)``.

    The rounds go on from the last model as before, and no message changes: the mean is what
    `Result.model` and the sizes of a method are. It takes out the noise of rounds in which few
    clients, small batches or sketches move the model about, as a learning rate that falls does,
    while the rate stays high. The mean of adapters is that of each factor. The server keeps one
    more model. `swag` puts a Gaussian through the same models.

    Parameters
    ----------
    algorithm
        Method without a posterior or personal models, `server_optimised` ones included.
    begin
        First round, from 0, after which the model counts. Before it, the last model predicts.

    Raises
    ------
    ArgumentError
        If `begin` is negative, or the method has a posterior or personal models.

    References
    ----------
    Polyak and Juditsky, "Acceleration of stochastic approximation by averaging" (1992); Izmailov et
    al., "Averaging weights leads to wider optima and better generalization" (2018).
    """
    if begin < 0:
        raise ArgumentError("averaged, begin", "a round >= 0", begin, "two thirds of the rounds")
    if algorithm.posterior is not None or algorithm.personal:
        actual = f"{algorithm.name!r}, with a posterior or personal models"
        raise ArgumentError(
            "averaged, algorithm",
            "a method of point estimates",
            actual,
            "fed_avg, fed_lora, fs_lora",
        )
    names = [
        name
        for name, leaf in algorithm.initial.items()
        if leaf.is_floating_point() and not name.startswith(OPTIMISER)
    ]
    own: Tree = {COUNT: torch.zeros(1, dtype=torch.float64)} | {
        MEAN + name: algorithm.initial[name].clone() for name in names
    }

    def of_mean(served: Callable[[Tree], Served]) -> Callable[[Tree], Served]:
        def predict(state: Tree) -> Served:
            model = without(state, OWN)
            return served(model | under(state, MEAN) if float(state[COUNT]) else model)

        return predict

    final = len(algorithm.phases) - 1
    return replace(
        algorithm,
        initial=algorithm.initial | own,
        phases=tuple(
            Averaging(phase.server, begin, number == final).in_phase(phase)
            for number, phase in enumerate(algorithm.phases)
        ),
        predictor=of_mean(algorithm.predictor),
        sizes={name: of_mean(size) for name, size in algorithm.sizes.items()},
    )


@dataclass(frozen=True)
class Averaging(Beside):
    """The step of another server, after which its model enters the mean.

    Parameters
    ----------
    server
        Server that takes the step.
    begin
        First round that counts.
    last
        Whether this is the last phase of a round: models in between do not count.
    """

    OWN: ClassVar[str] = OWN
    begin: int
    last: bool

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Take the step; take in the model in a round that counts."""
        model, kept = self.parted(state)
        model, info = self.server.step(model, reducer, round)
        if not self.last or round < self.begin:
            return model | kept, info
        count = float(kept[COUNT])
        means = {
            MEAN + name: (mean * count + model[name]) / (count + 1)
            for name, mean in under(kept, MEAN).items()
        }
        return model | means | {COUNT: kept[COUNT] + 1}, info | {"averaged_models": count + 1}

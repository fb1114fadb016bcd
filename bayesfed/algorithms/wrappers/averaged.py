"""`averaged`: predict by the mean of the server's last models (Polyak and Juditsky, 1992; Izmailov
et al., 2018).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from bayesfed.algorithms.registry import ROLES
from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import checked
from bayesfed.federated import Algorithm, Layer, Moment, Update, layered
from bayesfed.federated.core import Info, Inner, of, owned
from bayesfed.trees import Tree

MEAN, COUNT = "mean", "count"


@checked(begin=ROLES["begin"])
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
    if algorithm.posterior is not None or algorithm.personal:
        raise ArgumentError(
            "averaged, algorithm",
            "a method of point estimates",
            f"{algorithm.name!r}, with a posterior or personal models",
            "fed_avg, fed_lora, fs_lora",
        )
    final = len(algorithm.phases) - 1
    return layered(
        algorithm,
        lambda number: Averaging(begin=begin, last=number == final),
        where=f"averaged, {algorithm.name!r}",
        one_phase=False,
    )


@dataclass(frozen=True)
class Averaging(Layer):
    """The mean of the models after some rounds, which predicts in place of the last one.

    Parameters
    ----------
    begin
        First round that counts.
    last
        Whether this is the last phase of a round: models in between do not count.
    """

    owner: str = "averaged"
    begin: int = 0
    last: bool = True

    def start(self, moment: Moment) -> Tree:
        """Return a mean of no models."""
        floats = {
            name: leaf.clone() for name, leaf in moment.model.items() if leaf.is_floating_point()
        }
        return {COUNT: torch.zeros(1, dtype=torch.float64)} | of(MEAN, floats)

    def step(
        self, own: Tree, moment: Moment, total: Update | None, inner: Inner
    ) -> tuple[Tree, Tree, Info]:
        """Take the step; take in the model in a round that counts and was heard."""
        model, info = inner(total)
        if not self.last or moment.round < self.begin or (total is None and model is moment.model):
            return own, model, info
        count = float(own[COUNT])
        means = {
            name: (mean * count + model[name]) / (count + 1)
            for name, mean in owned(own, MEAN).items()
        }
        after = {COUNT: own[COUNT] + 1} | of(MEAN, means)
        return after, model, info | {"averaged_models": count + 1}

    def predict(self, own: Tree, model: Tree) -> Tree:
        """Return the mean, once a model counts."""
        return model | owned(own, MEAN) if float(own[COUNT]) else model

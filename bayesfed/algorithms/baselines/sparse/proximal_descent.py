"""Composite problems, a loss plus a penalty without a gradient: `ProximalDescent` on clients,
`ProximalAverage` on the server.

Notation: eta -> the rate of a step; psi -> the penalty of an operator of
`bayesfed.inference.objectives.proximal_operators`; `penalise` chooses its leaves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bayesfed.data import Dataset
from bayesfed.errors import ArgumentError, UpdateError
from bayesfed.federated import Descent, Fit, LocalOptions, Reducer
from bayesfed.federated.aggregation.servers import summed
from bayesfed.federated.core import Around, Info
from bayesfed.federated.training.optimisers import Schedule
from bayesfed.inference.objectives.proximal_operators import ProximalOperator, density
from bayesfed.keys import Key
from bayesfed.models import weight_matrices
from bayesfed.models.calling import check_resolved
from bayesfed.models.modules import Predicate, selected
from bayesfed.trees import Tree, only


@dataclass(frozen=True)
class Penalised:
    """An operator and the leaves that it applies to; all other leaves stay as they are.

    Parameters
    ----------
    names
        Names of the leaves that the operator is applied to.
    """

    operator: ProximalOperator
    names: tuple[str, ...]

    def shrunk(self, tree: Mapping[str, Tensor], rate: float) -> Tree:
        """Return the penalised leaves after the operator.

        Raises
        ------
        UpdateError
            If the tree lacks one of them.
        """
        return {name: self.operator(leaf, rate) for name, leaf in self._chosen(tree).items()}

    def figures(self, tree: Mapping[str, Tensor]) -> Info:
        """Return ``density``, the share of nonzero entries of all penalised leaves and matrices, a
        finite ``penalty`` of the penalised leaves, and ``NAME.FIGURE`` of each.
        """
        chosen = self._chosen(tree)
        penalty = sum(self.operator.value(leaf) for leaf in chosen.values())
        sent = [leaf for name, leaf in tree.items() if name in chosen or leaf.ndim > 1]
        figures = {"density": density(torch.cat([leaf.reshape(-1) for leaf in sent]))}
        if math.isfinite(penalty):
            figures["penalty"] = penalty
        return figures | {
            f"{name}.{figure}": value
            for name, leaf in chosen.items()
            for figure, value in self.operator.figures(leaf).items()
        }

    def _chosen(self, tree: Mapping[str, Tensor]) -> Tree:
        if missing := [name for name in self.names if name not in tree]:
            raise UpdateError(
                "penalised leaves", missing, sorted(tree), "penalise with the network trained"
            )
        return only(tree, self.names)


def penalise(
    net: nn.Module,
    operator: ProximalOperator,
    where: Predicate = weight_matrices,
    *,
    caller: str = "penalise",
) -> Penalised:
    """Choose the parameters of a network that an operator applies to.

    Parameters
    ----------
    where
        ``(parameter name, owning module) -> bool``. Default: the weights of linear and convolution
        layers, not the biases. Frozen parameters are constants and left out.
    caller
        Name of the caller, for error messages.

    Raises
    ------
    ArgumentError
        If `where` chooses nothing that is trained: the weights under adapters are not.
    """
    check_resolved(caller, net)
    named = dict(net.named_parameters())
    chosen = selected(net, named, where)
    names = tuple(name for name in chosen if named[name].requires_grad)
    if not names:
        expected, actual = "a predicate that chooses a parameter", f"none of {[*named]}"
        hint = "where=weight_matrices"
        if chosen:
            more = f"{', '.join(chosen[:3])}{', ...' * (len(chosen) > 3)}"
            expected, actual = "parameters that are trained", f"{len(chosen)} frozen ones: {more}"
            hint = "net.requires_grad_()"
        if any("lora_" in name for name in named):
            hint = (
                'in Python where=lambda name, module: "lora_" in name, or a network without '
                "adapters, merged(net)"
            )
        raise ArgumentError(f"{caller}, where", expected, actual, hint)
    return Penalised(operator, names)


@dataclass(frozen=True)
class ProximalDescent(Around):
    """Proximal gradient steps: those of a `Descent`, each followed by ``prox_{eta psi}`` at the
    rate eta of the step.

    The operator belongs to the Euclidean norm. With an optimiser of another metric (Adam), fixed
    points are not those of the loss plus psi.

    Parameters
    ----------
    local
        The gradient steps: objective, optimiser and batches.
    once
        Apply the operator only after the last step, to prune densely trained weights.
    """

    local: Descent
    penalised: Penalised
    once: bool = False

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Train from the message and remember nothing. Figures are those of the trained leaves.

        Raises
        ------
        DataError
            If the data cannot be scored, or training diverged.
        UpdateError
            If a penalised leaf is not trained.
        """
        figures: Info = (
            {} if len(data) else self.penalised.figures(self.local.objective.start(message)[0])
        )

        def after_step(trained: Tree, rate: float, left: int) -> None:
            if not (self.once and left):
                for name, leaf in self.penalised.shrunk(trained, rate).items():
                    trained[name].copy_(leaf)
            if not left:
                figures.update(self.penalised.figures(trained))

        fit = self.local.train(message, data, key, options, after_step)
        return fit._replace(info=fit.info | figures)


@dataclass(frozen=True)
class ProximalAverage:
    """Take the weighted mean of the clients' models, then ``prox_{rate psi}``, since a mean of
    sparse or low-rank models is neither.

    References
    ----------
    Yuan, Zaheer and Reddi, "Federated composite optimization" (2021), federated mirror descent with
    the Euclidean mirror map and server rate 1.

    Parameters
    ----------
    rate
        ``round -> eta``. None only reports figures of the mean.
    """

    penalised: Penalised
    rate: Schedule | None = None

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Average values and apply the operator. A round of clients without data changes
        nothing.
        """
        total = summed(reducer, "value")
        if total.weight:
            state = total.mean()
            if self.rate:
                state = state | self.penalised.shrunk(state, self.rate(round))
        return state, self.penalised.figures(state)

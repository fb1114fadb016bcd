"""Clients' log likelihoods as quadratic functions: `Expansion` around where a client's training
ended, and `Maximum` of their sum at the server.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bayesfed.algorithms.after_training.laplace.sums import BLOCK, NLL, gaussian
from bayesfed.algorithms.surveys import (
    LARGEST,
    Limit,
    Limits,
    curvature,
    curvature_limits,
    nll_limits,
    over_rows,
)
from bayesfed.data import Dataset
from bayesfed.federated import Descent, Fit, LocalOptions, Reducer
from bayesfed.federated.aggregation.servers import PublishesModel, summed
from bayesfed.federated.core import MODEL, Around, Info, of, owned
from bayesfed.federated.core.settings import with_settings
from bayesfed.federated.links.digital import USUAL_NORM
from bayesfed.inference.laplace.blocks import symmetric
from bayesfed.inference.laplace.roots import sharpest
from bayesfed.inference.laplace.structures import Structure
from bayesfed.keys import Key
from bayesfed.models import Likelihood
from bayesfed.models.calling import functional_call
from bayesfed.models.likelihoods.rows import temperature_of
from bayesfed.models.modules import check_last, evaluating
from bayesfed.trees import Tree, besides, only, zeros_like

# What the names of the linear terms begin with.
LINEAR = "linear"


@dataclass(frozen=True)
class Expansion(Around):
    """Train some parameters, then expand: ``log p(D | theta) ~ b' theta - theta' H theta / 2``, b =
    H theta_k + g, all as means over rows.

    H is the GGN at theta_k, where training ended, and g the gradient of the log likelihood there.
    For a linear model with normal targets this is exact wherever training ends.

    Parameters
    ----------
    local
        Steps of plain SGD.
    net, likelihood
        Network, and distribution of the targets.
    structure
        Form of H: one that holds all entries, or a diagonal.
    precision
        Precision of the prior N(0, 1 / precision) during the client's training, a proximal step
        after every step; 0 for none.
    floor
        What is added to every entry of a diagonal; 0 for other forms.
    gradient
        Whether g is part of the expansion. Without it, training counts as ended at a maximum.
    batch_size
        Number of rows of a pass for H; it affects memory only.
    last
        Path of the layer that must be the network's last; None if none must.
    """

    local: Descent
    net: nn.Module
    likelihood: Likelihood
    structure: Structure
    precision: float
    floor: float
    gradient: bool
    batch_size: int = 250
    last: str | None = None

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Return the means over rows; remember nothing.

        Raises
        ------
        DataError
            If the rows do not fit the network, or another layer is the last.
        """
        if self.last is not None:
            check_last(self.net, message, self.last, data.inputs, where="one_round")
        names, rows = self.structure.names, max(len(data), 1)
        fixed = besides(message, names)

        def after_step(trained: Tree, rate: float, left: int) -> None:
            for name, leaf in trained.items():
                if name in fixed:
                    leaf.copy_(fixed[name])
                elif self.precision:
                    leaf.mul_(rows / (rows + rate * self.precision))

        fit = self.local.train(message, data, key, options, after_step)
        trained = fixed | only(fit.payload, names)
        size = self.batch_size
        sums = curvature(self.structure, self.net, trained, data, self.likelihood, size)
        at = self._matrices(trained)
        slopes, nll = self._slopes(trained, data)
        linear: dict[str, Tensor] = {}
        for (block, total), (name, matrix) in zip(sums.items(), at.items(), strict=True):
            sums[block] = total + self.floor * (len(data) > 0)
            linear[name] = product(sums[block], matrix) + (slopes[name] if self.gradient else 0)
        sent = of(BLOCK, sums) | of(LINEAR, linear) | {NLL: nll[None]}
        payload = {name: leaf / rows for name, leaf in sent.items()}
        return fit._replace(payload=payload, memory={})

    def _slopes(self, trained: Tree, data: Dataset) -> tuple[Tree, Tensor]:
        """Return the gradient of the log likelihood of all rows by block, and their negative log
        likelihood without temperature.
        """
        leaves = {
            name: trained[name].detach().clone().requires_grad_() for name in self.structure.names
        }
        cold = 1 / temperature_of(self.likelihood)

        def of_part(part: Dataset) -> Tree:
            with evaluating(self.net), torch.enable_grad():
                outputs = functional_call(self.net, trained | leaves, (part.inputs,))
                score = self.likelihood.pointwise(outputs, part.targets).sum()
            slopes = torch.autograd.grad(score, list(leaves.values()))
            gradients = {name: cold * new for name, new in zip(leaves, slopes, strict=True)}
            return of(MODEL, gradients) | {NLL: -score.detach().double()}

        begun = of(MODEL, zeros_like(leaves))
        begun[NLL] = torch.zeros((), dtype=torch.float64, device=data.inputs.device)
        sums = over_rows(data, self.batch_size, of_part, begun)
        return self._matrices(owned(sums, MODEL)), sums[NLL]

    def _matrices(self, tree: Tree) -> Tree:
        return {name: leaf.double() for name, leaf in self.structure.matrices(tree).items()}


@dataclass(frozen=True)
class Maximum(PublishesModel):
    """Take the maximum of the sum of clients' log likelihoods and the log prior N(0, 1 /
    precision).

    Parameters
    ----------
    structure
        As of `Expansion`.
    precision
        Precision of the prior; 0 for none.
    gaussian
        Whether the state keeps the sums, for a posterior.
    """

    structure: Structure
    precision: float
    gaussian: bool

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Return the state with the maximum. A round in which no client has data changes
        nothing.
        """
        total = summed(reducer, "moments")
        if not total.weighs:
            return state, {}
        means, rows = total.mean(), total.number()
        linear = {name: rows * leaf.double() for name, leaf in owned(means, LINEAR).items()}
        blocks, network = owned(means, BLOCK), owned(state, MODEL)
        curvatures = [rows * blocks[name].double() for name in self.structure.shapes]
        solved = {
            name: solution(one, self.precision, right)
            for one, (name, right) in zip(curvatures, linear.items(), strict=True)
        }
        best = self.structure.split(solved, only(network, self.structure.names))
        after = of(MODEL, network | best)
        if not self.gaussian:
            return after, {}
        kept = of(BLOCK, blocks) | {NLL: means[NLL]}
        return after | gaussian(kept, rows, self.precision), {}


def is_diagonal(curvature: Tensor, matrix: Tensor) -> bool:
    """Return whether a curvature is a number for every entry, and not the triangle of a matrix."""
    return curvature.numel() == matrix.numel()


def product(curvature: Tensor, matrix: Tensor) -> Tensor:
    """Return a curvature times all entries of a matrix, in the shape of the matrix."""
    if is_diagonal(curvature, matrix):
        return curvature.view_as(matrix) * matrix
    result: Tensor = symmetric(curvature) @ matrix.flatten()
    return result.view_as(matrix)


def solution(curvature: Tensor, precision: float, right: Tensor) -> Tensor:
    """Return ``(H + precision)^-1`` times all entries of a matrix, in the shape of the matrix."""
    if is_diagonal(curvature, right):
        return right / (curvature.view_as(right) + precision)
    full = symmetric(curvature)
    result: Tensor = torch.linalg.solve(
        full + precision * torch.eye(len(full), dtype=full.dtype, device=full.device),
        right.flatten(),
    )
    return result.view_as(right)


def expansion_limits(structure: Structure, likelihood: Likelihood, floor: float) -> Limits:
    """Return what an `Expansion` can be, of parameters as large as any that are sent."""
    slope = 2 * max(1.0, sharpest(likelihood)) * LARGEST**2

    @with_settings(floor=floor, likelihood=likelihood, slope=slope, structure=structure)
    def limits(payload: Tree, rows: float) -> Iterator[Limit]:
        blocks, linear = owned(payload, BLOCK), owned(payload, LINEAR)
        yield nll_limits(payload[NLL], likelihood, 1.0)
        yield from curvature_limits(structure, likelihood, blocks, floor / max(rows, 1.0))
        for block, (name, vector) in zip(structure.shapes, linear.items(), strict=True):
            if structure.diagonal:
                most = USUAL_NORM * blocks[block].view_as(vector)
            else:
                # ||H theta|| at an entry, by Cauchy and Schwarz.
                squares = symmetric(blocks[block]).diagonal().clamp_min(0)
                most = slope + USUAL_NORM * (squares * squares.sum()).sqrt().view_as(vector)
            yield f"{LINEAR} of {name}", vector, -most, most

    return limits

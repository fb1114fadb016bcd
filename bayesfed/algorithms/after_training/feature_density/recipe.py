"""The density of a trained network's features from sums over the clients' rows (Lee et al., 2018;
Mukhoti et al., 2023).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bayesfed.algorithms.after_training.feature_density.model import (
    FeatureDensity,
    features,
    last_of,
)
from bayesfed.algorithms.after_training.trained import network_and_parameters
from bayesfed.algorithms.registry import recipe
from bayesfed.algorithms.surveys import LARGEST, Asked, Limit, product_limits, survey
from bayesfed.compress import Cast
from bayesfed.data import Dataset
from bayesfed.errors.checks import number
from bayesfed.federated import Algorithm, Fit, Link, LocalOptions, Predictor, Reducer
from bayesfed.federated.aggregation.servers import PublishesModel, summed
from bayesfed.federated.core import MODEL, Info, of, owned
from bayesfed.federated.core.layering import of_core
from bayesfed.inference.laplace.blocks import symmetric, triangle
from bayesfed.inference.objectives.likelihood import check_data
from bayesfed.keys import Key
from bayesfed.models import Categorical
from bayesfed.models.modules import check_last
from bayesfed.models.nets.norms import check_tracked
from bayesfed.trees import Tree

# Owner of the leaves of the state that are not the network's, and their names.
OWN, COUNTS, SUMS, PRODUCTS = "density", "counts", "sums", "products"


@recipe(cites=("lee2018simple", "mukhoti2023deep"), shrinkage=number("[0, 1]", "1e-3"))
def feature_density(
    model: nn.Module | Predictor,
    parameters: Mapping[str, Tensor] | None = None,
    *,
    shrinkage: float = 1e-3,
    link: Link | None = None,
) -> Algorithm:
    """Tell rows of no class by their features, from one round of sums:
    ``bf.run(bf.feature_density(result.model), clients, rounds=1).model``.

    Each client sends counts and sums of the last layer's inputs by class, and the triangle of the
    sum of their outer products, in 64 bits a number: 284 kB for 256 features and 10 classes. The
    result is that of all rows together, whatever the partition. Its `distance` is an uncertainty
    for `bayesfed.inference.evaluation.detection`. Compare it with the largest logit, which costs
    nothing.

    The covariance is a difference of sums. It loses digits where features lie far from 0: its
    relative error is about 1e-16 times the square of mean over sd, so that means of more than a
    million sds need features that are centred.

    Parameters
    ----------
    model
        The trained classifier, or a `Model` such as ``result.model``.
    parameters
        Parameters of the network. Default: its own, or those of the `Model`.
    shrinkage
        Share of a multiple of the identity in the covariance; features that are always zero need
        some.
    link
        How sums reach the server. Default: `Digital()` without a bound on norms.

    Raises
    ------
    ArgumentError
        If the model is none or has no linear layer, the parameters are not the network's, the
        network has batch norm without running statistics, or the shrinkage is no number in [0, 1].
    DataError
        In the round, if the last linear layer that the network registers is not the last that is
        used.

    References
    ----------
    Lee et al., "A Simple Unified Framework for Detecting Out-of-Distribution Samples and
    Adversarial Attacks" (2018); Mukhoti et al., "Deep Deterministic Uncertainty: A New Simple
    Baseline" (2023).
    """
    net, begun = network_and_parameters("feature_density", model, parameters)
    check_tracked(net, "feature_density")
    last, layer = last_of(net)
    classes, size = layer.out_features, layer.in_features
    shapes = (classes,), (classes, size), (size * (size + 1) // 2,)
    zeros = {
        name: torch.zeros(shape, dtype=torch.float64)
        for name, shape in zip((COUNTS, SUMS, PRODUCTS), shapes, strict=True)
    }

    def predictor(state: Tree) -> FeatureDensity:
        network, own = owned(state, MODEL), owned(state, OWN)
        products = symmetric(own[PRODUCTS])
        return FeatureDensity(net, network, own[COUNTS], own[SUMS], products, shrinkage)

    begin = of(OWN, zeros)
    expected = {name: tuple(leaf.shape) for name, leaf in begin.items()}
    local = ClassMoments(net, last, classes, size)
    # The covariance is a small difference of the sums.
    server, up = SumOfMoments(), Cast(64)
    phase = survey("moments", local, server, expected, moments_limits, begun, link, up=up)
    return of_core("feature_density", of(MODEL, begun) | begin, (phase,), predictor)


@dataclass(frozen=True)
class ClassMoments(Asked):
    """Run all rows through the network and sum what its last layer gets.

    Parameters
    ----------
    net
        The network.
    last
        Path of the linear layer that it registers last.
    classes, size
        C, and d.
    """

    net: nn.Module
    last: str
    classes: int
    size: int

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Send counts and sums by class, and the triangle of the outer products; keep the memory.

        Raises
        ------
        DataError
            If the rows are not of the network's classes, its last layer is not used once, or
            another layer is the last.
        """
        check_data(self.net, Categorical(), message, data)
        check_last(self.net, message, self.last, data.inputs, where="feature_density")
        counts = torch.bincount(data.targets.cpu().long(), minlength=self.classes).double()
        sums = torch.zeros(self.classes, self.size, dtype=torch.float64)
        products = torch.zeros(self.size, self.size, dtype=torch.float64)
        for start in range(0, len(data), 2000):
            part = data[slice(start, start + 2000)]
            rows = features(self.net, message, part.inputs).double().cpu()
            sums.index_add_(0, part.targets.cpu(), rows)
            products += rows.mT @ rows
        # Under an owner: a parameter of the network can have any other name, and its type.
        sent = of(OWN, {COUNTS: counts, SUMS: sums, PRODUCTS: triangle(products)})
        return Fit(sent, memory, {"samples": float(len(data))})


@dataclass(frozen=True)
class SumOfMoments(PublishesModel):
    """Keep the sum of the clients' moments."""

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Return the state with the sums, and the number of rows."""
        total = summed(reducer, "moments").total
        sums = {name: leaf.double() for name, leaf in total.items()}
        return state | sums, {"rows": float(owned(sums, OWN)[COUNTS].sum())}


def moments_limits(payload: Tree, rows: float) -> Iterator[Limit]:
    """Yield what counts, sums and products of rows can be."""
    payload = owned(payload, OWN)
    counts = payload[COUNTS]
    yield COUNTS, counts, 0.0, rows
    yield f"sum of {COUNTS}", counts.sum(), 0.0, rows
    most = LARGEST * counts.clamp_min(0)[:, None].expand_as(payload[SUMS])
    yield SUMS, payload[SUMS], -most, most
    yield from product_limits(PRODUCTS, payload[PRODUCTS], LARGEST**2 * rows)

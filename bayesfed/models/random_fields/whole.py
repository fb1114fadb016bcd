"""Support priors of what goes as a whole: the inputs and the outputs of a layer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import checked_class
from bayesfed.models.random_fields.clusters import Clusters, Lowered
from bayesfed.models.random_fields.support_priors import Independent, Shape, Support

# Layers whose weight has a row for each input.
TURNED = (nn.Embedding, nn.EmbeddingBag, nn.modules.conv._ConvTransposeNd)


@runtime_checkable
class OfLayer(Protocol):
    """A support prior that depends on what a layer does with its weight."""

    def of_layer(self, layer: nn.Module, shape: tuple[int, ...]) -> Lowered:
        """Return the model of the supports of a layer's weight of this shape."""


@checked_class()
@dataclass(frozen=True)
class Inputs:
    """All weights that read an input of a layer, or a channel that comes into a convolution, are
    active or inactive together.

    An input's log-odds are the sum of its weights' evidence and of its prior, exactly. On the first
    layer of a network they say which inputs matter: `Result.inputs` returns their probabilities,
    and `bayesfed.models.compact` drops what is not used.

    Parameters
    ----------
    prior
        Prior of which inputs are used, as of a matrix of one row. Default: each with probability
        1/2. ``MarkovGrid(patch=(28, 28))`` lets neighbouring pixels go together,
        `Neighbourhood` those of a graph.

    Raises
    ------
    ArgumentError
        If the prior is not of inputs one by one.
    """

    prior: Support = Independent()

    def lower(self, shape: Shape) -> Clusters:
        """Return the model of a matrix with a column for each input."""
        return _tied(self.prior, reads(None, shape))

    def of_layer(self, layer: nn.Module, shape: tuple[int, ...]) -> Clusters:
        """Return the model of a layer's weight: a column of a linear layer, the kernels of a
        channel that comes into a convolution, the row of a word in an embedding.
        """
        return _tied(self.prior, reads(layer, shape))


@checked_class()
@dataclass(frozen=True)
class Outputs:
    """All weights of an output of a layer, a unit or a channel of a convolution, are active or
    inactive together.

    An output's log-odds are the sum of its weights' evidence and of its prior, exactly.
    `bayesfed.models.compact` makes a smaller layer of one whose outputs are off, and drops them
    from the inputs of the next. With a `density`, `d_turbo_vbi` keeps every output of the last
    layer, since these are the outputs of the network.

    Parameters
    ----------
    prior
        Prior of which outputs are active, as of a matrix of one row. Default: each with
        probability 1/2.

    Raises
    ------
    ArgumentError
        If the prior is not of outputs one by one.
    """

    prior: Support = Independent()

    def lower(self, shape: Shape) -> Clusters:
        """Return the model of a matrix with a row for each output."""
        return _tied(self.prior, makes(None, shape))

    def of_layer(self, layer: nn.Module, shape: tuple[int, ...]) -> Clusters:
        """Return the model of a layer's weight: a row of a linear layer or a convolution, a
        column of an embedding.
        """
        return _tied(self.prior, makes(layer, shape))


class Channels(Outputs):
    """`Outputs`, by the name that those of a convolution have."""


def lowered(support: Support, layer: nn.Module, shape: tuple[int, ...]) -> Lowered:
    """Return a support prior's model of a layer's weight of this shape, as a matrix."""
    if isinstance(support, OfLayer):
        return support.of_layer(layer, shape)
    return support.lower((shape[0], math.prod(shape[1:])))


def reads(layer: nn.Module | None, shape: tuple[int, ...]) -> Tensor:
    """Return which input of its layer each entry ``(M, N)`` of a weight of this shape reads; None:
    of a linear layer.
    """
    return _of_rows(shape) if isinstance(layer, TURNED) else _of_columns(layer, shape)


def makes(layer: nn.Module | None, shape: tuple[int, ...]) -> Tensor:
    """Return which output of its layer each entry of a weight is for; arguments as in `reads`."""
    return _of_columns(layer, shape) if isinstance(layer, TURNED) else _of_rows(shape)


def _of_rows(shape: tuple[int, ...]) -> Tensor:
    return torch.arange(shape[0])[:, None].repeat(1, math.prod(shape[1:]))


def _of_columns(layer: nn.Module | None, shape: tuple[int, ...]) -> Tensor:
    """Return the place of each entry in the second dimension, counted on from group to group of
    rows.
    """
    groups = layer.groups if isinstance(layer, nn.modules.conv._ConvNd) else 1
    group = torch.arange(groups).repeat_interleave(shape[0] // groups)
    places = torch.arange(shape[1]).repeat_interleave(math.prod(shape[2:]))
    return group[:, None] * shape[1] + places


def _tied(prior: Support, index: Tensor) -> Clusters:
    model = prior.lower((1, int(index.max()) + 1))
    if isinstance(model, Clusters):
        expected = "a prior of inputs or outputs one by one"
        raise ArgumentError("Inputs or Outputs, prior", expected, prior, "Independent(0.5)")
    return Clusters(model, index)

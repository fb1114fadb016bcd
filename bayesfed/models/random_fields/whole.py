"""Support priors of what goes as a whole: the inputs and the outputs of a layer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import nn

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
        return _tied(self.prior, reads(None, shape), shape)

    def of_layer(self, layer: nn.Module, shape: tuple[int, ...]) -> Clusters:
        """Return the model of a layer's weight: a column of a linear layer, the kernels of a
        channel that comes into a convolution, the row of a word in an embedding.
        """
        return _tied(self.prior, reads(layer, shape), shape)


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
        return _tied(self.prior, makes(None, shape), shape)

    def of_layer(self, layer: nn.Module, shape: tuple[int, ...]) -> Clusters:
        """Return the model of a layer's weight: a row of a linear layer or a convolution, a
        column of an embedding.
        """
        return _tied(self.prior, makes(layer, shape), shape)


class Channels(Outputs):
    """`Outputs`, by the name that those of a convolution have."""


def lowered(support: Support, layer: nn.Module, shape: tuple[int, ...]) -> Lowered:
    """Return a support prior's model of a layer's weight of this shape, as a matrix."""
    if isinstance(support, OfLayer):
        return support.of_layer(layer, shape)
    return support.lower((shape[0], math.prod(shape[1:])))


def reads(layer: nn.Module | None, shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the sides of the block of a weight's matrix that reads an input of its layer; None: a
    linear layer. Blocks follow each other as the inputs do.
    """
    return _row(shape) if isinstance(layer, TURNED) else _column(layer, shape)


def makes(layer: nn.Module | None, shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the sides of the block that makes an output of its layer, as `reads`."""
    return _column(layer, shape) if isinstance(layer, TURNED) else _row(shape)


def _row(shape: tuple[int, ...]) -> tuple[int, int]:
    return 1, math.prod(shape[1:])


def _column(layer: nn.Module | None, shape: tuple[int, ...]) -> tuple[int, int]:
    # The rows of a group of a convolution have inputs, or outputs, of their own.
    groups = layer.groups if isinstance(layer, nn.modules.conv._ConvNd) else 1
    return shape[0] // groups, math.prod(shape[2:])


def _tied(prior: Support, unit: tuple[int, int], shape: tuple[int, ...]) -> Clusters:
    matrix = shape[0], math.prod(shape[1:])
    model = prior.lower((1, math.prod(matrix) // math.prod(unit)))
    if isinstance(model, Clusters):
        expected = "a prior of inputs or outputs one by one"
        raise ArgumentError("Inputs or Outputs, prior", expected, prior, "Independent(0.5)")
    return Clusters(model, unit, matrix)

"""What rows add to the GGN, in three forms. All are means over rows, so that those of all clients
are the weighted mean of theirs, exactly.

======================  ============================================================================
form                    sums
======================  ============================================================================
`Kronecker`             by layer, ``A = mean a a'`` and ``G = mean g g'``; ``H = N A (x) G`` (KFAC,
                        expand, exact Fisher)
`Diagonal`              the diagonal of the GGN
`Full`                  the GGN, its upper triangle
======================  ============================================================================

With ``S S' = - d^2 log p(y | f) / df^2`` the columns of S are the combinations of outputs whose
gradients g are taken: for classes ``S = diag(sqrt p) - p sqrt(p)'``. The targets are not needed.
The empirical Fisher is not used: it vanishes on rows that are fitted.

References
----------
Daxberger et al., "Laplace redux" (2021), section 2; Eschenhagen et al., "Kronecker-factored
approximate curvature for modern neural network architectures" (2023), (14).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from bayesfed.inference.laplace.blocks import Block, eigen, symmetric, triangle
from bayesfed.inference.laplace.layers import Layer, Seen, jacobian, seen
from bayesfed.inference.laplace.roots import Roots, unit
from bayesfed.trees import Tree, flat, leaf_of, unflat

# Name of the only block of a GGN that is not made of layers.
FLAT = "flat"


@dataclass(frozen=True)
class Layered(ABC):
    """A GGN of one block for each layer."""

    layers: tuple[Layer, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the layers' parameters."""
        return tuple(name for layer in self.layers for name in layer.parameters)

    @abstractmethod
    def of_layer(self, name: str, one: Seen) -> Tree:
        """Return what some rows add to the sums, of what a layer contributes."""

    @abstractmethod
    def of_last(self, name: str, rows: Tensor, gram: Tensor, diagonal: Tensor) -> Tree:
        """Return the same in closed form for a last layer, of its inputs ``(B, I)`` and
        `Roots.squares`.
        """

    def sums(
        self, net: nn.Module, parameters: Tree, inputs: Tensor, columns: Roots
    ) -> tuple[Tensor, Tree]:
        """Return outputs and sums of some rows."""
        outputs, by_layer = seen(net, parameters, self.layers, inputs, columns)
        parts = [
            self.of_last(name, one.inputs[:, 0], *columns.squares(outputs))
            if one.last
            else self.of_layer(name, one)
            for name, one in by_layer.items()
        ]
        return outputs, {name: leaf for part in parts for name, leaf in part.items()}

    def jacobian(
        self, net: nn.Module, parameters: Tree, inputs: Tensor
    ) -> tuple[Tensor, dict[str, Seen]]:
        """Return the outputs, and what each layer contributes to their Jacobian."""
        return seen(net, parameters, self.layers, inputs, unit)

    def split(self, matrices: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> Tree:
        """Return the layers' matrices as parameters."""
        return {
            name: leaf
            for layer in self.layers
            for name, leaf in layer.split(matrices[layer.name], like).items()
        }

    def matrices(self, tree: Mapping[str, Tensor]) -> Tree:
        """Return the layers' parameters as matrices."""
        return {
            layer.name: torch.cat(
                [tree[name].reshape(layer.outputs, -1) for name in layer.parameters], 1
            )
            for layer in self.layers
        }


@dataclass(frozen=True)
class Kronecker(Layered):
    """Two factors for each layer.

    Parameters
    ----------
    layers
        The layers.
    joint
        Whether a layer's bias is a column of its matrix. If not, it is a block of its own, as in
        laplace-torch.
    """

    joint: bool = True
    diagonal: ClassVar[bool] = False

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Triangles of both factors of every layer."""
        sizes = {
            leaf_of(layer.name, part): size
            for layer in self.layers
            for part, size in (("input", layer.inputs), ("output", layer.outputs))
        }
        return {name: (size * (size + 1) // 2,) for name, size in sizes.items()}

    def of_layer(self, name: str, one: Seen) -> Tree:
        """Return the sums of a layer."""
        rows, gradients = one.inputs.flatten(0, 1), one.gradients.flatten(0, 2)
        return {
            leaf_of(name, "input"): triangle(rows.mT @ rows) / one.inputs.shape[1],
            leaf_of(name, "output"): triangle(gradients.mT @ gradients),
        }

    def of_last(self, name: str, rows: Tensor, gram: Tensor, diagonal: Tensor) -> Tree:
        """Return the sums of a last layer."""
        factors = {"input": triangle(rows.mT @ rows), "output": triangle(gram)}
        return {leaf_of(name, part): factor for part, factor in factors.items()}

    def blocks(self, means: Mapping[str, Tensor], rows: float) -> dict[str, Block]:
        """Return the eigen-decomposed factors."""
        blocks = {}
        for layer in self.layers:
            inputs, outputs = (
                symmetric(means[leaf_of(layer.name, part)]) for part in ("input", "output")
            )
            if layer.bias and not self.joint:
                inputs[-1, :-1] = inputs[:-1, -1] = 0
            (a, right), (g, left) = eigen(inputs), eigen(outputs)
            blocks[layer.name] = Block(rows * torch.outer(g, a), left, right)
        return blocks


@dataclass(frozen=True)
class DiagonalLayers(Layered):
    """The diagonal of the GGN of a network of layers."""

    diagonal: ClassVar[bool] = True

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """A matrix for every layer."""
        return {
            leaf_of(layer.name, "diagonal"): (layer.outputs, layer.inputs) for layer in self.layers
        }

    def of_layer(self, name: str, one: Seen) -> Tree:
        """Return the sums of a layer."""
        if one.inputs.shape[1] == 1:
            squares = one.gradients[:, :, 0].square().sum(0).mT @ one.inputs[:, 0].square()
        else:
            # One column at a time: all together may not fit into memory.
            columns = (Seen(one.inputs, column[None]).products() for column in one.gradients)
            squares = torch.stack([column.square().sum((0, 1)) for column in columns]).sum(0)
        return {leaf_of(name, "diagonal"): squares}

    def of_last(self, name: str, rows: Tensor, gram: Tensor, diagonal: Tensor) -> Tree:
        """Return the sums of a last layer."""
        return {leaf_of(name, "diagonal"): diagonal.mT @ rows.square()}

    def blocks(self, means: Mapping[str, Tensor], rows: float) -> dict[str, Block]:
        """Return the diagonal of each layer."""
        return {
            layer.name: Block(rows * means[leaf_of(layer.name, "diagonal")].double())
            for layer in self.layers
        }


@dataclass(frozen=True)
class Flat:
    """The GGN of any parameters as one block: all of it, or its diagonal.

    Parameters
    ----------
    names
        Names of the parameters.
    size
        P, the number of their entries.
    diagonal
        Whether only the diagonal is summed.
    """

    names: tuple[str, ...]
    size: int
    diagonal: bool = False

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The triangle or the diagonal."""
        return {FLAT: (self.size if self.diagonal else self.size * (self.size + 1) // 2,)}

    def sums(
        self, net: nn.Module, parameters: Tree, inputs: Tensor, columns: Roots
    ) -> tuple[Tensor, Tree]:
        """Return outputs and sums of some rows."""
        outputs, gradients = jacobian(net, parameters, self.names, inputs, columns)
        rows = gradients.flatten(0, 1)
        return outputs, {FLAT: rows.square().sum(0) if self.diagonal else triangle(rows.mT @ rows)}

    def blocks(self, means: Mapping[str, Tensor], rows: float) -> dict[str, Block]:
        """Return the one block, with a single row."""
        if self.diagonal:
            return {FLAT: Block(rows * means[FLAT].double()[None])}
        values, vectors = eigen(symmetric(means[FLAT]))
        return {FLAT: Block(rows * values[None], None, vectors)}

    def jacobian(
        self, net: nn.Module, parameters: Tree, inputs: Tensor
    ) -> tuple[Tensor, dict[str, Seen]]:
        """Return outputs and Jacobian, as if every column were a position of a layer with one
        output.
        """
        outputs, gradients = jacobian(net, parameters, self.names, inputs, unit)
        columns = gradients.shape[0]
        ones = torch.eye(columns, dtype=gradients.dtype, device=gradients.device)[
            :, None, :, None
        ].expand(-1, len(inputs), -1, -1)
        return outputs, {FLAT: Seen(gradients.transpose(0, 1), ones)}

    def split(self, matrices: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> Tree:
        """Return the entries of the block as parameters."""
        return unflat(matrices[FLAT][0], {name: like[name] for name in self.names})

    def matrices(self, tree: Mapping[str, Tensor]) -> Tree:
        """Return the parameters as one row."""
        return {FLAT: flat({name: tree[name] for name in self.names})[None]}


# A form of the GGN: `names` of its parameters, in the order of the network; `shapes` of its sums;
# `sums` over rows; `blocks` of their means; `jacobian` by block; `split` and `matrices`, from a
# matrix for every block to parameters by their names and back.
Structure = Kronecker | DiagonalLayers | Flat

"""Symmetric positive matrices as blocks with known eigenvectors,
``H_block = (V (x) U) diag(h) (V (x) U)'``, and Gaussians of precision H + delta.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from bayesfed.inference.laplace.layers import Seen


@dataclass(frozen=True, eq=False)
class Block:
    """One block of a GGN, that of a matrix of parameters ``(O, I)``.

    Parameters
    ----------
    values
        ``(O, I)``: eigenvalues, not negative.
    left, right
        Eigenvectors V ``(O, O)`` and U ``(I, I)`` in columns; None for unit vectors.
    """

    values: Tensor
    left: Tensor | None = None
    right: Tensor | None = None

    def deviation(self, precision: float, noise: Generator) -> Tensor:
        """Return a draw of N(0, (H + delta)^-1) as a matrix ``(O, I)``."""
        eps = torch.randn(self.values.shape, generator=noise, dtype=self.values.dtype).to(
            self.values.device
        )
        return self._rotated(eps / (self.values + precision).sqrt())

    def sd(self, precision: float) -> Tensor:
        """Return the standard deviation of every entry, ``(O, I)``."""
        variance = 1 / (self.values + precision)
        if self.left is not None:
            variance = self.left.square() @ variance
        if self.right is not None:
            variance = variance @ self.right.square().mT
        return variance.sqrt()

    def covariance(self, given: Seen, precision: float) -> Tensor:
        """Return what the block adds to the covariance of a network's outputs, ``(B, K, K)``, from
        its Jacobian.
        """
        variance, inputs, gradients = 1 / (self.values + precision), given.inputs, given.gradients
        inputs = inputs if self.right is None else inputs @ self.right
        if given.last:
            weights = inputs[:, 0].square() @ variance.mT
            if self.left is None:
                return torch.diag_embed(weights)
            return (self.left * weights[:, None]) @ self.left.mT
        gradients = gradients if self.left is None else gradients @ self.left
        if inputs.shape[1] == 1:
            # One position: the Jacobian is an outer product, which need not be made.
            weights = inputs[:, 0].square() @ variance.mT
            return torch.einsum("kbo,lbo,bo->bkl", gradients[:, :, 0], gradients[:, :, 0], weights)
        products = Seen(inputs, gradients).products()
        return torch.einsum("kboi,lboi,oi->bkl", products, products, variance)

    def _rotated(self, matrix: Tensor) -> Tensor:
        matrix = matrix if self.left is None else self.left @ matrix
        return matrix if self.right is None else matrix @ self.right.mT


def eigen(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvalues, those below zero by rounding as zero, and eigenvectors."""
    values, vectors = torch.linalg.eigh(matrix.double())
    return values.clamp_min(0), vectors


def triangle(matrix: Tensor) -> Tensor:
    """Return the upper triangle of a symmetric matrix, ``(n (n + 1) / 2,)``."""
    rows, columns = torch.triu_indices(*matrix.shape)
    return matrix[rows, columns]


def symmetric(entries: Tensor) -> Tensor:
    """Return the symmetric matrix with this upper triangle."""
    size = int((8 * len(entries) + 1) ** 0.5 - 1) // 2
    rows, columns = torch.triu_indices(size, size)
    matrix = entries.new_zeros(size, size)
    matrix[rows, columns] = entries
    matrix[columns, rows] = entries
    return matrix

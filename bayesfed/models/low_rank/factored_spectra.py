"""Singular triplets of layers that are factored: one SVD per layer, cut to every rank, or subspace
iteration whose error is measured.

A server whose clients have models of several sizes needs, for each layer, as many triplets as the
largest rank. The best approximations of smaller ranks use the first of them. The matrices change
little from round to round, so with a key `spectra` replaces the SVD by subspace iteration that
starts from last round's right vectors, and reports the part that it missed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesfed.errors import ArgumentError, UpdateError
from bayesfed.errors.checks import checked
from bayesfed.geometry.thin import (
    check_finite,
    check_matrices,
    check_rank,
    check_shape,
    gaussian,
    signed_qr,
    signed_svd,
)
from bayesfed.keys import Key
from bayesfed.models.low_rank.unrolling import Unrolling
from bayesfed.trees import leaf_of

# Columns of the searched subspace beyond the rank, and power iterations, of two products with the
# matrix each.
OVERSAMPLE, PASSES = 8, 1


@dataclass(frozen=True)
class Spectrum:
    """The leading singular triplets of one layer's matrix W, and how much they leave out.

    Parameters
    ----------
    u, values, v
        ``(M, k)``, ``(k,)`` descending, and ``(N, k)``.
    rest
        Frobenius norm of ``W - u values v^T``.
    residual
        Frobenius norm of the part of W outside the subspace that was searched; 0 for an exact SVD.
    """

    u: Tensor
    values: Tensor
    v: Tensor
    rest: float
    residual: float = 0.0

    def factors(self, rank: int) -> tuple[Tensor, Tensor]:
        """Return U ``(M, R)`` and V ``(N, R)``, each multiplied by the square roots of the singular
        values.

        Raises
        ------
        ArgumentError
            If the rank is not from 1 to k.
        """
        check_rank("Spectrum.factors", rank, len(self.values))
        roots = self.values[:rank].sqrt()
        return self.u[:, :rank] * roots, self.v[:, :rank] * roots


@checked()
def spectrum(
    matrix: Tensor, rank: int, *, key: Key | None = None, warm: Spectrum | None = None
) -> Spectrum:
    """Find the leading singular triplets of a matrix, by an SVD or, with a key, by subspace
    iteration whose error is measured.

    Parameters
    ----------
    matrix
        ``(M, N)`` of float32 or float64.
    rank
        Number of triplets.
    key
        Random key of the columns from which the iteration starts. None: the exact SVD.
    warm
        An earlier spectrum of a similar matrix, used with a key: its right vectors replace the
        first random columns.

    Raises
    ------
    ArgumentError
        If the rank is not from 1 to min(M, N), `warm` belongs to another shape, or the matrix is of
        half precision or not finite.

    Notes
    -----
    With the orthonormal basis Q that was found, W is the sum of ``Q Q^T W`` and a rest E orthogonal
    to it. The sum ``sigma_1^2 + ... + sigma_R^2`` of W is therefore at most that of ``Q Q^T W``
    plus ``||E||_F^2``: no matrix of rank R has an error below ``sqrt(rest^2 - residual^2)``.

    References
    ----------
    Halko, Martinsson and Tropp (2011), algorithms 4.4 and 5.1.
    """
    check_matrices("spectrum", matrix=matrix)
    check_finite("spectrum", matrix=matrix)
    check_rank("spectrum", rank, min(matrix.shape))
    if key is None:
        u, values, v = signed_svd(matrix)
        # Copies: a view would keep all of the SVD in memory.
        return Spectrum(
            u[:, :rank].clone(),
            values[:rank].clone(),
            v[:, :rank].clone(),
            float(values[rank:].double().square().sum().sqrt()),
        )
    start = gaussian((matrix.shape[1], min(rank + OVERSAMPLE, *matrix.shape)), key, matrix)
    if warm is not None:
        check_shape("spectrum, v of warm", warm.v, (matrix.shape[1], len(warm.values)))
        start = torch.cat([warm.v.to(start), start], 1)[:, : start.shape[1]]
    q, _ = signed_qr(matrix @ start)
    for _ in range(PASSES):
        q, _ = signed_qr(matrix.mT @ q)
        q, _ = signed_qr(matrix @ q)
    across = matrix.mT @ q
    v, values, u = signed_svd(across)
    residual = float(torch.linalg.matrix_norm(matrix - q @ across.mT))
    rest = float((values[rank:].double().square().sum() + residual**2).sqrt())
    return Spectrum(q @ u[:, :rank], values[:rank].clone(), v[:, :rank].clone(), rest, residual)


@checked()
def spectra(
    tree: Mapping[str, Tensor],
    layers: Mapping[str, Unrolling],
    *ranks: Mapping[str, int],
    key: Key | None = None,
    warm: Mapping[str, Spectrum] | None = None,
) -> dict[str, Spectrum]:
    """Find for each layer as many singular triplets as its largest rank needs; smaller ranks use
    the first of them.

    Parameters
    ----------
    tree
        Parameters of the whole network by name.
    layers
        Layout of each layer's weight, by the layer's name.
    ranks
        For each size of network, a mapping from layers to ranks, of some or all of `layers`.
    key
        Each layer draws from the child of this key with the layer's name (`spectrum`). None: exact
        SVDs.
    warm
        Spectra of the round before, of some or all layers.

    Raises
    ------
    UpdateError
        If the tree lacks a layer's weight, or has one of another shape.
    ArgumentError
        If a rank is given for an unknown layer, or as `spectrum`.
    """
    largest: dict[str, int] = {}
    for size in ranks:
        for name, rank in size.items():
            if name not in layers:
                raise ArgumentError(
                    "spectra", f"ranks of layers among {sorted(layers)}", name, "hybrid_ranks"
                )
            largest[name] = max(rank, largest.get(name, rank))
    spectrum_of = {}
    for name, rank in largest.items():
        matrix = layers[name].matrix(whole_weight(tree, name, layers[name], "spectra").detach())
        own = None if key is None else key.child(name)
        try:
            spectrum_of[name] = spectrum(matrix, rank, key=own, warm=(warm or {}).get(name))
        except ArgumentError as error:
            raise ArgumentError(f"spectra, layer {name!r}: {error}") from None
    return spectrum_of


def whole_weight(tree: Mapping[str, Tensor], name: str, layout: Unrolling, where: str) -> Tensor:
    """Return a layer's weight from the tree of the whole network; raise `UpdateError` unless it has
    the layout's shape.
    """
    leaf = leaf_of(name, "weight")
    actual = tuple(tree[leaf].shape) if leaf in tree else "no such leaf"
    if actual != layout.shape:
        raise UpdateError(
            f"{where}, leaf {leaf!r}",
            f"shape {tuple(layout.shape)}",
            actual,
            "the whole network's tree",
        )
    return tree[leaf]

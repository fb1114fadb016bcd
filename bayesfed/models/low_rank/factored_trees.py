"""Conversion between the tree of a whole network and those of its factored networks, and the
Frobenius decay.

A network made by `hybrid` has leaves ``NAME.u`` and ``NAME.v`` for each factored layer NAME, where
the whole network has ``NAME.weight``; all other leaves are the same. A server whose clients have
models of several sizes::

    layers = unrollings(hybrid(net, 1 / 8))  # the smallest size has all that any has
    sizes = [hybrid_ranks(net, ratio) for ratio in (1 / 2, 1 / 4, 1 / 8)]
    found = spectra(tree, layers, *sizes)  # one SVD per layer, for any number of sizes
    broadcast = [factorise(tree, layers, ranks, found) for ranks in sizes]
    received = [align(update, layers) for update in updates]  # all of the same shape, for any ranks

Truncated SVDs with the square roots of the singular values in both factors are spectral
initialisation (Khodak et al., 2021) and step 4 of FedHM's algorithm 1; the products are FedHM's
shape alignment (1).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from bayesfed.errors import ArgumentError, UpdateError
from bayesfed.errors.checks import NOT_NEGATIVE, check, checked
from bayesfed.geometry.thin import squared_norm
from bayesfed.models.low_rank.factored_spectra import Spectrum, spectra, whole_weight
from bayesfed.models.low_rank.thin_layers import FactoredLayer
from bayesfed.models.low_rank.unrolling import Unrolling
from bayesfed.trees import Tree, leaf_of


@checked()
def unrollings(net: nn.Module) -> dict[str, Unrolling]:
    """Return the layout of the weight of each factored layer of a network, by the layer's name."""
    return {
        name: layer.unrolling
        for name, layer in net.named_modules()
        if isinstance(layer, FactoredLayer)
    }


@checked()
def factorise(
    tree: Mapping[str, Tensor],
    layers: Mapping[str, Unrolling],
    ranks: Mapping[str, int],
    found: Mapping[str, Spectrum] | None = None,
) -> Tree:
    """Return the tree of a factored network: each weight that has a rank is replaced by the factors
    of its best approximation.

    Parameters
    ----------
    tree
        Parameters of the whole network by name.
    layers
        Layout of each layer's weight.
    ranks
        Ranks by layer. Layers without a rank stay whole; an empty mapping returns the tree.
    found
        `spectra` of this same tree, at these ranks or larger ones. None: exact SVDs are computed.

    Raises
    ------
    UpdateError
        If the tree lacks a layer's weight, or has one of another shape.
    ArgumentError
        If `found` lacks a layer or a rank, or as `spectra`.
    """
    found = spectra(tree, layers, ranks) if found is None else found
    if lacking := sorted(ranks.keys() - found.keys()):
        raise ArgumentError(
            "factorise",
            f"spectra of {sorted(ranks)}",
            f"none of {lacking}",
            "spectra(tree, layers, ranks)",
        )
    changed: Tree = {}
    for leaf, value in tree.items():
        name, _, last = leaf.rpartition(".")
        if last == "weight" and name in ranks:
            u, v = found[name].factors(ranks[name])
            changed |= {leaf_of(name, "u"): u, leaf_of(name, "v"): v}
        else:
            changed[leaf] = value
    return changed


def align(tree: Mapping[str, Tensor], layers: Mapping[str, Unrolling]) -> Tree:
    """Return the tree of the whole network: factors of any rank are replaced by their product. This
    is FedHM's shape alignment (1).

    Parameters
    ----------
    tree
        Parameters of a network in which some of the layers are factored and the others whole.
    layers
        Layout of each layer's weight.

    Raises
    ------
    UpdateError
        If the tree has neither the weight nor both factors of a layer, or factors of another shape.
    """
    for name, layout in layers.items():
        u, v = tree.get(leaf_of(name, "u")), tree.get(leaf_of(name, "v"))
        if u is None and v is None:
            whole_weight(tree, name, layout, "align")
            continue
        shapes = [None if factor is None else tuple(factor.shape) for factor in (u, v)]
        rank = shapes[0][-1] if shapes[0] else 1
        if shapes != [(side, rank) for side in layout.size]:
            rows, columns = layout.size
            raise UpdateError(
                f"align, layer {name!r}",
                f"u and v of shapes ({rows}, R) and ({columns}, R)",
                shapes,
                "the shapes published, any rank",
            )
    changed: Tree = {}
    for leaf, value in tree.items():
        name, _, last = leaf.rpartition(".")
        if name in layers and last == "u":
            changed[leaf_of(name, "weight")] = layers[name].weight(
                value @ tree[leaf_of(name, "v")].mT
            )
        elif name not in layers or last != "v":
            changed[leaf] = value
    return changed


@checked()
def frobenius_decay(tree: Mapping[str, Tensor], coefficient: float) -> Tensor:
    """Return ``coefficient / 2`` times the sum over factored layers of ``||U V^T||_F^2``, a scalar,
    without forming a product.

    This is the negative log density, up to a constant, of a Gaussian of this precision on the
    product: the decay of `ProductGaussian`. Factored layers are the NAMEs with leaves ``NAME.u``
    and ``NAME.v`` and without ``NAME.s``; if there are none the result is 0.

    Parameters
    ----------
    tree
        Parameters of a network by name.
    coefficient
        Precision, 0 or more.

    Raises
    ------
    ArgumentError
        If the coefficient is negative.
    """
    check("frobenius_decay, coefficient", coefficient, NOT_NEGATIVE)
    norms = []
    for leaf, u in tree.items():
        name, _, last = leaf.rpartition(".")
        if last == "u" and leaf_of(name, "v") in tree and leaf_of(name, "s") not in tree:
            norms.append(squared_norm(u, tree[leaf_of(name, "v")]))
    return coefficient / 2 * torch.stack(norms).sum() if norms else torch.zeros(())

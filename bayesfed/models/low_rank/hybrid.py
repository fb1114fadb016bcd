"""Hybrid networks: some layers whole, the others factored at a fraction of their rank; FedHM's
``[rho, L, gamma]``.

    net = resnet18((3, 32, 32), 10, key)
    whole = whole_first(net, 3)  # conv1 and the first block; also the shortcuts and the classifier
    # 11.17 M parameters become 4.158 M; at 1/4 2.210 M, at 1/8 1.236 M
    hybrid(net, 1 / 2, whole=whole)
    dense_or_thin(hybrid(net, 1 / 2, whole=whole))  # the same function in torch's own layers

The layers are those of `bayesfed.models.low_rank.thin_layers`. Their parameters are converted
to those of the whole network and back by `bayesfed.models.low_rank.factored_trees`.

References
----------
FedHM (Yao et al.), section 2.2, Tables 2, 3, 5 and 6. Its text defines the ratio by ranks of
matrices; in its tables the rank is the ratio times the number of output channels. Both conventions
are available. Its parameter counts are at 1/2, 1/4 and 1/8 (C.2), with the first 3 layers whole in
ResNet-18 and the first 15 in ResNet-34: conv1 and the first block, or conv1 and the first two
groups.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import prod
from typing import Any, Literal

from torch import Tensor, nn

from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import ITSELF, check, checked, number
from bayesfed.errors.checks import whole as integer
from bayesfed.geometry.thin import gaussian
from bayesfed.keys import Key
from bayesfed.models.low_rank.factored_spectra import spectrum
from bayesfed.models.low_rank.replacing import Initial, chosen, thinned
from bayesfed.models.low_rank.thin_layers import FactoredLayer
from bayesfed.models.low_rank.unrolling import Split, Unrolling
from bayesfed.models.modules import DENSE, Dense, Predicate, layer_weights, weight_matrices
from bayesfed.trees import leaf_of

Convention = Literal["output", "matrix"]
Whole = Predicate | Collection[str]


@checked(rank_ratio=ITSELF)
def hybrid(
    net: nn.Module,
    rank_ratio: float | Mapping[str, int],
    *,
    whole: Whole | None = None,
    convention: Convention = "output",
    split: Split = "spatial",
    initial: Initial = "spectral",
    key: Key | None = None,
) -> nn.Module:
    """Return a copy of a network in which some layers are factored.

    Parameters
    ----------
    net
        Network, never changed. A module that reads the weight of a factored layer directly gets the
        product.
    rank_ratio
        Ratio as in `hybrid_ranks`, in (0, 1], where 1 factors nothing. Or ranks by the layer's
        name, up to the full one, where factors may be larger than the layer; layers that are not
        named stay whole.
    whole, convention, split
        As in `hybrid_ranks`.
    initial
        "spectral": the best approximation, with the square roots of its singular values in both
        factors; "random": normal factors, such that the entries of the product have the root mean
        square of the layer's own.
    key
        Random key for "random" only; each layer draws from the child with its name.

    Raises
    ------
    ArgumentError
        If a rank is not from 1 to min(M, N), a layer with a rank of its own cannot be factored,
        there is no key to draw from, a weight is not finite or of half precision, or as
        `hybrid_ranks`.
    """
    if isinstance(rank_ratio, Mapping):
        ranks, layers = dict(rank_ratio), _candidates(net, whole, rank_ratio)
    else:
        ranks = hybrid_ranks(net, rank_ratio, whole=whole, convention=convention, split=split)
        layers = _candidates(net, whole)

    def factored(layer: Dense, matrix: Tensor, rank: int, key: Key | None) -> FactoredLayer:
        if key is None:
            u, v = spectrum(matrix, rank).factors(rank)
        else:
            # Each entry of the product is a sum over the rank of products of two normals.
            deviation = (matrix.square().mean() / rank) ** 0.25
            u, v = (
                deviation * gaussian((side, rank), key.child(leaf), matrix)
                for leaf, side in zip("uv", matrix.shape, strict=True)
            )
        return FactoredLayer(layer, u, v, split)

    return thinned(
        net, layers, ranks, factored, split=split, initial=initial, key=key, caller="hybrid"
    )


@checked(rank_ratio=number("(0, 1]", "1 / 4"), min_rank=integer(1, "8"))
def hybrid_ranks(
    net: nn.Module,
    rank_ratio: float,
    *,
    whole: Whole | None = None,
    convention: Convention = "output",
    split: Split = "spatial",
    min_rank: int = 1,
) -> dict[str, int]:
    """Return the rank of each layer that is factored at a ratio; layers that are not in the result
    stay whole.

    A layer is factored if it computes a product with one matrix of its own and its factors are
    smaller: linear layers and ungrouped convolutions, of exactly torch's classes, without hooks,
    whose weight is no other layer's too and for which ``R (M + N) < M N``. Everything else stays
    whole: recurrent layers, attention's projections, embeddings, grouped and transposed
    convolutions.

    Parameters
    ----------
    net
        Network, never changed.
    rank_ratio
        In (0, 1]. Ranks are rounded to the nearest whole number. At 1 every layer is whole: FedHM's
        largest model is the whole network. A square linear layer is smaller below a half of its
        rank only.
    whole
        Layers not to factor besides these: a predicate ``(parameter name, owning module) -> bool``
        such as `whole_first`, or names of layers or of modules that contain them. Default: none.
    convention
        "output": the rank is the ratio times the number of output channels or features, as in
        FedHM's tables; "matrix": the ratio times the full rank, min(M, N), as in its text. For 3 x
        3 kernels with "spatial", the second rank is 3 times the first if there are at least as many
        input as output channels.
    split
        Layout of the kernels; see `bayesfed.models.low_rank.unrolling`.
    min_rank
        Smallest rank of a factored layer. A layer that is no smaller at this rank stays whole.

    Raises
    ------
    ArgumentError
        If the ratio is not in (0, 1], a setting is unknown, `min_rank` is below 1, or `whole`
        matches no layer or leaves none that could be factored.
    """
    ranks = {}
    for name, layer in _candidates(net, whole).items():
        layout = Unrolling(tuple(layer.weight.shape), split)
        full = layout.shape[0] if convention == "output" else layout.full
        rank = max(min_rank, round(rank_ratio * full))
        if rank_ratio < 1 and rank * sum(layout.size) < prod(layout.size):
            ranks[name] = rank
    return ranks


@checked()
def whole_first(net: nn.Module, count: int) -> Predicate:
    """Select the layers that FedHM keeps whole: the first `count` weight matrices in the network's
    order, every 1 x 1 convolution, the last matrix.

    Parameters
    ----------
    net
        Network whose order of layers counts. The predicate is for this network and for others with
        the same names.
    count
        FedHM's rho; 1 x 1 convolutions are not counted. 3 for `resnet18` (conv1 and the first
        block), 15 for `resnet34` (conv1 and the first two groups).

    Raises
    ------
    ArgumentError
        If the network has fewer than `count` weight matrices.
    """
    matrices = _matrices(net, weight_matrices)
    points = {
        name
        for name, layer in matrices.items()
        if layer.weight.ndim > 2 and layer.weight[0, 0].numel() == 1
    }
    counted = [name for name in matrices if name not in points]
    check("whole_first, count", count, integer(0, str(len(counted)), len(counted)))
    names = points | {*counted[:count], *list(matrices)[-1:]}
    return lambda name, module: name in names


def _matrices(net: nn.Module, where: Predicate) -> dict[str, Any]:
    """Return the layers with a matrix that a predicate selects, by the name of the matrix."""
    return {
        leaf_of(path, leaf): module
        for path, module in net.named_modules()
        for leaf, _ in module.named_parameters(recurse=False)
        if where(leaf_of(path, leaf), module)
    }


def _candidates(
    net: nn.Module, whole: Whole | None, named: Collection[str] | None = None
) -> dict[str, Dense]:
    """Return the layers that can be factored and are not kept whole, by name. A predicate must keep
    one; if names are given, each must. Layers that are `named` are refused if they cannot.
    """
    matrices = _matrices(net, layer_weights)
    if callable(whole):
        kept = {"the predicate": {name for name, module in matrices.items() if whole(name, module)}}
    else:
        kept = {
            one: {name for name in matrices if name.startswith(leaf_of(one, ""))}
            for one in ((whole,) if isinstance(whole, str) else whole or ())
        }
    if empty := [one for one, names in kept.items() if not names]:
        raise ArgumentError(
            "hybrid, whole",
            f"layers among {list(matrices)}",
            f"none for {empty}",
            "whole_first(net, 0)",
        )
    rest = matrices.keys() - set[str]().union(*kept.values())
    return chosen(
        net,
        lambda name, module: name in rest and weight_matrices(name, module),
        named,
        caller="hybrid",
        kinds=DENSE,
        strict=named is not None,
    )

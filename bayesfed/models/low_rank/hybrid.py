"""Hybrid networks: some layers whole, the others factored at a fraction of their rank; FedHM's
``[rho, L, gamma]``.

    net = resnet18((3, 32, 32), 10, key)
    whole = whole_first(net, 3)  # conv1 and the first block; also the shortcuts and the classifier
    # 11.17 M parameters become 4.158 M; at 1/4 2.210 M, at 1/8 1.236 M
    hybrid(net, 1 / 2, whole=whole)
    dense_or_thin(hybrid(net, 1 / 2, whole=whole))  # the same function in torch's own layers

The layers are those of `bayesfed.models.low_rank.factored_layers`. Their parameters are converted
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

import copy
from collections.abc import Collection, Mapping
from typing import Literal

from torch import Tensor, nn

from bayesfed.errors import ArgumentError
from bayesfed.geometry.thin import check_rank, gaussian
from bayesfed.keys import Key
from bayesfed.models.low_rank.factored_layers import (
    FactoredConv2d,
    FactoredLinear,
    Split,
    Unrolling,
)
from bayesfed.models.low_rank.factored_spectra import spectrum
from bayesfed.models.low_rank.fixed_rank import chosen
from bayesfed.models.modules import Dense, Predicate, as_before, swapped, weight_matrices

Convention = Literal["output", "matrix"]
Whole = Predicate | Collection[str]


def hybrid(
    net: nn.Module,
    rank_ratio: float | Mapping[str, int],
    *,
    whole: Whole | None = None,
    convention: Convention = "output",
    split: Split = "spatial",
    initial: Literal["spectral", "random"] = "spectral",
    key: Key | None = None,
) -> nn.Module:
    """Return a copy of a network in which some layers are factored.

    Parameters
    ----------
    net
        Network, never changed. A module that reads the weight of a factored layer directly fails
        when called, since there is no ``weight``.
    rank_ratio
        Ratio as in `hybrid_ranks`, in (0, 1], where 1 factors nothing. Or ranks by the layer's
        name, up to the full one; layers that are not named stay whole.
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
        If a rank is not from 1 to min(M, N), there is no key to draw from, a weight is not finite
        or of half precision, or as `hybrid_ranks`.
    """
    if initial not in ("spectral", "random"):
        raise ArgumentError(
            "hybrid, initial", "'spectral' or 'random'", repr(initial), "'spectral'"
        )
    if initial == "random" and key is None:
        raise ArgumentError("hybrid, key", "a Key to draw from", None, "Key(0, 'hybrid')")
    if isinstance(rank_ratio, Mapping):
        ranks = dict(rank_ratio)
        layers = _candidates(net, whole, ranks)
    else:
        ranks = hybrid_ranks(net, rank_ratio, whole=whole, convention=convention, split=split)
        layers = _candidates(net, whole)
    layouts = {name: Unrolling(tuple(layers[name].weight.shape), split) for name in ranks}
    # Check every rank first: the SVD of a layer may take minutes.
    for name, layout in layouts.items():
        check_rank(f"hybrid, layer {name!r}", ranks[name], layout.full)
    swaps: dict[nn.Module, nn.Module] = {}
    for name, layout in layouts.items():
        matrix = layout.matrix(layers[name].weight.detach())
        try:
            if key is None or initial == "spectral":
                u, v = spectrum(matrix, ranks[name]).factors(ranks[name])
            else:
                # Each entry of the product is a sum over the rank of products of two normals.
                deviation = (matrix.square().mean() / ranks[name]) ** 0.25
                u, v = (
                    deviation * gaussian((side, ranks[name]), key.child(name, leaf), matrix)
                    for leaf, side in zip("uv", layout.size, strict=True)
                )
        except ArgumentError as error:
            raise ArgumentError(f"hybrid, layer {name!r}: {error}") from None
        swaps[layers[name]] = _factored(layers[name], u, v, split)
    return swapped(net, swaps) if swaps else copy.deepcopy(net)


def hybrid_ranks(
    net: nn.Module,
    rank_ratio: float,
    *,
    whole: Whole | None = None,
    convention: Convention = "output",
    split: Split = "spatial",
) -> dict[str, int]:
    """Return the rank of each layer that is factored at a ratio; layers that are not in the result
    stay whole.

    Parameters
    ----------
    net
        Network, never changed. Its weight matrices are those of linear layers and convolutions.
    rank_ratio
        In (0, 1]. Ranks are rounded to the nearest whole number, at least 1. At 1, and wherever a
        rank would not be below the full one, a layer stays whole: factors would be larger and gain
        nothing. FedHM's largest model is the whole network.
    whole
        Layers not to factor: a predicate ``(parameter name, owning module) -> bool`` such as
        `whole_first`, or names of layers or of modules that contain them. Default: none.
    convention
        "output": the rank is the ratio times the number of output channels or features, as in
        FedHM's tables; "matrix": the ratio times the full rank, min(M, N), as in its text. For 3 x
        3 kernels with "spatial", the second rank is 3 times the first if there are at least as many
        input as output channels.
    split
        Layout of the kernels; see `bayesfed.models.low_rank.factored_layers`.

    Raises
    ------
    ArgumentError
        If the ratio is not in (0, 1], a setting is unknown, `whole` matches no layer or leaves none
        to factor, or a layer to factor is not exactly an `nn.Linear` or an ungrouped `nn.Conv2d`,
        without hooks and with a weight of its own.
    """
    if isinstance(rank_ratio, bool) or not 0 < rank_ratio <= 1:
        raise ArgumentError("hybrid, rank_ratio", "a ratio in (0, 1]", rank_ratio, "1 / 4")
    if convention not in ("output", "matrix"):
        raise ArgumentError(
            "hybrid, convention", "'output' or 'matrix'", repr(convention), "'output'"
        )
    ranks = {}
    for name, layer in _candidates(net, whole).items():
        layout = Unrolling(tuple(layer.weight.shape), split)
        rank = max(
            1, round(rank_ratio * (layout.shape[0] if convention == "output" else layout.full))
        )
        if rank_ratio < 1 and rank < layout.full:
            ranks[name] = rank
    return ranks


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
    matrices = [
        (name, value)
        for path, module in net.named_modules()
        for leaf, value in module.named_parameters(recurse=False)
        if weight_matrices(name := f"{path}.{leaf}" if path else leaf, module)
    ]
    points = {name for name, value in matrices if value.ndim > 2 and value[0, 0].numel() == 1}
    counted = [name for name, _ in matrices if name not in points]
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= len(counted):
        raise ArgumentError("whole_first, count", f"0 to {len(counted)} layers", count, "3")
    names = points | {*counted[:count], *(name for name, _ in matrices[-1:])}
    return lambda name, module: name in names


def _candidates(
    net: nn.Module, whole: Whole | None, named: Collection[str] | None = None
) -> dict[str, Dense]:
    """Return the layers that are not kept whole, by name, checked."""
    kept = _predicate(net, whole)
    where = (
        weight_matrices
        if kept is None
        else lambda name, module: weight_matrices(name, module) and not kept(name, module)
    )
    return chosen(net, where, named, caller="hybrid", kinds=(nn.Linear, nn.Conv2d))


def _predicate(net: nn.Module, whole: Whole | None) -> Predicate | None:
    """Return the predicate of the layers that stay whole. It must match a weight matrix; if names
    are given, each must.
    """
    if whole is None or (not callable(whole) and not whole):
        return None
    matrices = [
        (f"{path}.{leaf}" if path else leaf, module)
        for path, module in net.named_modules()
        for leaf, _ in module.named_parameters(recurse=False)
    ]
    matrices = [(name, module) for name, module in matrices if weight_matrices(name, module)]
    names = [name for name, _ in matrices]
    if callable(whole):
        if not any(whole(name, module) for name, module in matrices):
            raise ArgumentError(
                "hybrid, whole", "a predicate that keeps a layer", f"none of {names}", "None"
            )
        return whole
    wanted = (whole,) if isinstance(whole, str) else tuple(whole)
    for one in wanted:
        if not any(name.startswith(f"{one}.") for name in names):
            raise ArgumentError("hybrid, whole", f"layers among {names}", repr(one), "whole_first")
    return lambda name, module: name.startswith(tuple(f"{one}." for one in wanted))


def _factored(layer: Dense, u: Tensor, v: Tensor, split: Split) -> nn.Module:
    """Return the factored layer that replaces a whole one."""
    made: FactoredLinear | FactoredConv2d
    if isinstance(layer, nn.Linear):
        made = FactoredLinear(u, v, layer.bias)
    else:
        settings = {
            name: getattr(layer, name) for name in ("stride", "padding", "dilation", "padding_mode")
        }
        made = FactoredConv2d(u, v, layer.kernel_size, layer.bias, **settings, split=split)
    for factor in (made.u, made.v):
        factor.requires_grad_(layer.weight.requires_grad)
    as_before(made, layer)
    return made

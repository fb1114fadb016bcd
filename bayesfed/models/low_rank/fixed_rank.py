"""Replacing the dense layers of a network by layers of fixed rank, and back.

    net = mlp([784, 256, 256, 10], key)
    fixed_rank(net, 4)  # the best approximation of rank 4 in every layer
    fixed_rank(net, 1 / 16)  # in each layer, the largest rank with 1/16 of its numbers
    weights = layer_matrices(net)  # one budget for all layers, spent where it keeps most energy
    sizes = {name: tuple(w.shape) for name, w in weights.items()}
    spectra = {name: svdvals(w) for name, w in weights.items()}
    fixed_rank(net, greedy_ranks(sizes, spectra, 1 / 16))

The layers are those of `bayesfed.models.low_rank.fixed_rank_layers`;
`bayesfed.models.low_rank.fixed_rank_trees` trains them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from bayesfed.errors import ArgumentError
from bayesfed.geometry import FixedRank, from_dense, random_point, to_dense, uniform_ranks
from bayesfed.geometry.thin import check_rank
from bayesfed.keys import Key
from bayesfed.models.low_rank.fixed_rank_layers import (
    FixedRankConv,
    FixedRankConv1d,
    FixedRankConv2d,
    FixedRankConv3d,
    FixedRankLayer,
    FixedRankLinear,
    fixed_rank_layers,
)
from bayesfed.models.low_rank.fixed_rank_trees import points
from bayesfed.models.modules import Dense, Predicate, as_before, is_plain, swapped, weight_matrices
from bayesfed.trees import Tree, check_shapes, parameters, shapes

_CONVOLUTIONS: dict[type[nn.Module], type[FixedRankConv]] = {
    nn.Conv1d: FixedRankConv1d,
    nn.Conv2d: FixedRankConv2d,
    nn.Conv3d: FixedRankConv3d,
}
_KINDS: tuple[type[nn.Module], ...] = (nn.Linear, *_CONVOLUTIONS)


def fixed_rank(
    net: nn.Module,
    rank: int | float | Mapping[str, int],
    *,
    initial: Literal["spectral", "random"] = "spectral",
    key: Key | None = None,
    where: Predicate = weight_matrices,
) -> nn.Module:
    """Return a copy of a network in which the weights of some layers have fixed rank.

    Parameters
    ----------
    net
        Network, never changed. A module that reads the weight of a replaced layer directly fails
        when called, since there is no ``weight``.
    rank
        One rank for all layers. Or a float in (0, 1]: the largest share of a layer's numbers that
        ``R (M + N)`` may take (`uniform_ranks`), not counting cores and biases. Or ranks by the
        layer's name; layers that are not named stay dense.
    initial
        "spectral": the matrix of this rank that is nearest to the layer's own, by an SVD; "random":
        a `random_point` whose entries have the root mean square of the layer's own.
    key
        Random key for "random" only; each layer draws from the child with its name.
    where
        ``(parameter name, owning module) -> bool``; may select weights of `nn.Linear`, `nn.Conv1d`,
        `nn.Conv2d` and `nn.Conv3d`.

    Raises
    ------
    ArgumentError
        If a rank is not from 1 to min(M, N) or the ratio not in (0, 1], a named layer is not among
        the selected ones, there is no key to draw from, a weight is not finite or of half
        precision, or as `layer_matrices`.
    """
    if initial not in ("spectral", "random"):
        raise ArgumentError(
            "fixed_rank, initial", "'spectral' or 'random'", repr(initial), "'spectral'"
        )
    if initial == "random" and key is None:
        raise ArgumentError("fixed_rank, key", "a Key to draw from", None, "Key(0, 'fixed rank')")
    layers = chosen(net, where, rank if isinstance(rank, Mapping) else None)
    sizes = {
        name: (layer.weight.shape[0], layer.weight[0].numel()) for name, layer in layers.items()
    }
    ranks = (
        rank
        if isinstance(rank, Mapping)
        else uniform_ranks(sizes, rank)
        if isinstance(rank, float)
        else dict.fromkeys(sizes, rank)
    )
    # Check every rank first: the SVD of a layer may take minutes.
    for name, size in sizes.items():
        check_rank(f"fixed_rank, layer {name!r}", ranks[name], min(size))
    swaps: dict[nn.Module, nn.Module] = {}
    for name, layer in layers.items():
        matrix = layer.weight.detach().flatten(1)
        try:
            if key is None or initial == "spectral":
                point = from_dense(matrix, ranks[name])
            else:
                std = float(matrix.square().mean().sqrt())
                point = random_point(
                    *sizes[name],
                    ranks[name],
                    key.child(name),
                    std=std,
                    dtype=matrix.dtype,
                    device=matrix.device,
                )
        except ArgumentError as error:
            raise ArgumentError(f"fixed_rank, layer {name!r}: {error}") from None
        swaps[layer] = _fixed_rank_layer(layer, point)
    return swapped(net, swaps)


def layer_matrices(net: nn.Module, where: Predicate = weight_matrices) -> Tree:
    """Return the weights that `fixed_rank` would replace, by their layers' names: matrices
    ``(M, N)``, detached, not copied.

    Parameters
    ----------
    net
        Network, never changed.
    where
        As in `fixed_rank`.

    Raises
    ------
    ArgumentError
        If `where` selects nothing, or anything but the weight of an `nn.Linear` or of an ungrouped
        `nn.Conv1d`, `nn.Conv2d` or `nn.Conv3d` of exactly that class, without hooks and not shared
        with another layer.
    """
    return {name: layer.weight.detach().flatten(1) for name, layer in chosen(net, where).items()}


def dense(net: nn.Module, tree: Mapping[str, Tensor] | None = None) -> nn.Module:
    """Return the ordinary network: a copy with the products formed, for small networks and for
    export.

    Parameters
    ----------
    net
        Network, with or without layers of fixed rank; never changed.
    tree
        Parameters by name. Default: the network's own. Points may have other ranks; the result has
        the dtype and device of the network.

    Raises
    ------
    UpdateError
        If leaves are missing, unknown or of another shape.
    ArgumentError
        If the three leaves of a layer are not a point.
    """
    values, layers = parameters(net) if tree is None else dict(tree), fixed_rank_layers(net)
    at = points(values, layers)
    twin = swapped(net, {layer: _ordinary(layer) for layer in layers.values()})
    expected = dict(twin.named_parameters())
    for name in layers.keys() & at.keys():
        prefix = f"{name}." if name else ""
        for leaf in ("u", "s", "v"):
            del values[prefix + leaf]
        product, weight = to_dense(at[name]), expected[prefix + "weight"]
        values[prefix + "weight"] = (
            product.reshape(weight.shape) if product.shape == weight.flatten(1).shape else product
        )
    check_shapes(values, shapes(expected), where="dense")
    with torch.no_grad():
        for name, value in expected.items():
            value.copy_(values[name])
    return twin


def chosen(
    net: nn.Module,
    where: Predicate,
    named: Collection[str] | None = None,
    *,
    caller: str = "fixed_rank",
    kinds: Sequence[type[nn.Module]] = _KINDS,
) -> dict[str, Dense]:
    """Return the layers to replace, by name, checked.

    Parameters
    ----------
    net
        Network, never changed.
    where
        ``(parameter name, owning module) -> bool``: selects the weights.
    named
        Names of layers; only these of the selected ones are returned. Default: all.
    caller
        Name of the calling function, for error messages.
    kinds
        Classes of layers that may be selected.

    Raises
    ------
    ArgumentError
        As `layer_matrices`, or if a named layer is not among the selected ones.
    """
    layers: dict[str, Dense] = {}
    owners: dict[int, int] = {}
    for path, module in net.named_modules():
        for leaf, value in module.named_parameters(recurse=False):
            owners[id(value)] = owners.get(id(value), 0) + 1
            if not where(f"{path}.{leaf}" if path else leaf, module) or (
                named is not None and path not in named
            ):
                continue
            place, hint = (
                f"{caller}, layer {path!r}",
                "a predicate that leaves it out, or ranks by name",
            )
            if leaf != "weight" or not (isinstance(module, Dense) and is_plain(module, *kinds)):
                expected = (
                    f"the weight of an {' or '.join(f'nn.{kind.__name__}' for kind in kinds)} "
                    "itself, without hooks"
                )
                raise ArgumentError(place, expected, f"{leaf} of {type(module).__name__}", hint)
            if not isinstance(module, nn.Linear) and module.groups > 1:
                actual = (
                    f"{module.groups} groups, whose matrix is block diagonal: one product "
                    "would join them"
                )
                raise ArgumentError(place, "a convolution of one group", actual, hint)
            layers[path] = module
    for path, layer in layers.items():
        if owners[id(layer.weight)] > 1:
            hint = f"{caller} on a network that shares whole layers instead"
            raise ArgumentError(
                f"{caller}, layer {path!r}", "a weight of its own", "one of several layers", hint
            )
    if unknown := sorted(set(named or ()) - set(layers)):
        among = sorted(chosen(net, where, caller=caller, kinds=kinds))
        raise ArgumentError(caller, f"layers among {among}", unknown, "layer_matrices(net)")
    if not layers:
        names = [name for name, _ in net.named_parameters()]
        raise ArgumentError(
            caller, "a layer to replace", f"none of {names}", "a predicate that selects some"
        )
    return layers


def _fixed_rank_layer(layer: Dense, point: FixedRank) -> FixedRankLayer:
    """Return the layer of fixed rank that replaces a dense one."""
    thin: FixedRankLayer
    if isinstance(layer, nn.Linear):
        thin = FixedRankLinear(point, layer.bias)
    else:
        thin = _CONVOLUTIONS[type(layer)](
            point,
            layer.kernel_size,
            layer.bias,
            stride=layer.stride,
            padding=layer.padding,
            dilation=layer.dilation,
            padding_mode=layer.padding_mode,
        )
    for leaf in ("u", "s", "v"):
        getattr(thin, leaf).requires_grad_(layer.weight.requires_grad)
    as_before(thin, layer)
    return thin


def _ordinary(layer: FixedRankLayer) -> nn.Module:
    """Return a dense layer of the same sizes, with its values not set: initialisation would draw
    random numbers.
    """
    whole: nn.Module
    like = {"device": layer.u.device, "dtype": layer.u.dtype, "bias": layer.bias is not None}
    if isinstance(layer, FixedRankLinear):
        whole = skip_init(nn.Linear, layer.in_features, layer.out_features, **like)
    else:
        kind = next(kind for kind, thin in _CONVOLUTIONS.items() if isinstance(layer, thin))
        settings = {
            name: getattr(layer, name)
            for name in ("kernel_size", "stride", "padding", "dilation", "padding_mode")
        }
        whole = skip_init(kind, layer.in_channels, layer.out_channels, **settings, **like)
    next(whole.parameters()).requires_grad_(layer.u.requires_grad)
    as_before(whole, layer)
    return whole

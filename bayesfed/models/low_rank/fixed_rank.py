"""A network with layers of fixed rank in the place of dense ones, and back.

    net = mlp([784, 256, 256, 10], key)
    fixed_rank(net, 4)                                      # the best approximation of rank 4 in every layer
    fixed_rank(net, 1 / 16)                                 # in each, the largest rank with 1/16 of its numbers
    weights = layer_matrices(net)                           # one budget, spent where it keeps most
    sizes, spectra = {name: tuple(w.shape) for name, w in weights.items()}, {name: svdvals(w) for name, w in weights.items()}
    fixed_rank(net, greedy_ranks(sizes, spectra, 1 / 16))

The layers are those of `bayesfed.models.low_rank.fixed_rank_layers`; `bayesfed.models.low_rank.fixed_rank_trees` trains them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from bayesfed.errors import ArgumentError, complain
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
)
from bayesfed.models.low_rank.fixed_rank_trees import points
from bayesfed.models.modules import Dense, Predicate, as_before, is_plain, swapped, weight_matrices
from bayesfed.trees import Tree, check_shapes, parameters, shapes

_CONVOLUTIONS: dict[type[nn.Module], type[FixedRankConv]] = {nn.Conv1d: FixedRankConv1d, nn.Conv2d: FixedRankConv2d, nn.Conv3d: FixedRankConv3d}
_KINDS: tuple[type[nn.Module], ...] = (nn.Linear, *_CONVOLUTIONS)


def fixed_rank(
    net: nn.Module,
    rank: int | float | Mapping[str, int],
    *,
    initial: Literal["spectral", "random"] = "spectral",
    key: Key | None = None,
    where: Predicate = weight_matrices,
) -> nn.Module:
    """Return a copy of a network in which layers have weights of fixed rank.

    Parameters
    ----------
    net
        Never changed. Whatever reads the weights of a chosen layer by itself fails when called: it has no ``weight``.
    rank
        One for all layers; or a float in (0, 1], the share of a layer's numbers that ``R (M + N)`` may be (`uniform_ranks`), where cores and
        biases come on top; or ranks by the layer's name, others staying dense.
    initial
        "spectral": the matrix of the rank nearest to the layer's own, by an SVD; "random": `random_point`, entries of the layer's own root
        mean square.
    key
        For "random" only; each layer draws from a child of its name.
    where
        ``(parameter name, owning module) -> bool``; may choose weights of `nn.Linear`, `nn.Conv1d`, `nn.Conv2d` and `nn.Conv3d`.

    Raises
    ------
    ArgumentError
        If a rank is outside 1 to min(M, N) or the ratio outside (0, 1], a named layer is not among the chosen, there is no key to draw from,
        a weight is not finite or of half precision, or as `layer_matrices`.
    """
    if initial not in ("spectral", "random"):
        raise ArgumentError(complain("fixed_rank, initial", expected="'spectral' or 'random'", actual=repr(initial), hint="'spectral'"))
    if initial == "random" and key is None:
        raise ArgumentError(complain("fixed_rank, key", expected="a Key to draw from", actual=None, hint="Key(0, 'fixed rank')"))
    layers = chosen(net, where, rank if isinstance(rank, Mapping) else None)
    sizes = {name: (layer.weight.shape[0], layer.weight[0].numel()) for name, layer in layers.items()}
    ranks = rank if isinstance(rank, Mapping) else uniform_ranks(sizes, rank) if isinstance(rank, float) else dict.fromkeys(sizes, rank)
    # Every rank first: an SVD of another layer may take minutes.
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
                point = random_point(*sizes[name], ranks[name], key.child(name), std=std, dtype=matrix.dtype, device=matrix.device)
        except ArgumentError as error:
            raise ArgumentError(f"fixed_rank, layer {name!r}: {error}") from None
        swaps[layer] = _thin(layer, point)
    return swapped(net, swaps)


def layer_matrices(net: nn.Module, where: Predicate = weight_matrices) -> Tree:
    """Return the weights that `fixed_rank` would replace, by their layers' names: matrices ``(M, N)``, detached, not copied.

    Raises
    ------
    ArgumentError
        If `where` chooses nothing; or anything but the weight of an ungrouped `nn.Linear`, `nn.Conv1d`, `nn.Conv2d` or `nn.Conv3d`, of that class
        itself, without hooks and shared with no other layer.
    """
    return {name: layer.weight.detach().flatten(1) for name, layer in chosen(net, where).items()}


def dense(net: nn.Module, tree: Mapping[str, Tensor] | None = None) -> nn.Module:
    """Return the ordinary network: a copy with the products formed, for small networks and for export.

    Parameters
    ----------
    net
        With any layers of fixed rank; never changed.
    tree
        Its parameters by name; None: its own. Points may be of other ranks; the result has the dtype and device of the network.

    Raises
    ------
    UpdateError
        If leaves are missing, unknown or of another shape.
    ArgumentError
        If three leaves are no point.
    """
    values = parameters(net) if tree is None else dict(tree)
    at = points(values)
    layers = {name: layer for name, layer in net.named_modules() if isinstance(layer, FixedRankLayer)}
    twin = swapped(net, {layer: _ordinary(layer) for layer in layers.values()})
    expected = dict(twin.named_parameters())
    for name in layers.keys() & at.keys():
        prefix = f"{name}." if name else ""
        for leaf in ("u", "s", "v"):
            del values[prefix + leaf]
        product, weight = to_dense(at[name]), expected[prefix + "weight"]
        values[prefix + "weight"] = product.reshape(weight.shape) if product.shape == weight.flatten(1).shape else product
    check_shapes(values, shapes(expected), where="dense")
    with torch.no_grad():
        for name, value in expected.items():
            value.copy_(values[name])
    return twin


def chosen(
    net: nn.Module, where: Predicate, named: Collection[str] | None = None, *, caller: str = "fixed_rank", kinds: Sequence[type[nn.Module]] = _KINDS
) -> dict[str, Dense]:
    """Return the layers to replace by name, checked; of all that `where` chooses, those that are named.

    Raises
    ------
    ArgumentError
        In the caller's name; as `layer_matrices`.
    """
    found: dict[str, Dense] = {}
    owners: dict[int, int] = {}
    for path, module in net.named_modules():
        for leaf, value in module.named_parameters(recurse=False):
            owners[id(value)] = owners.get(id(value), 0) + 1
            if not where(f"{path}.{leaf}" if path else leaf, module) or (named is not None and path not in named):
                continue
            what, leave = f"{caller}, layer {path!r}", "a predicate that leaves it out, or ranks by name"
            if leaf != "weight" or not (isinstance(module, Dense) and is_plain(module, *kinds)):
                expected = f"the weight of an {' or '.join(f'nn.{kind.__name__}' for kind in kinds)} itself, without hooks"
                raise ArgumentError(complain(what, expected=expected, actual=f"{leaf} of {type(module).__name__}", hint=leave))
            if not isinstance(module, nn.Linear) and module.groups > 1:
                actual = f"{module.groups} groups, whose matrix is block diagonal: one product would join them"
                raise ArgumentError(complain(what, expected="a convolution of one group", actual=actual, hint=leave))
            found[path] = module
    for path, layer in found.items():
        if owners[id(layer.weight)] > 1:
            hint = f"{caller} on a network that shares whole layers instead"
            raise ArgumentError(complain(f"{caller}, layer {path!r}", expected="a weight of its own", actual="one of several layers", hint=hint))
    if unknown := sorted(set(named or ()) - set(found)):
        among = sorted(chosen(net, where, caller=caller, kinds=kinds))
        raise ArgumentError(complain(caller, expected=f"layers among {among}", actual=unknown, hint="layer_matrices(net)"))
    if not found:
        names = [name for name, _ in net.named_parameters()]
        raise ArgumentError(complain(caller, expected="a layer to replace", actual=f"none of {names}", hint="a predicate that chooses some"))
    return found


def _thin(layer: Dense, point: FixedRank) -> FixedRankLayer:
    """Return the layer of fixed rank that stands for a dense one."""
    thin: FixedRankLayer
    if isinstance(layer, nn.Linear):
        thin = FixedRankLinear(point, layer.bias)
    else:
        thin = _CONVOLUTIONS[type(layer)](
            point, layer.kernel_size, layer.bias, stride=layer.stride, padding=layer.padding, dilation=layer.dilation, padding_mode=layer.padding_mode
        )
    for leaf in ("u", "s", "v"):
        getattr(thin, leaf).requires_grad_(layer.weight.requires_grad)
    as_before(thin, layer)
    return thin


def _ordinary(layer: FixedRankLayer) -> nn.Module:
    """Return a dense layer of the same sizes, its numbers not set. Not initialised either: constructors draw random numbers."""
    whole: nn.Module
    like = {"device": layer.u.device, "dtype": layer.u.dtype, "bias": layer.bias is not None}
    if isinstance(layer, FixedRankLinear):
        whole = skip_init(nn.Linear, layer.in_features, layer.out_features, **like)
    else:
        kind = next(kind for kind, thin in _CONVOLUTIONS.items() if isinstance(layer, thin))
        settings = {name: getattr(layer, name) for name in ("kernel_size", "stride", "padding", "dilation", "padding_mode")}
        whole = skip_init(kind, layer.in_channels, layer.out_channels, **settings, **like)
    next(whole.parameters()).requires_grad_(layer.u.requires_grad)
    as_before(whole, layer)
    return whole

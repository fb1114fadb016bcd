"""Export of a network with thin layers to torch's own layers, to be saved, compiled and run without
this package and without Pyro.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from bayesfed.errors.checks import checked
from bayesfed.models.low_rank.thin_layers import FactoredLayer, FixedRankLayer
from bayesfed.models.modules import swapped
from bayesfed.trees import check_shapes, leaf_of, parameters, shapes


@checked()
def dense_or_thin(
    net: nn.Module,
    tree: Mapping[str, Tensor] | None = None,
    *,
    form: Literal["smaller", "thin", "dense"] = "smaller",
) -> nn.Module:
    """Return the network in torch's own layers, for export: a factored layer, or one of fixed rank,
    becomes two thin ones in an `nn.Sequential`, or one dense layer.

    Parameters
    ----------
    net
        Network, with or without such layers; never changed.
    tree
        Parameters by name. Default: the network's own. Factors may have other ranks; the result has
        the dtype and device of the network.
    form
        "smaller": for each layer the form with fewer numbers; "thin" or "dense": that form for all.

    Raises
    ------
    UpdateError
        If leaves are missing, unknown or of another shape.
    ArgumentError
        If the form is unknown.
    """
    own = parameters(net)
    values, expected = own if tree is None else dict(tree), shapes(own)
    layers = {
        name: layer
        for name, layer in net.named_modules()
        if isinstance(layer, FactoredLayer | FixedRankLayer)
    }
    for name, layer in layers.items():
        given = values.get(leaf_of(name, "u"))
        rank = layer.rank if given is None or not given.ndim else given.shape[-1]
        expected |= {leaf_of(name, leaf): shape for leaf, shape in layer.shapes(rank).items()}
    check_shapes(values, expected, where="dense_or_thin")
    swaps: dict[nn.Module, nn.Module] = {}
    for name, layer in layers.items():
        factors = {leaf: values[leaf_of(name, leaf)].to(layer.u) for leaf in layer.factors}
        left, right = layer.sides(factors)
        small = left.numel() + right.numel() < len(left) * len(right)
        thin = form == "thin" or (form == "smaller" and small)
        swaps[layer] = layer.ordinary(left, right, values.get(leaf_of(name, "bias")), thin)
    twin = swapped(net, swaps)
    with torch.no_grad():
        for name, value in twin.named_parameters():
            if name in own and name.rpartition(".")[0] not in layers:
                value.copy_(values[name])
    return twin


@checked()
def dense(net: nn.Module, tree: Mapping[str, Tensor] | None = None) -> nn.Module:
    """Return the ordinary network: a copy with all products formed.

    Parameters
    ----------
    net, tree
        As in `dense_or_thin`.

    Raises
    ------
    UpdateError
        If leaves are missing, unknown or of another shape.
    """
    return dense_or_thin(net, tree, form="dense")

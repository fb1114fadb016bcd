"""Export of a network with factored layers to torch's own layers, to be saved, compiled and run
without this package and without Pyro.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from bayesfed.errors import ArgumentError
from bayesfed.models.low_rank.factored_layers import FactoredConv2d, FactoredLinear
from bayesfed.models.low_rank.thin_layers import along, thin_kernels
from bayesfed.models.modules import as_before, swapped
from bayesfed.trees import check_shapes, leaf_of, parameters, shapes


def dense_or_thin(
    net: nn.Module,
    tree: Mapping[str, Tensor] | None = None,
    *,
    form: Literal["smaller", "thin", "dense"] = "smaller",
) -> nn.Module:
    """Return the network in torch's own layers, for export: a factored layer becomes two thin ones
    in an `nn.Sequential`, or one dense layer.

    Parameters
    ----------
    net
        Network, with or without factored layers; never changed.
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
    if form not in ("smaller", "thin", "dense"):
        raise ArgumentError(
            "dense_or_thin, form", "'smaller', 'thin' or 'dense'", repr(form), "'smaller'"
        )
    own = parameters(net)
    values, expected = own if tree is None else dict(tree), shapes(own)
    swaps: dict[nn.Module, nn.Module] = {}
    layers = {
        name: layer
        for name, layer in net.named_modules()
        if isinstance(layer, FactoredLinear | FactoredConv2d)
    }
    for name, layer in layers.items():
        left, right = leaf_of(name, "u"), leaf_of(name, "v")
        rank = values[left].shape[-1] if left in values and values[left].ndim else layer.rank
        expected |= {left: (len(own[left]), rank), right: (len(own[right]), rank)}
    check_shapes(values, expected, where="dense_or_thin")
    for name, layer in layers.items():
        u, v = (values[leaf_of(name, leaf)].to(layer.u) for leaf in "uv")
        thin = form == "thin" or (form == "smaller" and u.numel() + v.numel() < len(u) * len(v))
        swaps[layer] = _plain(layer, u, v, values.get(leaf_of(name, "bias")), thin)
    twin = swapped(net, swaps) if swaps else copy.deepcopy(net)
    with torch.no_grad():
        for name, value in twin.named_parameters():
            if name in own and name.rpartition(".")[0] not in layers:
                value.copy_(values[name])
    return twin


def _plain(
    layer: FactoredLinear | FactoredConv2d, u: Tensor, v: Tensor, bias: Tensor | None, thin: bool
) -> nn.Module:
    """Return torch's own layer or layers. They are made without initialisation, which would draw
    random numbers.
    """
    layout, like = layer.unrolling, {"device": u.device, "dtype": u.dtype}
    weights: list[Tensor]
    if isinstance(layer, FactoredLinear):
        weights = [v.mT, u] if thin else [u @ v.mT]
        made = [
            skip_init(
                nn.Linear,
                one.shape[1],
                len(one),
                bias=bias is not None and one is weights[-1],
                **like,
            )
            for one in weights
        ]
    else:
        weights = (
            [*thin_kernels(u, v, layer.kernel_size, layout.tail)]
            if thin
            else [layout.weight(u @ v.mT)]
        )
        made = []
        for weight, axes in zip(
            weights, layer.halves(layout.tail) if thin else (range(2),), strict=True
        ):
            padding = (
                layer.padding if isinstance(layer.padding, str) else along(axes, layer.padding, 0)
            )
            settings = {
                "stride": along(axes, layer.stride, 1),
                "dilation": along(axes, layer.dilation, 1),
                "padding_mode": layer.padding_mode,
            }
            channels, size = (weight.shape[1], len(weight)), tuple(weight.shape[2:])
            made.append(
                skip_init(
                    nn.Conv2d,
                    *channels,
                    size,
                    padding=padding,
                    **settings,
                    bias=bias is not None and weight is weights[-1],
                    **like,
                )
            )
    with torch.no_grad():
        for one, weight in zip(made, weights, strict=True):
            one.weight.copy_(weight).requires_grad_(layer.u.requires_grad)
        if bias is not None:
            made[-1].bias.copy_(bias)
    as_before(made[-1], layer)
    return nn.Sequential(*made).train(layer.training) if thin else made[0]

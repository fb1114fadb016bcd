"""Adding low-rank adapters over the frozen weights of a network, and merging them.

    # trains adapters and the head; the rest is frozen, and shared with `pretrained`
    net = lora(pretrained, 8, key, head=["classifier"])
    bf.run(fed_lora(net), clients, rounds=10)
    merged(net, run.model.parameters)                       # an ordinary network

In this package only parameters that require a gradient are trained and sent, so every method that
trains a whole network can train such a network as well. The layers are those of
`bayesfed.models.adapters.lora_layers`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import checked
from bayesfed.geometry.thin import check_rank
from bayesfed.keys import Key
from bayesfed.models.adapters.lora_layers import (
    Frozen,
    LoraLinear,
    Scaling,
    fresh_adapter,
    is_transposed,
    lora_scale,
    matrix_of,
)
from bayesfed.models.low_rank.replacing import chosen
from bayesfed.models.modules import Predicate, is_plain, swapped
from bayesfed.trees import Tree, check_shapes, leaf_of, parameters, shapes


@checked()
def linear_weights(name: str, module: nn.Module) -> bool:
    """Select the weights of all plain linear layers and of layers that map x to ``x W + b``, not
    those of subclasses such as the output layer of `nn.MultiheadAttention`.
    """
    linear = is_plain(module, nn.Linear) or is_transposed(module)
    return linear and name.rpartition(".")[2] == "weight"


@checked()
def lora(
    net: nn.Module,
    rank: int,
    key: Key,
    *,
    where: Predicate = linear_weights,
    alpha: float = 16.0,
    scaling: Scaling = "lora",
    dropout: float = 0.0,
    head: Sequence[str] = (),
) -> nn.Module:
    """Return a network with adapters in linear layers, or those that `where` selects, and
    everything else frozen. Until the adapters are trained it computes the same function.

    Parameters
    ----------
    net
        Pretrained network, never changed. Its frozen weights are shared in memory, not copied, so
        it should not be trained any further. They are not sent to clients, so the network must be
        on the device of the clients' data.
    rank
        r; it may be larger than a layer's sizes.
    key
        Random key; the A of each layer draws from the child with the layer's name. B is zero.
    where
        ``(parameter name, owning module) -> bool``: selects the weights that get adapters. Weights
        of the head get none.
    alpha, scaling
        As in `lora_scale`.
    dropout
        Dropout probability of the adapters' inputs.
    head
        Names of modules that are trained whole together with the adapters; their parameters are
        copied.

    Raises
    ------
    ArgumentError
        If the rank is below 1, nothing is selected, a selected parameter is not the unshared weight
        of a plain linear, convolution or embedding layer, a module of the head does not
        exist, the network already has adapters, or as `lora_scale` and `LoraLinear`.
    """
    scale = lora_scale(rank, alpha, scaling)
    if existing := sorted(adapters(net)):
        raise ArgumentError("lora", "a network without adapters", existing, "merged(net)")
    modules = dict(net.named_modules())
    if unknown := sorted(set(head) - modules.keys()):
        raise ArgumentError(
            "lora, head", "names of modules", unknown, f"{[name for name in modules if name][-1:]}"
        )
    trained = {id(value) for name in head for value in modules[name].parameters()}

    def outside(name: str, module: nn.Module) -> bool:
        return where(name, module) and id(getattr(module, name.rpartition(".")[2])) not in trained

    kinds = {type(module) for module in net.modules() if is_transposed(module)}
    adapted = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Embedding, *kinds)
    layers = chosen(net, outside, caller="lora", kinds=adapted)
    frozen: dict[Tensor, Tensor] = {
        value: Frozen(value) for value in net.parameters() if id(value) not in trained
    }
    memo = {id(value): one for value, one in frozen.items()}
    swaps: dict[nn.Module, nn.Module] = {}
    for name, layer in layers.items():
        base = copy.deepcopy(cast(nn.Module, layer), dict(memo))
        b, a = fresh_adapter(matrix_of(layer), rank, key.child(name))
        swaps[layer] = LoraLinear(base, b, a, scale, dropout).train(layer.training)
    twin = swapped(net, swaps, frozen)
    for name in head:
        twin.get_submodule(name).requires_grad_()
    return twin


@checked()
def adapters(net: nn.Module) -> dict[str, LoraLinear]:
    """Return the layers with adapters, by name."""
    return {name: layer for name, layer in net.named_modules() if isinstance(layer, LoraLinear)}


def based(net: nn.Module, deltas: Mapping[str, Tensor]) -> Tree:
    """Return the frozen weights under some adapters plus a delta each, by their names in the
    network.
    """
    return {
        leaf_of(name, "base.weight"): cast(Tensor, layer.base.weight).detach()
        + layer.laid_out(deltas[name])
        for name, layer in adapters(net).items()
        if name in deltas
    }


@checked()
def lora_rank(net: nn.Module) -> int:
    """Return the rank of a network's adapters.

    Raises
    ------
    ArgumentError
        If there are none, or their ranks differ.
    """
    ranks = {name: layer.rank for name, layer in adapters(net).items()}
    if len(set(ranks.values())) != 1:
        raise ArgumentError(
            "lora_rank", "adapters of one rank", ranks or "none", "lora(net, 8, key)"
        )
    return next(iter(ranks.values()))


@checked()
def resized(net: nn.Module, rank: int, *, factor: float = 1.0) -> nn.Module:
    """Return the network with adapters of a smaller rank over the same frozen weights, as trained
    by a client that has fewer slices.

    Parameters
    ----------
    net
        Network with adapters, never changed. The smaller adapters start as its leading slices;
        messages replace them by others.
    rank
        k, at most the rank of the network's adapters.
    factor
        Factor on the scale of the network's adapters: ``r / k`` for a sketch.

    Raises
    ------
    ArgumentError
        If the rank is not from 1 to that of the network's adapters, or as `lora_rank`.
    """
    check_rank("resized, rank", rank, lora_rank(net))
    swaps: dict[nn.Module, nn.Module] = {}
    for layer in adapters(net).values():
        b, a, scale = layer.lora_b[:, :rank], layer.lora_a[:rank], float(layer.scale) * factor
        made = LoraLinear(copy.deepcopy(layer.base), b, a, scale, layer.rate).train(layer.training)
        made.lora_b.requires_grad_(layer.lora_b.requires_grad)
        made.lora_a.requires_grad_(layer.lora_a.requires_grad)
        swaps[layer] = made
    return swapped(net, swaps)


@checked()
def merged(net: nn.Module, tree: Mapping[str, Tensor] | None = None) -> nn.Module:
    """Return the ordinary network: plain linear layers with weights ``W + scale B A``, all copied
    and trainable.

    Parameters
    ----------
    net
        Network with adapters, never changed.
    tree
        Trained parameters by name, which replace the network's own. Default: none.

    Raises
    ------
    UpdateError
        If a leaf is unknown or of another shape.
    """
    layers, values = adapters(net), filled(net, tree, where="merged")
    for name, layer in layers.items():
        b, a = values[leaf_of(name, "lora_b")], values[leaf_of(name, "lora_a")]
        weight = leaf_of(name, "base.weight")
        values[weight] = (values[weight] + layer.laid_out(layer.product(b, a))).detach()
    # New tensors, since frozen ones are shared with other networks; tied ones stay tied.
    made: dict[Tensor, Tensor] = {
        value: nn.Parameter(torch.empty_like(value).copy_(values[name]))
        for name, value in net.named_parameters()
    }
    memo = {id(value): one for value, one in made.items()}
    swaps: dict[nn.Module, nn.Module] = {
        layer: copy.deepcopy(layer.base, dict(memo)).train(layer.training)
        for layer in layers.values()
    }
    return swapped(net, swaps, made)


def filled(net: nn.Module, tree: Mapping[str, Tensor] | None, *, where: str) -> Tree:
    """Return a network's parameters, a tree's in place of its own.

    Raises
    ------
    UpdateError
        If a leaf is unknown or of another shape.
    """
    own = parameters(net)
    values = own | dict(tree or {})
    check_shapes(values, shapes(own), where=where)
    return values

"""A network with low-rank adapters over frozen weights, and back.

    net = lora(pretrained, 8, key, head=["classifier"])     # trains adapters and the head; all else is frozen, and shared with `pretrained`
    bf.run(fed_lora(net), clients, rounds=10)
    merged(net, run.model.parameters)                       # an ordinary network

Only parameters that require a gradient are trained and travel, in this package, so every method that trains a whole network trains such a one too.
The layers are those of `bayesfed.models.adapters.lora_layers`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from bayesfed.errors import ArgumentError, UpdateError, complain
from bayesfed.geometry.thin import check_rank
from bayesfed.keys import Key
from bayesfed.models.adapters.lora_layers import Frozen, LoraLinear, Scaling, fresh_adapter, lora_scale
from bayesfed.models.low_rank.fixed_rank import chosen
from bayesfed.models.modules import Predicate, is_plain, swapped
from bayesfed.trees import check_shapes, leaf_of, parameters, shapes


def linear_weights(name: str, module: nn.Module) -> bool:
    """Choose the weights of all plain linear layers; attention's own, which it reads by itself, are of another class."""
    return is_plain(module, nn.Linear) and name.rpartition(".")[2] == "weight"


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
    """Return a network with adapters in linear layers, everything else frozen: the same function, until they are trained.

    Parameters
    ----------
    net
        Never changed. Its frozen weights are shared in memory, not copied: train it no further. They do not travel, so it must be on the device of
        the clients' data.
    rank
        r. More than a layer's sizes is legal.
    key
        Each A draws from a child of its layer's name; B is zero.
    where
        ``(parameter name, owning module) -> bool``: whose weights get adapters. The head's get none.
    alpha, scaling
        As `lora_scale`.
    dropout
        Of the adapters' inputs.
    head
        Names of modules that are trained whole, from copies of their parameters, with the adapters.

    Raises
    ------
    ArgumentError
        If the rank is below 1, nothing is chosen, a choice is not the weight of a plain `nn.Linear` of its own, no module is named so, the network
        has adapters already, or as `lora_scale` and `LoraLinear`.
    """
    check_rank("lora, rank", rank, 1 << 20)
    scale = lora_scale(rank, alpha, scaling)
    if has := sorted(adapters(net)):
        raise ArgumentError(complain("lora", expected="a network without adapters", actual=has, hint="merged(net)"))
    modules = dict(net.named_modules())
    if unknown := sorted(set(head) - modules.keys()):
        raise ArgumentError(complain("lora, head", expected="names of modules", actual=unknown, hint=f"{[name for name in modules if name][-1:]}"))
    trained = {id(value) for name in head for value in modules[name].parameters()}

    def outside(name: str, module: nn.Module) -> bool:
        return where(name, module) and id(getattr(module, name.rpartition(".")[2])) not in trained

    layers = chosen(net, outside, caller="lora", kinds=(nn.Linear,))
    frozen: dict[Tensor, Tensor] = {value: Frozen(value) for value in net.parameters() if id(value) not in trained}
    swaps: dict[nn.Module, nn.Module] = {}
    for name, layer in layers.items():
        base = copy.deepcopy(layer, {id(value): frozen[value] for value in layer.parameters()})
        if not isinstance(base, nn.Linear):
            raise ArgumentError(complain("lora", expected="linear layers", actual=type(base).__name__, hint="linear_weights"))
        swaps[layer] = LoraLinear(base, *fresh_adapter(layer.weight, rank, key.child(name)), scale, dropout).train(layer.training)
    twin = swapped(net, swaps, frozen)
    for name in head:
        twin.get_submodule(name).requires_grad_()
    return twin


def adapters(net: nn.Module) -> dict[str, LoraLinear]:
    """Return the layers with adapters, by name."""
    return {name: layer for name, layer in net.named_modules() if isinstance(layer, LoraLinear)}


def lora_rank(net: nn.Module) -> int:
    """Return the rank of a network's adapters.

    Raises
    ------
    ArgumentError
        If there are none, or they are of unlike rank.
    """
    ranks = {name: layer.rank for name, layer in adapters(net).items()}
    if len(set(ranks.values())) != 1:
        raise ArgumentError(complain("lora_rank", expected="adapters of one rank", actual=ranks or "none", hint="lora(net, 8, key)"))
    return next(iter(ranks.values()))


def resized(net: nn.Module, rank: int, *, factor: float = 1.0, by_slice: bool = False) -> nn.Module:
    """Return the network with adapters of another rank, over the same frozen weights: what a client of fewer slices trains.

    Parameters
    ----------
    net
        Never changed. Its leading slices are where the smaller adapters begin; messages bring others.
    rank
        k, at most the network's.
    factor
        On the scale of the adapters, which is otherwise the network's own: ``r / k`` for a sketch.
    by_slice
        Whether the scale is a buffer with a number by slice, for sketches that multiply slices unlike.

    Raises
    ------
    ArgumentError
        If the rank is outside of 1 to the network's, or as `lora_rank`.
    """
    check_rank("resized, rank", rank, lora_rank(net))
    swaps: dict[nn.Module, nn.Module] = {}
    for layer in adapters(net).values():
        b, a = layer.lora_b[:, :rank], layer.lora_a[:rank]
        scale: float | Tensor = layer.scale * factor
        if by_slice and not isinstance(scale, Tensor):
            scale = a.new_full((rank,), scale)
        made = LoraLinear(copy.deepcopy(layer.base), b, a, scale, layer.rate).train(layer.training)
        made.lora_b.requires_grad_(layer.lora_b.requires_grad)
        made.lora_a.requires_grad_(layer.lora_a.requires_grad)
        swaps[layer] = made
    return swapped(net, swaps)


def merged(net: nn.Module, tree: Mapping[str, Tensor] | None = None) -> nn.Module:
    """Return the ordinary network: plain linear layers with weights ``W + scale B A``, all copied and trainable.

    Parameters
    ----------
    net
        With adapters; never changed.
    tree
        Parameters by name in the place of its own: what was trained.

    Raises
    ------
    UpdateError
        If a leaf is unknown or of another shape.
    """
    own = parameters(net)
    values = own | dict(tree or {})
    if unknown := sorted(values.keys() - own.keys()):
        raise UpdateError(complain("merged", expected="parameters of the network", actual=unknown, hint="run.model.parameters"))
    check_shapes(values, shapes(own), where="merged")
    layers = adapters(net)
    twin = swapped(net, {layer: copy.deepcopy(layer.base).train(layer.training) for layer in layers.values()})
    for name, layer in layers.items():
        b, a, weight = (values.pop(leaf_of(name, leaf)) for leaf in ("lora_b", "lora_a", "base.weight"))
        values[leaf_of(name, "weight")] = (weight + (b * layer.scale) @ a).detach()
        # Of tied biases only the first has a leaf.
        if (bias := leaf_of(name, "base.bias")) in values:
            values[leaf_of(name, "bias")] = values.pop(bias)
    made: dict[int, nn.Parameter] = {}
    named = {id(value): name for name, value in twin.named_parameters()}
    for module in list(twin.modules()):
        for leaf, value in list(module.named_parameters(recurse=False)):
            # New tensors, since frozen ones are shared; tied ones stay tied.
            new = made.setdefault(id(value), nn.Parameter(torch.empty_like(value).copy_(values[named[id(value)]])))
            setattr(module, leaf, new)
    return twin

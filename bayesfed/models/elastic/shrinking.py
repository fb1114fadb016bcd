"""Narrower networks whose parameters are the leading entries of a whole one's; a shrinking factor
alpha keeps sqrt(alpha) of each hidden width.

    graph = channel_graph(net, images[:1])
    tree = sort_channels(graph, tree)
    quarter = shrunk(net, graph, 1 / 4)  # {16, 32, 64} channels become {8, 16, 32}
    # view.restrict(tree): what a device of this size downloads
    view = Slice(shapes(tree), shapes(parameters(quarter)))

Matrices between hidden layers have alpha times the entries and the work. The first and the last
matrices have sqrt(alpha) times, since only one of their sides is a hidden width; `shrunk_shares`
measures the whole.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn

from bayesfed.errors import ArgumentError, UpdateError
from bayesfed.errors.checks import checked
from bayesfed.models.elastic.graph import ChannelGraph
from bayesfed.models.nets.building_blocks import slimmed
from bayesfed.trees import check_shapes

Net = TypeVar("Net", bound=nn.Module)


@checked()
def shrunk_widths(graph: ChannelGraph, alpha: float) -> dict[str, int]:
    """Return how many channels of each group a sub-model has: sqrt(alpha) of them, rounded to the
    nearest integer, at least 1.

    Where channels stay together in blocks, this holds for blocks instead: a group of one block is
    never cut.

    Parameters
    ----------
    graph
        Channels of the whole network.
    alpha
        Shrinking factor in (0, 1].

    Raises
    ------
    ArgumentError
        If alpha is not in (0, 1].

    References
    ----------
    AnycostFL, section III-B, step 2, "layer-wise uniform shrinking".
    """
    if isinstance(alpha, bool) or not 0 < alpha <= 1:
        raise ArgumentError("shrunk, alpha", "a factor in (0, 1]", alpha, "1 / 4")
    ratio = math.sqrt(alpha)
    return {
        name: group.atom * slimmed(group.size // group.atom, ratio, where="shrunk")
        for name, group in graph.groups.items()
    }


@checked()
def shrunk_shapes(graph: ChannelGraph, alpha: float) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a sub-model's parameters and buffers, by name.

    Parameters
    ----------
    graph, alpha
        As in `shrunk_widths`.

    Raises
    ------
    ArgumentError
        If alpha is not in (0, 1].
    """
    widths = shrunk_widths(graph, alpha)
    sizes = {name: list(shape) for name, shape in graph.leaves.items()}
    for name, group in graph.groups.items():
        for place in group.places:
            sizes[place.leaf][place.axis] = widths[name] * place.inner
    return {name: tuple(shape) for name, shape in sizes.items()}


@checked()
def shrunk(net: Net, graph: ChannelGraph, alpha: float) -> Net:
    """Return a narrower network, of the same classes and names, whose parameters and buffers are
    the leading entries of the network's own.

    With any norm, it computes the same as the whole network with zeros for the weights that read
    the channels left out.

    Parameters
    ----------
    net
        Whole network, never changed. Sort its channels first, or call the result on a slice of a
        sorted tree (`torch.func.functional_call`).
    graph
        Channels of this network.
    alpha
        Shrinking factor in (0, 1]. At 1 the result is a copy.

    Raises
    ------
    ArgumentError
        If alpha is not in (0, 1], or the graph belongs to another network.
    """
    target = shrunk_shapes(graph, alpha)
    own: dict[str, Tensor] = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    try:
        check_shapes(own, graph.leaves, where="shrunk")
    except UpdateError as error:
        raise ArgumentError(str(error)) from None
    # A copy in which smaller tensors replace those that are cut, wherever they are referred to.
    twin = copy.deepcopy(
        net,
        {
            id(value): _leading(value, target[name])
            for name, value in own.items()
            if target[name] != value.shape
        },
    )
    widths = shrunk_widths(graph, alpha)
    _resize(twin, {path: inner * widths[name] for path, (name, inner) in graph.norms.items()})
    return twin


def _leading(value: Tensor, shape: tuple[int, ...]) -> Tensor:
    part = value.detach()[tuple(slice(0, length) for length in shape)].clone(
        memory_format=torch.contiguous_format
    )
    return nn.Parameter(part, value.requires_grad) if isinstance(value, nn.Parameter) else part


def _resize(twin: nn.Module, normed: Mapping[str, int]) -> None:
    """Set the sizes that each layer states to those of its tensors."""
    for path, layer in twin.named_modules():
        if isinstance(layer, nn.Linear):
            layer.out_features, layer.in_features = layer.weight.shape
        elif isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d):
            if layer.groups > 1:
                # Depthwise: the number of outputs per channel is unchanged.
                layer.groups = layer.weight.shape[0] * layer.groups // layer.out_channels
            layer.out_channels = layer.weight.shape[0]
            layer.in_channels = layer.weight.shape[1] * layer.groups
        elif path in normed and isinstance(layer, nn.GroupNorm):
            layer.num_groups = normed[path] * layer.num_groups // layer.num_channels
            layer.num_channels = normed[path]
        elif path in normed:
            layer.num_features = normed[path]

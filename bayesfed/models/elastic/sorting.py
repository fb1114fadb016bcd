"""Sorting channels by norm, the largest first, without changing the function that the network
computes.

AnycostFL's server sorts the channels of the global model before it sends them, so that the leading
ones are the sub-model of any width::

    graph = channel_graph(net, images[:1])                   # once
    tree = sort_channels(graph, tree)                        # every round
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from bayesfed.errors import ArgumentError, UpdateError
from bayesfed.models.elastic.graph import ChannelGraph, Group, Place
from bayesfed.trees import Shapes, Tree, check_shapes


def sort_channels(graph: ChannelGraph, tree: Mapping[str, Tensor]) -> Tree:
    """Return parameters of the same function in which each group of hidden channels is in
    descending order of norms (`channel_order`).

    Parameters
    ----------
    graph
        Channels of the network.
    tree
        All parameters, and all buffers with entries for hidden channels: running statistics that
        were left out would belong to other channels afterwards. If they are kept elsewhere, use
        `channel_order`, and `permute_channels` on both.

    Returns
    -------
    Tree
        All leaves; unchanged ones are the same tensors.

    Raises
    ------
    UpdateError
        If a leaf is missing, unknown or not of the network's shape.

    References
    ----------
    AnycostFL, section III-B, step 1, "server-side channel sorting".
    """
    moving = {place.leaf for group in graph.groups.values() for place in group.places}
    buffers = {
        name: shape for name, shape in graph.buffers.items() if name in moving or name in tree
    }
    check_shapes(tree, {**graph.parameters, **buffers}, where="sort_channels")
    return permute_channels(graph, tree, channel_order(graph, tree))


def channel_order(graph: ChannelGraph, tree: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the descending order of each group's channels: channel k of the new network is channel
    ``order[k]`` of the old one.

    A channel's norm is the L2 norm of the weights that make it: its filters or rows in all layers
    whose outputs belong to the group, together, without biases and without scales of norm layers.
    The paper sorts each layer by its own norms. Layers that share their channels, by a sum or a
    depthwise convolution, must have the same order here; the joint norm treats them equally, and
    for a single layer it is the paper's. Where channels stay together, blocks are sorted by their
    joint norm, and channels within their block.

    Parameters
    ----------
    graph
        Channels of the network.
    tree
        Parameters by name, at least the weights that make hidden channels.

    Returns
    -------
    dict
        A permutation ``(channels,)`` for each group. Channels of equal norm keep their order. Sums
        are in double precision.

    Raises
    ------
    UpdateError
        If a weight is missing or not of the network's shape.
    """
    return {
        name: _order(group, _squares(graph, group, tree)) for name, group in graph.groups.items()
    }


def permute_channels(
    graph: ChannelGraph, tree: Mapping[str, Tensor], order: Mapping[str, Tensor]
) -> Tree:
    """Return a tree whose channels are in a given order, at every place where they have entries.

    Parameters
    ----------
    graph
        Channels of the network.
    tree
        Any leaves of the network: parameters, running statistics, or tensors with the same names
        and shapes, such as a client's residuals.
    order
        A permutation for each group to be permuted, such as from `channel_order`. Channels that
        stay together must stay together in it.

    Raises
    ------
    ArgumentError
        If an order belongs to no group, is not a permutation, or splits channels that stay
        together.
    UpdateError
        If a leaf is unknown or not of the network's shape.
    """
    check_shapes(tree, _known(graph, tree), where="permute_channels")
    for name, index in order.items():
        _check_order(graph, name, index)
    result = dict(tree)
    for name, index in order.items():
        if torch.equal(index, torch.arange(len(index), device=index.device)):
            continue
        for place in graph.groups[name].places:
            if place.leaf in result:
                result[place.leaf] = _moved(result[place.leaf], place, index)
    return result


def _known(graph: ChannelGraph, leaves: Iterable[str]) -> Shapes:
    everything = graph.leaves
    for name in leaves:
        if name not in everything:
            where, expected = f"permute_channels, leaf {name!r}", f"some of {sorted(everything)}"
            raise UpdateError(where, expected, "another", "the network's names")
    return {name: everything[name] for name in leaves}


def _check_order(graph: ChannelGraph, name: str, index: Tensor) -> None:
    where, hint = f"permute_channels, order {name!r}", "channel_order(graph, tree)"
    if name not in graph.groups:
        raise ArgumentError(where, f"one of {sorted(graph.groups)}", "another", hint)
    group = graph.groups[name]
    whole = torch.arange(group.size, device=index.device)
    if not torch.equal(index.sort().values, whole):
        expected = f"a permutation of {group.size} channels"
        raise ArgumentError(where, expected, f"{len(index)} numbers", hint)
    blocks = (index // group.atom).reshape(-1, group.atom)
    if not torch.equal(blocks, blocks[:, :1].expand_as(blocks)):
        expected = f"blocks of {group.atom} channels that stay together"
        raise ArgumentError(where, expected, "blocks that mix", hint)


def _moved(leaf: Tensor, place: Place, index: Tensor) -> Tensor:
    # A channel with several entries moves as a whole.
    split = (*leaf.shape[: place.axis], len(index), place.inner, *leaf.shape[place.axis + 1 :])
    return leaf.reshape(split).index_select(place.axis, index.to(leaf.device)).reshape(leaf.shape)


def _squares(graph: ChannelGraph, group: Group, tree: Mapping[str, Tensor]) -> Tensor:
    """Return the squared norm of every channel, ``(channels,)``."""
    makers = [place.leaf for place in group.places if place.makes]
    check_shapes(
        {name: tree[name] for name in makers if name in tree},
        {name: graph.leaves[name] for name in makers},
        where="channel_order",
    )
    parts = [
        torch.linalg.vector_norm(
            tree[name].reshape(group.size, -1), dim=1, dtype=torch.float64
        ).square()
        for name in makers
    ]
    return torch.stack([part.to(parts[0].device) for part in parts]).sum(0)


def _order(group: Group, squares: Tensor) -> Tensor:
    blocks = squares.reshape(-1, group.atom)
    within = blocks.argsort(dim=1, descending=True, stable=True)
    order = blocks.sum(1).argsort(descending=True, stable=True)
    return (within + group.atom * torch.arange(len(blocks), device=squares.device)[:, None])[
        order
    ].flatten()

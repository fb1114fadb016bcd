"""Sorting channels by norm, the largest first, without changing the function that the network
computes.

AnycostFL's server sorts the channels of the global model before it sends them, so that the leading
ones are the sub-model of any width::

    graph = channel_graph(net, images[:1])                   # once
    tree = sort_channels(graph, tree)                        # every round
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from bayesfed.errors.checks import checked
from bayesfed.models.elastic.graph import ChannelGraph, Group, Place
from bayesfed.trees import Tree, check_shapes


@checked()
def sort_channels(graph: ChannelGraph, tree: Mapping[str, Tensor]) -> Tree:
    """Return parameters of the same function in which each group of hidden channels is in
    descending order of norms.

    A channel's norm is the L2 norm of the weights that make it: its filters or rows in all layers
    whose outputs belong to the group, together, without biases and without scales of norm layers.
    The paper sorts each layer by its own norms. Layers that share their channels, by a sum or a
    depthwise convolution, must have the same order here; the joint norm treats them equally, and
    for a single layer it is the paper's. Where channels stay together, blocks are sorted by their
    joint norm, and channels within their block. Channels of equal norm keep their order. Sums are
    in double precision.

    Parameters
    ----------
    graph
        Channels of the network.
    tree
        All parameters, and all buffers with entries for hidden channels: running statistics that
        were left out would belong to other channels afterwards.

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
    result = dict(tree)
    for group in graph.groups.values():
        index = _order(group, tree)
        if not torch.equal(index, torch.arange(len(index), device=index.device)):
            for place in group.places:
                result[place.leaf] = _moved(result[place.leaf], place, index)
    return result


def _order(group: Group, tree: Mapping[str, Tensor]) -> Tensor:
    """Return the descending order of channels: channel k of the new network is channel ``order[k]``
    of the old one.
    """
    makers = [tree[place.leaf].reshape(group.size, -1) for place in group.places if place.makes]
    squares = [
        torch.linalg.vector_norm(maker, dim=1, dtype=torch.float64).square() for maker in makers
    ]
    joint = torch.stack([part.to(squares[0].device) for part in squares]).sum(0)
    blocks = joint.reshape(-1, group.atom)
    within = blocks.argsort(dim=1, descending=True, stable=True)
    order = blocks.sum(1).argsort(descending=True, stable=True)
    return (within + group.atom * torch.arange(len(blocks), device=joint.device)[:, None])[
        order
    ].flatten()


def _moved(leaf: Tensor, place: Place, index: Tensor) -> Tensor:
    # A channel with several entries moves as a whole.
    split = (*leaf.shape[: place.axis], len(index), place.inner, *leaf.shape[place.axis + 1 :])
    return leaf.reshape(split).index_select(place.axis, index.to(leaf.device)).reshape(leaf.shape)

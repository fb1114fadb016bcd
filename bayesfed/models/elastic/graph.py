"""The hidden channels of a network: which of them must be permuted and cut together, and where
their entries are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bayesfed.trees import Shapes


@dataclass(frozen=True)
class Place:
    """An axis of a parameter or buffer along which the channels of a group lie in order.

    Parameters
    ----------
    leaf
        Name of the parameter or buffer.
    axis
        Number of the axis, from 0.
    inner
        Number of consecutive entries for each channel: 1; or H W where a picture (C, H, W) was
        flattened; or m behind a depthwise convolution that makes m channels of each.
    makes
        Whether the axis is the outputs of a weight (rows of a matrix, filters of a convolution), of
        which the channels' norms are taken.
    """

    leaf: str
    axis: int
    inner: int = 1
    makes: bool = False


@dataclass(frozen=True)
class Group:
    """Hidden channels with the same order and width: those of one layer, or of all layers whose
    outputs are added up.

    Parameters
    ----------
    name
        Name of the first layer that makes them.
    size
        Number of channels.
    atom
        Number of consecutive channels that stay together as a block, because they share the mean of
        one norm group. 1 if each channel is alone. Blocks are permuted as wholes, and channels only
        within their block.
    places
        Where the channels have entries, in the order in which the network uses them.
    """

    name: str
    size: int
    atom: int
    places: tuple[Place, ...]


@dataclass(frozen=True)
class ChannelGraph:
    """All hidden channels of a network, as found by `channel_graph`. The axes of inputs and outputs
    are never among them.

    Parameters
    ----------
    groups
        Groups of channels by name, in the network's order.
    parameters, buffers
        Shapes of the network's parameters and buffers by name.
    norms
        For each batch or group norm over hidden channels, by name: the name of the group of
        channels, and the number of entries for each channel.
    """

    groups: Mapping[str, Group]
    parameters: Shapes
    buffers: Shapes
    norms: Mapping[str, tuple[str, int]]

    @property
    def leaves(self) -> dict[str, tuple[int, ...]]:
        """Shapes of parameters and buffers by name."""
        return {**self.parameters, **self.buffers}

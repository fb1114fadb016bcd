"""The channels of a network: which hidden ones must move and go together, and where their entries lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bayesfed.trees import Shapes


@dataclass(frozen=True)
class Place:
    """An axis of a leaf that lists the channels of a group, channel after channel.

    Parameters
    ----------
    leaf
        Name of the parameter or buffer.
    axis
        From 0.
    inner
        Entries for each channel, next to each other: 1; H W where a picture (C, H, W) was flattened; m behind a depthwise convolution
        that makes m channels of each.
    makes
        Whether these are the outputs of a weight: rows of a matrix, filters of a convolution. Norms are taken of them.
    """

    leaf: str
    axis: int
    inner: int = 1
    makes: bool = False


@dataclass(frozen=True)
class Group:
    """Hidden channels with one order and one width: those of a layer, or of all layers that are added up.

    Parameters
    ----------
    name
        The first layer that makes them.
    size
        Channels.
    atom
        Channels that stay together, in blocks of so many next to each other: those of one norm group, whose mean they share. 1: each alone.
        Blocks change places as wholes, and channels only within their block.
    places
        Where their entries lie, in the order in which the network came to them.
    """

    name: str
    size: int
    atom: int
    places: tuple[Place, ...]


@dataclass(frozen=True)
class ChannelGraph:
    """All hidden channels of a network, as `channel_graph` finds them; the axes of inputs and outputs are never among them.

    Parameters
    ----------
    groups
        By name, in the network's order.
    parameters, buffers
        Shapes of the network's.
    norms
        By the name of a batch or group norm over hidden channels: the group's name and the entries for each channel.
    """

    groups: Mapping[str, Group]
    parameters: Shapes
    buffers: Shapes
    norms: Mapping[str, tuple[str, int]]

    @property
    def leaves(self) -> dict[str, tuple[int, ...]]:
        """Shapes of parameters and buffers."""
        return {**self.parameters, **self.buffers}

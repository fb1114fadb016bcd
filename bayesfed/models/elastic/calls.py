"""The argument of a rule: one operation of a network, with its tensors as shapes and axes, and what
is known of the network.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

from torch import Tensor, nn

from bayesfed.errors import ArgumentError
from bayesfed.models.elastic.axes import Axes, Axis, Ties
from bayesfed.trees import leaf_of

COUNTED = object()


@dataclass(frozen=True)
class Value:
    """A tensor in the traced network: its shape, its axes, and its name if it is a parameter or
    buffer.
    """

    shape: tuple[int, ...]
    axes: Axes
    leaf: str | None = None


class Network:
    """What is known of a network while it is traced.

    Attributes
    ----------
    ties
        Sets of channels.
    tensors
        Parameters and buffers by any of their names.
    leaves
        Those that are used, by their first name.
    made
        Names of the weights that make channels.
    norms
        Axis that each norm normalises, by its path.
    """

    def __init__(self, net: nn.Module) -> None:
        self.ties = Ties()
        self.tensors: dict[str, Tensor] = {
            **dict(net.named_parameters(remove_duplicate=False)),
            **dict(net.named_buffers(remove_duplicate=False)),
        }
        self._first = {id(value): name for name, value in reversed(self.tensors.items())}
        self.leaves: dict[str, Value] = {}
        self.made: set[str] = set()
        self.norms: dict[str, Axis | None] = {}

    def leaf(self, name: str) -> Value | None:
        """Return a parameter or buffer by any of its names, or None if there is none."""
        if name not in self.tensors:
            return None
        first, shape = self._first[id(self.tensors[name])], tuple(self.tensors[name].shape)
        if first not in self.leaves:
            axes = tuple(self.ties.new(length) for length in shape)
            self.leaves[first] = Value(shape, axes, first)
        return self.leaves[first]


@dataclass(frozen=True)
class Call:
    """One operation of a traced network.

    Parameters
    ----------
    where
        Name of the operation and its module, for error messages.
    network
        What is known of the whole network; rules add to it.
    args, named
        Positional and keyword arguments: a `Value` for each tensor, `COUNTED` for other results of
        the network, constants as they are.
    shape
        Shape of the result.
    module, path
        Module that is called, and its name. None and "" for a function or method.
    """

    where: str
    network: Network
    args: tuple[Any, ...]
    named: dict[str, Any]
    shape: tuple[int, ...]
    module: nn.Module | None
    path: str

    def value(self, place: int, name: str) -> Any:
        """Return an argument by position or name, or None if it is not given."""
        return self.args[place] if place < len(self.args) else self.named.get(name)

    def leaf(self, name: str) -> Value | None:
        """Return the module's parameter or buffer of that name, or None."""
        return self.network.leaf(leaf_of(self.path, name))

    def root(self, axis: Axis | None) -> Axis | None:
        """Return an axis as `Ties.root` does: None if it is not of hidden channels."""
        return self.network.ties.root(axis)

    def tie(self, left: Axis | None, right: Axis | None) -> None:
        """Tie two axes, as `Ties.tie` does."""
        self.network.ties.tie(left, right, self.where)

    def check_not_hidden(self, axes: Axes, expected: str, actual: str) -> None:
        """Raise `ArgumentError` if one of the axes is of hidden channels."""
        if any(self.root(axis) is not None for axis in axes):
            self.refuse(expected, actual, "one over H and W of (B, C, H, W)")

    def refuse(self, expected: str, actual: object, hint: str) -> NoReturn:
        """Raise `ArgumentError` for this operation."""
        raise ArgumentError(self.where, expected, actual, hint)

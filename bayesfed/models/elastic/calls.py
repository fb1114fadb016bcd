"""The argument of a rule: one operation of the network, with its tensors as shapes and axes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from torch import nn

from bayesfed.errors import ArgumentError
from bayesfed.models.elastic.axes import Axes, Axis, Ties

COUNTED = object()


@dataclass(frozen=True)
class Value:
    """A tensor in the traced network: its shape, its axes, and its name if it is a parameter or
    buffer.
    """

    shape: tuple[int, ...]
    axes: Axes
    leaf: str | None = None


@dataclass(frozen=True)
class Call:
    """One operation of a traced network.

    Parameters
    ----------
    where
        Name of the operation and its module, for error messages.
    ties
        Sets of channels of the whole network.
    args, named
        Positional and keyword arguments: a `Value` for each tensor, `COUNTED` for other results of
        the network, constants as they are.
    shape
        Shape of the result.
    module
        Module that is called. None for a function or method.
    leaf
        Function from a name to the module's parameter or buffer of that name, or None.
    made
        Names of the weights that make channels; rules add to it.
    norms
        Axes that are normalised; rules add to it.
    """

    where: str
    ties: Ties
    args: tuple[Any, ...]
    named: dict[str, Any]
    shape: tuple[int, ...]
    module: nn.Module | None
    leaf: Callable[[str], Value | None]
    made: set[str]
    norms: list[Axis | None]

    def value(self, place: int, name: str) -> Any:
        """Return an argument by position or name, or None if it is not given."""
        return self.args[place] if place < len(self.args) else self.named.get(name)

    def tie(self, left: Axis | None, right: Axis | None) -> None:
        """Tie two axes, as `Ties.tie` does."""
        self.ties.tie(left, right, self.where)

    def refuse(self, expected: str, actual: object, hint: str) -> NoReturn:
        """Raise `ArgumentError` for this operation."""
        raise ArgumentError(self.where, expected, actual, hint)

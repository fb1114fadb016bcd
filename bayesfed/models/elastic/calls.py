"""What a rule gets: one operation of the network, with its tensors as shapes and axes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from torch import nn

from bayesfed.errors import ArgumentError, complain
from bayesfed.models.elastic.axes import Axes, Axis, Ties

COUNTED = object()


@dataclass(frozen=True)
class Value:
    """A tensor on its way through the network: its shape, its axes, and its name if it is a leaf."""

    shape: tuple[int, ...]
    axes: Axes
    leaf: str | None = None


@dataclass(frozen=True)
class Call:
    """One operation: where it stands, its arguments and the shape of its result.

    Arguments are values for tensors, `COUNTED` for what the network works out as it runs, and constants as they are.
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
        """Return an argument, None where it is not given."""
        return self.args[place] if place < len(self.args) else self.named.get(name)

    def tie(self, left: Axis | None, right: Axis | None) -> None:
        """Make two axes the same."""
        self.ties.tie(left, right, self.where)

    def refuse(self, expected: str, actual: object, hint: str) -> NoReturn:
        """Raise `ArgumentError`."""
        raise ArgumentError(complain(self.where, expected=expected, actual=actual, hint=hint))

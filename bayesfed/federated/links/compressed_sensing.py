"""Linear maps of a leaf before it is sent over the air: the identity, or fewer random projections
(compressed sensing).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from bayesfed.inference.amp.projection import Projection
from bayesfed.keys import Key


class Sensing(Protocol):
    """A linear map that all clients and the server share, and its inverse. Since it is linear, the
    channel may add before the server inverts.
    """

    def forward(self, values: Tensor, name: str) -> Tensor:
        """Return the numbers ``(m,)`` to send for the numbers ``(D,)`` of the leaf `name`."""

    def back(self, received: Tensor, count: int, name: str) -> Tensor:
        """Return the `count` numbers of the leaf `name`, recovered from the numbers ``(m,)`` that
        were received.
        """


@dataclass(frozen=True)
class Plain:
    """The identity: the numbers themselves are sent."""

    def forward(self, values: Tensor, name: str) -> Tensor:
        """Return the numbers as they are."""
        return values

    def back(self, received: Tensor, count: int, name: str) -> Tensor:
        """Return the numbers as they are."""
        return received


@dataclass(frozen=True)
class Compressed:
    """Random projections, `rows` for every `columns` numbers, from which the server recovers a
    sparse sum.

    The sum is recovered by approximate message passing (Donoho et al., 2009). These are baselines 2
    and 3 of Xue and Lau, with A of 8 x 256, or 200 x 256 for their Table II. Leaves of at most
    `columns` numbers, such as biases, are sent as they are. The sum of sparse payloads with
    different supports is less sparse than each payload; whether it can still be recovered is not
    checked.

    Parameters
    ----------
    rows, columns
        Size of the matrix A, which all blocks of a leaf share.
    seed
        Seed that A is drawn from, together with the name of the leaf.
    """

    rows: int
    columns: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        self._projection("")

    def forward(self, values: Tensor, name: str) -> Tensor:
        """Return the projections of all blocks, ``(ceil(D / columns) rows,)``."""
        return (
            values
            if len(values) <= self.columns
            else self._projection(name).project(values).flatten()
        )

    def back(self, received: Tensor, count: int, name: str) -> Tensor:
        """Recover the blocks. For a block that diverges, its best iterate is taken."""
        if count <= self.columns:
            return received
        blocks = received.reshape(-1, self.rows)
        return self._projection(name).recover(blocks, count)

    def _projection(self, name: str) -> Projection:
        return Projection(Key(self.seed, "sensing", name), self.rows, self.columns)

"""Random projections of a leaf before it is sent over the air, fewer than its numbers (compressed
sensing).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bayesfed.inference.amp.projection import Projection
from bayesfed.keys import Key


@dataclass(frozen=True)
class Compressed:
    """Random projections, `rows` for every `columns` numbers, from which the server recovers a
    sparse sum. They are linear, so the channel may add them before the server inverts.

    The sum is recovered by approximate message passing (Donoho et al., 2009), with the minimax soft
    threshold. A is drawn from the name of the leaf. These are baselines 2
    and 3 of Xue and Lau, with A of 8 x 256, or 200 x 256 for their Table II. Leaves of at most
    `columns` numbers, such as biases, are sent as they are. The sum of sparse payloads with
    different supports is less sparse than each payload; whether it can still be recovered is not
    checked.

    Parameters
    ----------
    rows, columns
        Size of the matrix A, which all blocks of a leaf share.
    """

    rows: int
    columns: int = 256

    def __post_init__(self) -> None:
        self._projection("")

    def forward(self, values: Tensor, name: str) -> Tensor:
        """Return the projections of all blocks of a leaf, ``(ceil(D / columns) rows,)``."""
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
        return self._projection(name).recover(blocks, count, warn=False)[0]

    def _projection(self, name: str) -> Projection:
        return Projection(Key(0, "sensing", name), self.rows, self.columns)

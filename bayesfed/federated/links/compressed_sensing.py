"""Random projections of a leaf before it is sent over the air, fewer than its numbers (compressed
sensing).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesfed.errors.checks import checked_class, whole
from bayesfed.inference.amp.iteration import amp
from bayesfed.keys import Key


@checked_class({}, rows=whole(1, "200"), columns=whole(1, "256"))
@dataclass(frozen=True)
class Compressed:
    """Random projections, `rows` for every `columns` numbers, from which the server recovers a
    sparse sum. They are linear, so the channel may add them before the server inverts.

    A leaf is padded with zeros and cut into blocks of `columns` numbers, and each block x becomes
    A x with entries N(0, 1 / rows): the energy of a block is kept, and so the transmit power. A is
    drawn from the name of the leaf. The sum is recovered by approximate message passing (Donoho et
    al., 2009), with the minimax soft threshold. These are baselines 2
    and 3 of Xue and Lau, with A of 8 x 256, or 200 x 256 for their Table II. Leaves of at most
    `columns` numbers, such as biases, are sent as they are. The sum of sparse payloads with
    different supports is less sparse than each payload; whether it can still be recovered is not
    checked.

    Parameters
    ----------
    rows, columns
        Size of the matrix A, which all blocks of a leaf share.
    key
        Key of A. With the default every run has the same matrices, whatever its seed; a mean over
        seeds that is to hold for other matrices too takes another key for each.

    Raises
    ------
    ArgumentError
        If one side of A is below 1.

    Notes
    -----
    Blocks of 256 are too small for the large-system limit to hold, hence AMP is damped: of 100
    blocks with 30 non-zero entries, each sent as 200 numbers, a few do not settle without it. Its
    tolerance is as fine as a channel's noise allows.
    """

    rows: int
    columns: int = 256
    key: Key = Key(0, "sensing")

    def forward(self, values: Tensor, name: str) -> Tensor:
        """Return the projections of all blocks, ``(ceil(D / columns) rows,)``."""
        if len(values) <= self.columns:
            return values
        padded = torch.nn.functional.pad(values, (0, -len(values) % self.columns))
        return (padded.view(-1, self.columns) @ self._matrix(name, values).T).flatten()

    def back(self, received: Tensor, count: int, name: str) -> Tensor:
        """Recover the blocks of finite numbers. For a block that diverges, its best iterate is
        taken.
        """
        if count <= self.columns:
            return received
        blocks, matrix = received.reshape(-1, self.rows), self._matrix(name, received)
        return amp(matrix, blocks, tol=1e-4, damping=0.3).estimate.flatten()[:count]

    def _matrix(self, name: str, like: Tensor) -> Tensor:
        """Return A, drawn in float64 on the CPU so that every party has the same numbers."""
        generator = self.key.child(name).generator()
        draw = torch.randn(self.rows, self.columns, dtype=torch.float64, generator=generator)
        return (draw / math.sqrt(self.rows)).to(like)

"""What is sent of a leaf over the air: its numbers, or fewer random projections of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from bayesfed.inference.amp.iteration import Projection
from bayesfed.inference.amp.state_evolution import Denoiser
from bayesfed.keys import Key


class Sensing(Protocol):
    """A linear map that all clients and the server share, and its undoing; linear, so that it may be added first."""

    def forward(self, values: Tensor, name: str) -> Tensor:
        """Return what is sent ``(m,)`` of a leaf's numbers ``(D,)``."""
        ...

    def back(self, received: Tensor, count: int, name: str) -> Tensor:
        """Return `count` numbers of what was received."""
        ...


@dataclass(frozen=True)
class Plain:
    """Send the numbers themselves."""

    def forward(self, values: Tensor, name: str) -> Tensor:
        """Return the numbers."""
        return values

    def back(self, received: Tensor, count: int, name: str) -> Tensor:
        """Return them."""
        return received


@dataclass(frozen=True)
class Compressed:
    """Send `rows` random projections of every `columns` numbers; recover a sparse sum by approximate message passing (Donoho et al., 2009).

    The paper's baselines 2 and 3: A of 8 x 256, or 200 x 256 for its Table II. Leaves no longer than `columns`, the biases, are sent as they are.
    The sum of sparse payloads with unlike supports is less sparse than each of them: what recovery then makes of it, it does not know.

    Parameters
    ----------
    rows, columns
        Of A, shared by all blocks of a leaf and drawn from `seed`.
    denoiser
        Default the minimax soft threshold.
    """

    rows: int
    columns: int = 256
    denoiser: Denoiser | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        self._projection("")

    def forward(self, values: Tensor, name: str) -> Tensor:
        """Project block by block, ``(ceil(D / columns) rows,)``."""
        return values if len(values) <= self.columns else self._projection(name).project(values).flatten()

    def back(self, received: Tensor, count: int, name: str) -> Tensor:
        """Recover the blocks; one that diverges falls back to its best iterate."""
        if count <= self.columns:
            return received
        blocks = received.reshape(-1, self.rows)
        return self._projection(name).recover(blocks, count, self.denoiser, warn=False)[0]

    def _projection(self, name: str) -> Projection:
        return Projection(Key(self.seed, "sensing", name), self.rows, self.columns)

"""`Pace`: a damping that a client chooses by itself, from whether its last two moves agree.

Where the posterior is strongly correlated, the clients' moves point the same way round after round,
and a longer step is right; where all clients overshoot together, or the moves are noise, they turn
back, and a shorter one is (Kesten, 1958, "Accelerated stochastic approximation"). A fixed point has
no moves, so that it is the same at any pace.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from bayesfed.inference.variational.fusion.rule import Fused
from bayesfed.trees import Tree

# Leaves of a client's memory.
DAMPING, MOVE = "pace/damping", "pace/move"
# The damping of a client's second round. Stable up to 2 / (largest eigenvalue of the posterior's
# correlations).
STEADY = 0.3
# Cosines of two moves from which they agree, or turn back; the factors that follow; and the least
# damping.
AGREE, TURN = 0.2, -0.3
LONGER, SHORTER = 1.2, 0.7
LEAST = 0.05


@dataclass(frozen=True)
class Pace:
    """The damping of a client, and its last move; None before there was one."""

    damping: float = STEADY
    move: Tensor | None = None

    @classmethod
    def of(cls, memory: Tree) -> Self:
        """Return the pace that a client's memory has."""
        return cls(float(memory[DAMPING]), memory[MOVE]) if MOVE in memory else cls()

    def after(self, move: Tensor) -> Self:
        """Return the pace after one more move."""
        if self.move is None:
            return type(self)(self.damping, move)
        agreement = float(torch.nn.functional.cosine_similarity(move, self.move, dim=0))
        factor = LONGER if agreement > AGREE else SHORTER if agreement < TURN else 1.0
        return type(self)(min(1.0, max(LEAST, self.damping * factor)), move)

    def leaves(self) -> Tree:
        """Return what a client keeps."""
        return (
            {}
            if self.move is None
            else {DAMPING: torch.tensor(self.damping, dtype=torch.float64), MOVE: self.move}
        )


def moved(fused: Fused, before: Tree, after: Tree) -> Tensor:
    """Return how far the guide moved: means in their old sds; for draws without a location, natural
    parameters over their old sizes.
    """
    parts = list[Tensor]()
    for block in fused.layout.blocks:
        old, new = block.moments(fused.pair, before), block.moments(fused.pair, after)
        if old and new:
            parts.append(((new.mean - old.mean) / old.sd).reshape(-1))
        else:
            usual = block.read(fused.pair, after)
            parts += [
                ((usual[name] - leaf) / leaf.abs().clamp_min(1e-12)).reshape(-1)
                for name, leaf in block.read(fused.pair, before).items()
            ]
    return torch.cat(parts)

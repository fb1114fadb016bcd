"""What every message-passing method returns to `infer`, and the settings it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from bayesfed.errors import ArgumentError, complain

Start = Literal["zero", "hi", "lo"]
Backend = Literal["numba", "torch"]


@dataclass(frozen=True)
class Settings:
    """When to stop and how to start.

    Parameters
    ----------
    tol
        Messages count as settled when none changed by more than this, in nats.
    max_sweeps
        When to give up.
    damping
        Share of the old message kept at each update, in [0, 1).
    init
        Messages without a warm start: neutral, or the largest or smallest a message can be.
    backend
        Whose kernels run; already resolved.
    strip_rows
        Rows that strips solve exactly.
    """

    tol: float = 1e-4
    max_sweeps: int = 1000
    damping: float = 0.0
    init: Start = "zero"
    backend: Backend = "torch"
    strip_rows: int = 4


@dataclass(frozen=True)
class Outcome:
    """Flat results; B counts batch entries and copies together.

    Parameters
    ----------
    belief
        Binary models: log-odds ``(B, n)``. General tables: normalised log marginals ``(B, n, C)``, ``-inf`` in padded states.
    extrinsic
        The same without the variable's own evidence (general tables: up to a constant for each variable).
    state
        Messages to start from next time.
    sweeps, residual, converged
        Sweeps made, largest change of a message in the last one in nats, and whether that is within the tolerance.
    pairs
        Returns the marginal tables of the factors: tensors ``(B, F, *cards)``, one for each group of factors.
    log_z
        Returns log Z ``(B,)``: exact, Bethe or Kikuchi, as the method has it.
    """

    belief: Tensor
    extrinsic: Tensor
    state: Tensor
    sweeps: int
    residual: float
    converged: bool
    pairs: Callable[[], tuple[Tensor, ...]]
    log_z: Callable[[], Tensor]


def resumed(state: Tensor, shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Return a copy of messages to start from, of `like`'s dtype and device; raise `ArgumentError` if they belong elsewhere."""
    if not isinstance(state, Tensor) or tuple(state.shape) != tuple(shape) or not bool(state.isfinite().all()):
        actual = f"shape {tuple(state.shape)}" if isinstance(state, Tensor) else type(state).__name__
        raise ArgumentError(
            complain(
                "infer state", expected=f"finite messages of shape {tuple(shape)}", actual=actual, hint="that of the same graph, method and batch"
            )
        )
    return state.to(like, copy=True)

"""`Settings` and `Outcome`: what every message-passing method takes and returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from bayesfed.errors import ArgumentError

Start = Literal["zero", "hi", "lo"]


@dataclass(frozen=True)
class Settings:
    """When to stop and how to start.

    Parameters
    ----------
    tol
        Messages count as settled when none changed by more than this, in nats.
    max_sweeps
        Largest number of sweeps.
    damping
        Share of the old message that is kept at each update, in [0, 1).
    init
        First messages without a warm start: neutral, or the largest or smallest possible.
    strip_rows
        Rows that strips solve exactly.
    hide_bar
        Whether to show no progress bar; None: none unless standard error is a terminal.
    """

    tol: float = 1e-4
    max_sweeps: int = 1000
    damping: float = 0.0
    init: Start = "zero"
    strip_rows: int = 4
    hide_bar: bool | None = False

    def check_start(self) -> None:
        """Raise `ArgumentError` unless messages start neutral, as those of regions and tables."""
        if self.init != "zero":
            raise ArgumentError(
                "infer, regions and tables",
                "init='zero'",
                repr(self.init),
                "state= for other starts",
            )


@dataclass(frozen=True)
class Outcome:
    """The flat result of a method; B is the number of batch entries times that of copies.

    Parameters
    ----------
    belief
        Binary models: log-odds ``(B, n)``. General tables: normalised log marginals ``(B, n, C)``,
        ``-inf`` in padded states.
    extrinsic
        The same without the variable's own evidence (general tables: up to a constant for each
        variable).
    state
        Messages for a warm start.
    sweeps, residual
        Number of sweeps, and largest change of a message in the last one in nats.
    pairs
        Function that returns the marginal tables of the factors: tensors ``(B, F, *cards)``, one
        for each group of factors.
    log_z
        Function that returns log Z ``(B,)``: exact, Bethe's or Kikuchi's, depending on the method.
    exact
        Whether a method that is approximate elsewhere is exact here.
    later
        Function that returns the whole extrinsic part where some of it is NaN, since it needs more
        sums; None: `extrinsic` is whole.
    """

    belief: Tensor
    extrinsic: Tensor
    state: Tensor
    sweeps: int
    residual: float
    pairs: Callable[[], tuple[Tensor, ...]]
    log_z: Callable[[], Tensor]
    exact: bool = False
    later: Callable[[], Tensor] | None = None


def resumed(state: Tensor, shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Return a copy of the messages of an earlier run.

    Parameters
    ----------
    state
        The messages.
    shape
        The shape that they must have.
    like
        Tensor with the dtype and device of the result.

    Raises
    ------
    ArgumentError
        If the messages have another shape or are not finite.
    """
    if not isinstance(state, Tensor) or state.shape != tuple(shape) or not state.isfinite().all():
        raise ArgumentError(
            "infer state",
            f"finite messages of shape {tuple(shape)}",
            f"shape {tuple(state.shape)}" if isinstance(state, Tensor) else type(state).__name__,
            "that of the same graph, method and batch",
        )
    return state.to(like, copy=True)

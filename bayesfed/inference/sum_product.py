"""Sum-product on a support graph: Module B of D-Turbo-VBI (section III-D).

Messages are log-odds on directed edges. They leave one colour of variables at a time, so on a grid this
is checkerboard (red-black) message passing: exact on chains and trees, and on loopy graphs it does not
fall into the two-step oscillation of flooding. For a pair with coupling k the message is
``softplus(x + k) - softplus(x)`` of the sender's cavity log-odds x.

``extrinsic = belief - evidence`` is what the graph alone says about a variable: it is what Module A
receives as prior log-odds.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

from bayesfed.errors import ArgumentError, ConvergenceWarning, complain
from bayesfed.models.ising import Ising

Messages = Tensor


@dataclass(frozen=True)
class SumProduct:
    """What message passing found.

    Parameters
    ----------
    extrinsic, belief
        Log-odds, of the model's shape; ``belief = evidence + extrinsic``.
    messages
        ``(2 E,)``, forward edges first: hand them back for a warm start.
    sweeps, residual
        Sweeps made, and the largest change of a message in the last one.
    converged
        Whether the residual fell to the tolerance.
    """

    extrinsic: Tensor
    belief: Tensor
    messages: Messages
    sweeps: int
    residual: float
    converged: bool


def sum_product(
    model: Ising, evidence: Tensor, *, messages: Messages | None = None, tolerance: float = 1e-4, max_sweeps: int = 1000, warn: bool = True
) -> SumProduct:
    """Pass messages until they settle.

    Parameters
    ----------
    evidence
        Log-odds from outside the graph, of shape ``model.shape``; its dtype and device are used.
    messages
        Where to start; zeros by default.
    warn
        False leaves saying that it did not converge to the caller, by the result's `converged`.

    Raises
    ------
    ArgumentError
        If evidence or messages have the wrong shape or are not finite.

    Warns
    -----
    ConvergenceWarning
        If `max_sweeps` passed first.
    """
    if tuple(evidence.shape) != tuple(model.shape) or not bool(torch.isfinite(evidence).all()):
        raise ArgumentError(
            complain(
                "sum_product evidence",
                expected=f"finite log-odds of shape {tuple(model.shape)}",
                actual=tuple(evidence.shape),
                hint="0 where nothing is known",
            )
        )
    count = 2 * model.coupling.numel()
    if messages is not None and messages.shape != (count,):
        raise ArgumentError(
            complain("sum_product messages", expected=f"shape ({count},)", actual=tuple(messages.shape), hint="those of an earlier result")
        )
    unary = evidence.reshape(-1) + model.field.to(evidence)
    current = unary.new_zeros(count) if messages is None else messages.to(unary, copy=True)
    groups = _wiring(model, unary)
    residual, sweep = float("inf") if count else 0.0, 0
    while residual > tolerance and sweep < max_sweeps:
        sweep, change = sweep + 1, unary.new_zeros(())
        for edges, source, reverse, coupling in groups:
            belief = _gather(model, unary, current)
            cavity = belief[source] - current[reverse]
            fresh = _log1pexp(cavity + coupling) - _log1pexp(cavity)
            change = torch.maximum(change, (fresh - current[edges]).abs().max())
            current[edges] = fresh
        residual = float(change)
    if warn and residual > tolerance:
        warnings.warn(
            f"sum_product: residual {residual:.2g} after {sweep} sweeps, wanted {tolerance:.2g}; try more sweeps or a weaker coupling",
            ConvergenceWarning,
            stacklevel=2,
        )
    # Summed from messages, not as belief - evidence: it must not depend on a variable's own evidence, even by rounding.
    extrinsic = _gather(model, model.field.to(evidence), current).reshape(model.shape)
    return SumProduct(extrinsic, evidence + extrinsic, current, sweep, residual, residual <= tolerance)


def _wiring(model: Ising, like: Tensor) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Group the 2 E directed edges by the colour of their source: (edges, source, reverse edge, coupling)."""
    edges, source = model.coupling.numel(), torch.cat([model.edges[0], model.edges[1]])
    number = torch.arange(2 * edges, device=source.device)
    colour, coupling = model.colours[source], model.coupling.to(like).repeat(2)
    groups = ((colour == c).nonzero().reshape(-1) for c in model.colours.unique())
    return [(group, source[group], (number[group] + edges) % (2 * edges), coupling[group]) for group in groups if group.numel()]


def _gather(model: Ising, unary: Tensor, messages: Messages) -> Tensor:
    forward, backward = messages.reshape(2, -1)
    return unary.index_add(0, model.edges[1], forward).index_add_(0, model.edges[0], backward)


def _log1pexp(x: Tensor) -> Tensor:
    # torch's default threshold of 20 is wrong by 2e-9, more than exactness in float64 allows.
    return softplus(x, threshold=40.0)

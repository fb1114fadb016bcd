"""Belief propagation on any pairwise binary graph, one colour of variables at a time; exact sums on
forests, in two passes.

Messages are log-odds through agreement tables, ``(B, 2 E)`` in the order of `Wiring`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bayesfed.inference.sum_product.methods.edges.wiring import Wiring
from bayesfed.inference.sum_product.methods.outcome import Outcome, Settings, resumed
from bayesfed.inference.sum_product.methods.pairwise import agree, bethe, pair_tables
from bayesfed.inference.sum_product.methods.settle import Damper, settle
from bayesfed.models.random_fields.forest import Forest
from bayesfed.models.random_fields.ising import Ising

# The numba kernel multiplies odds. Where a sum of their logs could exceed this, products could
# overflow, and the torch kernel in logs is used.
SAFE = 600.0


def pass_edges(
    model: Ising, evidence: Tensor, settings: Settings, state: Tensor | None = None
) -> Outcome:
    """Run belief propagation.

    Parameters
    ----------
    model
        The pairwise model.
    evidence
        Log-odds ``(B, n)``, float32 or float64.
    settings
        When to stop and how to start.
    state
        Messages ``(B, 2 E)`` of an earlier run; not changed.
    """
    wiring = Wiring.of(model)
    half = wiring.half.to(evidence)
    unary = evidence + wiring.field.to(evidence)
    if state is not None:
        messages = resumed(state, (len(evidence), len(wiring.source)), evidence)
    else:
        start = {"zero": torch.zeros_like(half), "hi": half.abs(), "lo": -half.abs()}[settings.init]
        messages = start.expand(len(evidence), -1).clone()
    damper = Damper(settings.damping)
    degree = torch.zeros_like(wiring.field).index_add_(0, wiring.target, wiring.half.abs())
    if float(unary.abs().amax() if unary.numel() else 0) + float(degree.max()) < SAFE:
        from bayesfed.inference.sum_product.methods.edges.propagation_jit import stepper

        step = stepper(model, wiring, unary, messages, damper)
    else:
        step = _stepper(wiring, unary, messages, half, damper)
    sweeps, residual = (
        settle(step, settings, every=1, damper=damper) if len(wiring.source) else (0, 0.0)
    )
    return outcome(model, evidence, messages, sweeps, residual)


def outcome(
    model: Ising, evidence: Tensor, messages: Tensor, sweeps: int, residual: float
) -> Outcome:
    """Return the beliefs, pair tables and log Z of messages ``(B, 2 E)``."""
    wiring = Wiring.of(model)
    extrinsic = wiring.incoming(messages) + wiring.field.to(evidence)
    belief = evidence + extrinsic

    def edges() -> tuple[Tensor, Tensor, Tensor]:
        count = len(wiring.source) // 2
        left, right = wiring.source[:count], wiring.target[:count]
        return (
            belief[:, left] - messages[:, count:],
            belief[:, right] - messages[:, :count],
            wiring.half[:count].to(belief),
        )

    def log_z() -> Tensor:
        return bethe(belief, torch.bincount(wiring.target, minlength=len(wiring.field)), [edges()])

    return Outcome(
        belief,
        extrinsic,
        messages,
        sweeps,
        residual,
        lambda: (pair_tables(*edges()),),
        log_z,
    )


def _stepper(
    wiring: Wiring, unary: Tensor, messages: Tensor, half: Tensor, damper: Damper
) -> Callable[[int], float]:
    groups = [
        (edges, wiring.source[edges], wiring.target[edges], wiring.reverse(edges), half[edges])
        for edges in wiring.groups
    ]

    def step(count: int) -> float:
        change = 0.0
        for _ in range(count):
            # Summed anew every sweep, so that rounding errors do not accumulate.
            belief, change = unary + wiring.incoming(messages), 0.0
            for edges, source, target, reverse, coupling in groups:
                old = messages[:, edges]
                fresh = agree(belief[:, source] - messages[:, reverse], coupling)
                fresh = fresh + damper.share * (old - fresh)
                messages[:, edges] = fresh
                belief.index_add_(1, target, fresh - old)
                change = max(change, float((fresh - old).abs().max()))
        return change

    return step


def pass_forest(model: Ising, evidence: Tensor) -> Outcome:
    """Sum a model without cycles exactly, in float64, from the leaves to the roots and back;
    evidence ``(B, n)`` in log-odds.
    """
    from bayesfed.inference.sum_product.methods.edges.propagation_jit import PARALLEL, TWO_PASSES
    from bayesfed.inference.sum_product.methods.jit import chosen

    wiring, forest = Wiring.of(model), Forest.of(model)
    belief = evidence.double() + wiring.field
    messages = belief.new_zeros(len(belief), len(wiring.source))
    graph = (forest.order, forest.parent, forest.edge, wiring.source, wiring.half)
    chosen(TWO_PASSES, belief.numel() if len(belief) > 1 else 0, PARALLEL)(
        *(values.numpy() for values in (*graph, belief, messages))
    )
    return outcome(model, evidence.double(), messages, 1, 0.0)

"""Bits whose state was observed, for methods that take finite log-odds.

Infinite log-odds become so large that no coupling outweighs them: in float64 the other state then
weighs nothing.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from bayesfed.inference.sum_product.methods.outcome import Outcome
from bayesfed.models.random_fields.grid import Grid
from bayesfed.models.random_fields.ising import Ising

# Log-odds in nats of what was observed, beyond all that neighbours and field can say.
CERTAIN = 1e4


def finite(model: Grid | Ising, evidence: Tensor) -> Tensor:
    """Return log-odds with large numbers in place of infinite ones; as they are if none is.

    Parameters
    ----------
    model
        The model of bits.
    evidence
        Log-odds, infinite where a state was observed.
    """
    observed = evidence.isinf()
    if not bool(observed.any()):
        return evidence
    ising = model.ising()
    count = ising.field.numel()
    pull = ising.field.detach().double().abs()
    for end in ising.edges:
        pull = pull.index_add(0, end, ising.coupling.detach().double().abs())
    largest = CERTAIN + 2 * float(pull.max() if count else 0.0)
    return torch.where(observed, evidence.sign() * largest, evidence)


def with_observed(outcome: Outcome, evidence: Tensor, plain: Tensor) -> Outcome:
    """Return the outcome of finite log-odds for infinite ones.

    A bit that was observed has infinite log-odds, and its own evidence adds nothing to log Z.

    Parameters
    ----------
    outcome
        The outcome of `plain`.
    evidence, plain
        Log-odds, infinite and finite where a state was observed.
    """
    flat = evidence.reshape(outcome.belief.shape)
    observed = flat.isinf()
    known = plain.reshape(flat.shape).double().clamp_min(0.0)
    added = torch.where(observed, known, 0.0).flatten(1).sum(1)
    belief = torch.where(observed, flat.to(outcome.belief), outcome.belief)
    return replace(outcome, belief=belief, log_z=lambda: outcome.log_z() - added)

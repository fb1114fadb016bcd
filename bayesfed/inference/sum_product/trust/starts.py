"""Runs from several starts, which show whether marginals depend on where the messages begin."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from bayesfed.inference.sum_product.dispatch import Run
from bayesfed.inference.sum_product.graphs.flat import Tables
from bayesfed.inference.sum_product.methods.outcome import Outcome, Settings
from bayesfed.inference.sum_product.result import Method, Model
from bayesfed.keys import Key

# Random starts of graphs whose fixed points no two runs bracket.
STARTS = 4


def multistable_share(
    model: Model, method: Method, run: Run, settings: Settings, outcome: Outcome
) -> float:
    """Return the share of variables whose probability differs by more than 0.01 between runs.

    Parameters
    ----------
    model, method, run, settings
        The graph, and how it was served.
    outcome
        The run that is there already.
    """
    if method == "exact":
        return 0.0
    # With a loose tolerance, an unfinished run could pass for another fixed point.
    sharp = replace(
        settings, tol=min(settings.tol, 1e-4), max_sweeps=max(settings.max_sweeps, 1000)
    )
    if isinstance(model, Tables) or method == "gbp":
        beliefs = [
            outcome.belief,
            *(run(replace(sharp, init="zero"), state).belief for state in _random(outcome.state)),
        ]
        return _spread(
            [belief.exp() if isinstance(model, Tables) else belief.sigmoid() for belief in beliefs]
        )
    high, low = (run(replace(sharp, init=init), None).belief.sigmoid() for init in ("hi", "lo"))
    if model.attractive():
        return float((high - low > 0.01).double().mean())
    others = (
        [run(sharp, state).belief.sigmoid() for state in _random(outcome.state)]
        if outcome.state.ndim == 2
        else []
    )
    return _spread([outcome.belief.sigmoid(), high, low, *others])


def _spread(runs: list[Tensor]) -> float:
    together = torch.stack(runs)
    apart = together.amax(0) - together.amin(0) > 0.01
    return float((apart.any(-1) if apart.ndim == 3 else apart).double().mean())


def _random(state: Tensor) -> list[Tensor]:
    """Return random log messages of the shape of a state."""
    generator = Key(0, "certify").generator()
    return [
        (4 * torch.rand(state.shape, generator=generator, dtype=torch.float64) - 2).to(state)
        for _ in range(STARTS)
    ]

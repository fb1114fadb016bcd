"""Antithetic draws: every second step sees the draws of the one before, mirrored at their mean.

Each step's draw has the guide's distribution, so every gradient is as unbiased as before, and what is odd in the noise cancels between the two:
for a quadratic log density all of the noise in the mean's gradient, and the part of the sd's that grows with the distance to the optimum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro.distributions as dist
import torch
from pyro.poutine.messenger import Messenger

from bayesfed.inference.variational.layout import base_of

GAUSSIANS = dist.Normal | dist.MultivariateNormal | dist.LowRankMultivariateNormal


class Mirror(Messenger):
    """Run a guide; `step(number)` makes odd numbers mirror the draws of the number before."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device, self.mirrored = device, False
        self.state = self._now()

    def step(self, number: int) -> None:
        """Begin a step."""
        self.mirrored = bool(number % 2)
        if self.mirrored:
            torch.set_rng_state(self.state[0])
            if self.device.type == "cuda":
                torch.cuda.set_rng_state(self.state[1], self.device)
        else:
            self.state = self._now()

    def _now(self) -> tuple[torch.Tensor, ...]:
        others = (torch.cuda.get_rng_state(self.device),) if self.device.type == "cuda" else ()
        return (torch.get_rng_state(), *others)

    def _pyro_sample(self, msg: Any) -> None:
        # Before it is recorded: afterwards an outer trace would hold the draw itself, and the model see that.
        if self.mirrored and msg["value"] is None and isinstance(base := base_of(msg["fn"]), GAUSSIANS):
            msg["value"] = 2 * base.loc - msg["fn"](*msg["args"], **msg["kwargs"])


def mirrored(device: torch.device, wanted: bool) -> Callable[[int, Callable[..., Any]], Callable[..., Any]]:
    """Return what wraps the guide of a step, by its number; without `wanted`, it is the guide itself."""
    handler = Mirror(device)

    def wrap(number: int, guide: Callable[..., Any]) -> Callable[..., Any]:
        if not wanted:
            return guide
        handler.step(number)
        wrapped: Callable[..., Any] = handler(guide)
        return wrapped

    return wrap

"""Antithetic draws: every second step uses the draws of the step before, mirrored at their mean.

Each step's draw has the guide's distribution, so every gradient stays unbiased. The odd part of the
noise cancels between the two steps: for a quadratic log density, all noise in the gradient of the
mean, and the part of the sd's that grows with the distance to the optimum.
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
    """Mirror a guide's draws in steps of odd numbers at those of the step before.

    Parameters
    ----------
    device
        Where the guide draws: the state of its generator is replayed.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device, self.mirrored = device, False
        self.state = self._now()

    def at(self, number: int, guide: Callable[..., Any]) -> Callable[..., Any]:
        """Begin a step, and return its guide."""
        self.mirrored = bool(number % 2)
        if self.mirrored:
            torch.set_rng_state(self.state[0])
            if self.device.type == "cuda":
                torch.cuda.set_rng_state(self.state[1], self.device)
        else:
            self.state = self._now()
        mirrored: Callable[..., Any] = self(guide)
        return mirrored

    def _now(self) -> tuple[torch.Tensor, ...]:
        others = (torch.cuda.get_rng_state(self.device),) if self.device.type == "cuda" else ()
        return (torch.get_rng_state(), *others)

    def _pyro_sample(self, msg: Any) -> None:
        # Before the draw is recorded: later, an outer trace and so the model would have the draw
        # itself.
        if (
            self.mirrored
            and msg["value"] is None
            and isinstance(base := base_of(msg["fn"]), GAUSSIANS)
        ):
            msg["value"] = 2 * base.loc - msg["fn"](*msg["args"], **msg["kwargs"])

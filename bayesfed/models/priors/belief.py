"""The variational family: what is believed about each site, and the Pyro guide that draws from it.

Both guides of D-Turbo-VBI have one form, ``q(w) q(s) q(rho | s)``: a Gaussian, a Bernoulli and one
Gamma for each value of the support. The published mean-field guide q(w) q(rho) q(s) is the case
in which the two Gammas are equal; the structured guide lets them differ.

Notation: mean, sd = mu, sigma of (6); shapes, rates = a-tilde, b-tilde of (7), entry 0 given s = 0
and entry 1 given s = 1; log_odds = logit of pi-tilde of (8).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor


@dataclass(frozen=True)
class SiteBelief:
    """The posterior of one ``(M, N)`` weight matrix.

    Parameters
    ----------
    mean, log_odds
        ``(M, N)``.
    sd
        ``(M, N)``, or a scalar when the layer shares one.
    shapes, rates
        ``(2, M, N)``, or anything that broadcasts to it.
    """

    mean: Tensor
    sd: Tensor
    log_odds: Tensor
    shapes: Tensor
    rates: Tensor

    @property
    def second_moment(self) -> Tensor:
        """``E[w^2] = mu^2 + sigma^2``, (M, N)."""
        return self.mean.square() + self.sd.square()

    @property
    def inclusion(self) -> Tensor:
        """Probability that each support is 1, ``(M, N)``."""
        return torch.sigmoid(self.log_odds)

    @property
    def expected_precision(self) -> Tensor:
        """``<rho>`` under q, ``(M, N)``."""
        off, on = self.shapes / self.rates
        return torch.lerp(off, on, self.inclusion)

    @property
    def active(self) -> Tensor:
        """The transmitted model's mask: q(s) > 1/2, ``(M, N)`` booleans."""
        return self.log_odds > 0

    def given(self, support: Tensor) -> tuple[Tensor, Tensor]:
        """Return the Gamma's (shape, rate) for drawn supports."""
        on = support.bool()
        pairs = (pair.expand(2, *self.mean.shape) for pair in (self.shapes, self.rates))
        shape, rate = (torch.where(on, pair[1], pair[0]) for pair in pairs)
        return shape, rate


Belief = Mapping[str, SiteBelief]
"""A posterior by the name of the parameter."""


def guide(belief: Belief) -> None:
    """Run as a Pyro guide: draw w, s and rho of every site."""
    for name, site in belief.items():
        pyro.sample(f"{name}.w", dist.Normal(site.mean, site.sd.expand_as(site.mean)).to_event(2))
        support = pyro.sample(f"{name}.s", dist.Bernoulli(logits=site.log_odds).to_event(2))
        pyro.sample(f"{name}.rho", dist.Gamma(*site.given(support)).to_event(2))

"""The variational family of D-Turbo-VBI: the posterior of each site, and the Pyro guide that draws
from it.

Both guides of D-Turbo-VBI have the form ``q(w) q(s) q(rho | s)``: a Gaussian, a Bernoulli and one
Gamma for each value of the support. In the published mean-field guide q(w) q(rho) q(s) the two
Gammas are equal; in the structured guide they may differ.

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

from bayesfed.models.priors.precisions import of_support


@dataclass(frozen=True)
class SiteBelief:
    """The posterior of one ``(M, N)`` weight matrix.

    Parameters
    ----------
    mean
        ``(M, N)`` means of the weights.
    sd
        Standard deviations of the weights: ``(M, N)``, or a scalar for the whole layer.
    log_odds
        ``(M, N)`` log-odds of the supports.
    shapes, rates
        Shapes and rates of the Gammas: ``(2, M, N)``, or anything that broadcasts to it.
    """

    mean: Tensor
    sd: Tensor
    log_odds: Tensor
    shapes: Tensor
    rates: Tensor

    @property
    def second_moment(self) -> Tensor:
        """``E[w^2] = mu^2 + sigma^2``, ``(M, N)``."""
        return self.mean.square() + self.sd.square()

    @property
    def inclusion(self) -> Tensor:
        """Probability that each support is 1, ``(M, N)``."""
        return torch.sigmoid(self.log_odds)

    @property
    def expected_precision(self) -> Tensor:
        """Mean of rho under q, ``(M, N)``."""
        off, on = self.shapes / self.rates
        return torch.lerp(off, on, self.inclusion)

    @property
    def active(self) -> Tensor:
        """Mask of the transmitted model, ``q(s = 1) > 1/2``: ``(M, N)`` booleans."""
        return self.log_odds > 0

    def given(self, support: Tensor) -> tuple[Tensor, Tensor]:
        """Return the Gamma's (shape, rate) for drawn supports."""
        return of_support(support, self.shapes), of_support(support, self.rates)


Belief = Mapping[str, SiteBelief]
"""The posterior of each parameter, by the parameter's name."""


def guide(belief: Belief) -> None:
    """Run as a Pyro guide: draw w, s and rho of every site."""
    for name, site in belief.items():
        pyro.sample(f"{name}.w", dist.Normal(site.mean, site.sd.expand_as(site.mean)).to_event(2))
        support = pyro.sample(f"{name}.s", dist.Bernoulli(logits=site.log_odds).to_event(2))
        pyro.sample(f"{name}.rho", dist.Gamma(*site.given(support)).to_event(2))

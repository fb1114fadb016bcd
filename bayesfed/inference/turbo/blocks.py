"""Closed-form block updates of q(s) and q(rho), and the exact divergence that they lower.

Source: D-Turbo-VBI (14)-(17), for *real* weights. For real ``w ~ N(0, 1/rho)``, (17) must read
``a~ = pi~ a + (1 - pi~) a-bar + 1/2`` and ``b~ = E[w^2]/2 + pi~ b + (1 - pi~) b-bar``. The paper
prints the complex-valued form (+1, no halving), with which the negative ELBO can rise; `as_printed`
keeps that form for comparison.

Notation: second_moment = mu^2 + sigma^2; prior_log_odds = logit(pi) of (10), Module B's message;
gammas.shapes = (a-bar, a), gammas.rates = (b-bar, b).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from bayesfed.models import Gammas, SiteBelief


def _pair(values: tuple[float, float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device).reshape(2, 1, 1)


def support_evidence(second_moment: Tensor, gammas: Gammas) -> Tensor:
    """Return ``log Z_1 - log Z_0``, the evidence for the slab against the spike, in the shape of
    `second_moment`.

    ``Z_s = b_s^a_s / Gamma(a_s) * Gamma(a_s + 1/2) / (b_s + E[w^2] / 2)^(a_s + 1/2)``. The
    precision is integrated out, so this is the message from Module A to Module B under the
    structured guide.

    Parameters
    ----------
    second_moment
        E[w^2], of any shape.
    gammas
        The prior on precisions: shapes and rates of spike and slab.
    """
    logs = [
        a * math.log(b)
        - math.lgamma(a)
        + math.lgamma(a + 0.5)
        - (a + 0.5) * torch.log(b + second_moment / 2)
        for a, b in zip(gammas.shapes, gammas.rates, strict=True)
    ]
    return logs[1] - logs[0]


@dataclass(frozen=True)
class Structured:
    """The guide q(s) q(rho | s): a tighter bound, in closed form, without hysteresis."""

    def start(self, belief: SiteBelief, gammas: Gammas) -> SiteBelief:
        """Set both Gammas to their optimum given q(w)."""
        shapes = _pair(gammas.shapes, belief.mean) + 0.5
        return replace(
            belief, shapes=shapes, rates=_pair(gammas.rates, belief.mean) + belief.second_moment / 2
        )

    def update(self, belief: SiteBelief, prior_log_odds: Tensor, gammas: Gammas) -> SiteBelief:
        """Set q(s) and both Gammas to their joint optimum given q(w)."""
        log_odds = prior_log_odds + support_evidence(belief.second_moment, gammas)
        return replace(self.start(belief, gammas), log_odds=log_odds)


@dataclass(frozen=True)
class MeanField:
    """The published guide q(rho) q(s): (14), (15), then (17).

    Bistable: while q(s) is near 1 the precision stays of order one and keeps it there.

    Parameters
    ----------
    as_printed
        Whether to use (17) as printed, which is for complex weights.
    """

    as_printed: bool = False

    def start(self, belief: SiteBelief, gammas: Gammas) -> SiteBelief:
        """Set q(rho) by (17) at the current q(s)."""
        inclusion, half = belief.inclusion, 1.0 if self.as_printed else 0.5
        (spike_shape, slab_shape), (spike_rate, slab_rate) = gammas.shapes, gammas.rates
        shape = inclusion * slab_shape + (1 - inclusion) * spike_shape + half
        rate = half * belief.second_moment + inclusion * slab_rate + (1 - inclusion) * spike_rate
        return replace(
            belief, shapes=shape.expand(2, *shape.shape), rates=rate.expand(2, *rate.shape)
        )

    def update(self, belief: SiteBelief, prior_log_odds: Tensor, gammas: Gammas) -> SiteBelief:
        """Update q(s) by (14), then q(rho) by (17)."""
        return self.start(self.support(belief, prior_log_odds, gammas), gammas)

    def support(self, belief: SiteBelief, prior_log_odds: Tensor, gammas: Gammas) -> SiteBelief:
        """Update q(s) alone, (14) with (15), in logs."""
        shape, rate = belief.shapes[1], belief.rates[1]
        mean, mean_log = shape / rate, torch.digamma(shape) - torch.log(rate)
        spike, slab = (
            a * math.log(b) - math.lgamma(a) + (a - 1) * mean_log - b * mean
            for a, b in zip(gammas.shapes, gammas.rates, strict=True)
        )
        return replace(belief, log_odds=prior_log_odds + slab - spike)


# A guide's closed-form updates of q(s) and q(rho | s), given q(w): `start` returns the belief with
# the q(rho | s) from before the first update, `update` with new ones, for the prior's log-odds.
Blocks = Structured | MeanField


def kl_divergence(belief: SiteBelief, prior_log_odds: Tensor, gammas: Gammas) -> Tensor:
    """Return the exact ``KL(q(w, rho, s) || p(w, rho, s))`` of one site under Module A's prior
    (11), a scalar.

    The negative ELBO is this plus the expected negative log likelihood, which depends on q(w)
    alone.

    Parameters
    ----------
    belief
        q of the site, ``(M, N)``.
    prior_log_odds
        ``(M, N)``, logit(pi) of (10).
    gammas
        The site's prior on precisions.
    """
    on = torch.stack([1 - belief.inclusion, belief.inclusion])
    log_q = torch.stack([logsigmoid(-belief.log_odds), logsigmoid(belief.log_odds)])
    log_p = torch.stack([logsigmoid(-prior_log_odds), logsigmoid(prior_log_odds)])
    a, b = _pair(gammas.shapes, belief.mean), _pair(gammas.rates, belief.mean)
    shape, rate = belief.shapes, belief.rates
    mean, mean_log = shape / rate, torch.digamma(shape) - torch.log(rate)
    gamma = (
        (shape - a) * torch.digamma(shape)
        - torch.lgamma(shape)
        + torch.lgamma(a)
        + a * (torch.log(rate) - torch.log(b))
        + (b - rate) * mean
    )
    # E[log q(w)] - E[log p(w | rho)]; the two log(2 pi) / 2 cancel.
    weight = -0.5 - torch.log(belief.sd) - mean_log / 2 + mean * belief.second_moment / 2
    return (on * (log_q - log_p + gamma + weight)).sum()

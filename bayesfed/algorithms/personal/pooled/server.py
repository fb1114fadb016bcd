"""`Population`: empirical Bayes for the mean and the widths of a population, from sums over its
clients.

Notation: N(m_k, v_k), the posterior of an entry at client k; N(mu, s^2), the population. The next
mean is that of the m_k. EM's step for the width is ``s^2 <- mean (v_k + (m_k - mu)^2)``. Where rows
determine little, v_k is near s^2 and EM hardly moves; MacKay's (1992, section 3) has the same fixed
point and moves faster: ``s^2 <- mean (m_k - mu)^2 / (1 - mean v_k / s^2)``, whose denominator is
the share of the entry that rows determine. Restricted maximum likelihood (Patterson and
Thompson, 1971) takes 1 / K from it for K clients, since mu is learned from the same rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bayesfed.algorithms.personal.bayes.objective import MEAN, RHO, sds
from bayesfed.federated import Reducer
from bayesfed.federated.aggregation.servers import summed
from bayesfed.federated.core import MODEL, Info, of, owned
from bayesfed.trees import Tree

# Owners in what is sent: squared distance of an entry's mean from the population's that the
# client received, and the entry's variance.
SQUARE, VARIANCE = "square", "variance"
# Least share of an entry that rows determine at which its width is learned.
LEAST = 1e-3


@dataclass(frozen=True)
class Population:
    """Average shared parameters, and learn the population of the others.

    Parameters
    ----------
    by_layer
        Whether all entries of a parameter share one width.
    widths
        Whether widths are learned. If not, they stay as they are.
    restricted
        Whether widths are those of restricted maximum likelihood.
    means
        Whether means are learned. If not, they stay as they are.
    """

    by_layer: bool
    widths: bool
    restricted: bool = False
    means: bool = True

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Return the next state. A round in which no client has data changes nothing."""
        total = summed(reducer, "moments")
        if not total.weighs:
            return state, {}
        shared, means, squares, variances = (
            owned(total.mean(), part) for part in (MODEL, MEAN, SQUARE, VARIANCE)
        )
        result = dict(state) | of(MODEL, shared)
        if self.means:
            result |= of(MEAN, means)
        if self.widths:
            learned, old = 1 / total.number() if self.restricted else 0.0, sds(state)
            for name, centre in owned(state, MEAN).items():
                # About the new mean; coarse codecs can leave less than nothing.
                spread = (squares[name] - (means[name] - centre).square()).clamp_min(0)
                variance = self._variance(spread, variances[name], old[name].square(), learned)
                result[f"{RHO}/{name}"] = rho_of(variance.sqrt())
        return result, {}

    def _variance(self, spread: Tensor, variance: Tensor, old: Tensor, learned: float) -> Tensor:
        """Return the next variances of a parameter's entries; they stay where rows determine
        nothing.
        """
        determined = 1 - variance / old.clamp_min(1e-30) - learned
        if self.by_layer:
            spread, determined = spread.mean().expand_as(old), determined.mean().expand_as(old)
        return torch.where(determined > LEAST, spread / determined.clamp_min(LEAST), old).clamp_min(
            1e-8
        )


def rho_of(sd: Tensor) -> Tensor:
    """Return rho with ``sd = log(1 + exp(rho))``. It is finite for sds of 0."""
    return torch.where(sd > 20, sd, sd.expm1().log()).clamp_min(-200)

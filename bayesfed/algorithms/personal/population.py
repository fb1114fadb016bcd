"""A population of clients' normals, learned from sums: what clients send of a posterior, and the server that matches its moments.

Notation: q_i, a client's posterior N(m_i, v_i) of an entry; w, the population N(mu, s^2). The mean of KL(q_i || w) is least at the mean and the
variance of the mixture of the q_i, ``mu = mean m_i`` and ``s^2 = mean (v_i + (m_i - mu)^2)``: the M step of empirical Bayes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bayesfed.algorithms.personal.bayes.objective import MEAN, RHO, sds
from bayesfed.federated.aggregation.servers import summed
from bayesfed.federated.core.protocols import Info
from bayesfed.federated.core.update import Reducer
from bayesfed.trees import Tree, under

# Prefix of an entry's second moment about the mean that the client received, in what is sent: a payload has the names of the message.
SQUARE = RHO


def moments(own: Tree, message: Tree) -> Tree:
    """Return a posterior's means, and its second moments about the means of the message, which lose less to rounding than those about zero."""
    mean = under(own, MEAN)
    squares = {SQUARE + name: sd.square() + (mean[name] - message[MEAN + name]).square() for name, sd in sds(own).items()}
    return {MEAN + name: leaf for name, leaf in mean.items()} | squares


@dataclass(frozen=True)
class Matching:
    """Go a share of the way to the normals with the mean and the variance of the mixture of the clients' posteriors.

    Leaves that belong to no normal are replaced by their mean over clients.

    Parameters
    ----------
    rate
        The share: beta of pFedBayes.
    by_leaf
        Whether all entries of a parameter share one variance, the mean of theirs.
    widths
        Whether the variances are learned. If not, they stay as they are.
    """

    rate: float
    by_leaf: bool = False
    widths: bool = True

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Return the next state. A round in which no client has data changes nothing."""
        total = summed(reducer, "moments")
        if not total.weighs:
            return state, {}
        mean = total.mean()
        means = under(state, MEAN)
        result: dict[str, Tensor] = {name: mean[name] for name in state if not name.startswith((MEAN, RHO))}
        for name, old in means.items():
            new = mean[MEAN + name]
            # Coarse codecs can leave less than nothing.
            variance = (mean[SQUARE + name] - (new - old).square()).clamp_min(1e-8)
            if self.by_leaf:
                variance = variance.mean().expand_as(variance)
            result |= {MEAN + name: new, RHO + name: rho_of(variance.sqrt()) if self.widths else state[RHO + name]}
        return {name: leaf if leaf is result[name] else leaf.lerp(result[name], self.rate) for name, leaf in state.items()}, {}


def rho_of(sd: Tensor) -> Tensor:
    """Return rho with ``sd = log(1 + exp(rho))``. It is finite for sds of 0."""
    return torch.where(sd > 20, sd, sd.expm1().log()).clamp_min(-200)

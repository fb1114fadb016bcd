"""pFedBayes (Zhang, Li, Li, Guo and Shao, "Personalized federated learning via variational Bayesian
inference", 2022).

=====================================================  =============================================
paper                                                  here
=====================================================  =============================================
w, the shared distribution N(mu, softplus(rho)^2)      the server's state: ``mean/NAME`` and
                                                       ``rho/NAME``
q_i, a client's own posterior                          a client's memory, ``own/mean/NAME`` and
                                                       ``own/rho/NAME``
zeta KL(q_i || w), (5)                                 `strength`
min over q_i, then over the client's copy of w         both in one step of `PersonalElbo`, each with
                                                       the other held; both begin as w
beta, the server's averaging                           `server_rate`
=====================================================  =============================================

``prior_update="moments"`` is a departure: w is held while a client fits q_i, and the server then
minimises the mean of KL(q_i || w) over w exactly. The minimum is at the mean and the variance of
the mixture of the q_i.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from bayesfed.algorithms.composing import compose
from bayesfed.algorithms.personal.bayes.objective import MEAN, OWN, RHO, PersonalElbo, sds
from bayesfed.algorithms.personal.bayes.posterior import WeightPosterior
from bayesfed.algorithms.registry import recipe
from bayesfed.compress import Codec
from bayesfed.data import Dataset
from bayesfed.errors import ArgumentError
from bayesfed.federated import (
    Adam,
    Algorithm,
    Average,
    Descent,
    Fit,
    Kind,
    Link,
    LocalOptions,
    Model,
    Personal,
    Reducer,
    Training,
)
from bayesfed.federated.aggregation.servers import summed
from bayesfed.federated.core import Info
from bayesfed.federated.training.batch_norm import travelling
from bayesfed.keys import Key
from bayesfed.models import Categorical, Likelihood
from bayesfed.trees import Tree, under

PriorUpdate = Literal["gradient", "moments"]
# Prefix of an entry's second moment about the mean that the client received, in what is sent: a
# payload has the names of the message.
SQUARE = RHO


@dataclass(frozen=True)
class OwnPosterior:
    """Steps on a client's own posterior, which stays in its memory.

    Parameters
    ----------
    descent
        Steps on `PersonalElbo`.
    kind
        What is sent: "value", the client's copy of the shared distribution, trained along with the
        posterior; "moments", the first two moments of the posterior.
    """

    descent: Descent
    kind: Kind = "value"

    @property
    def uses_global_randomness(self) -> bool:
        """Whether the descent draws from torch's global generator."""
        return self.descent.uses_global_randomness

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Train from the message. A client without rows keeps no posterior of its own."""
        fit = self.descent.train(
            message | {OWN + name: leaf for name, leaf in message.items()}, data, key, options
        )
        kept = {name: leaf for name, leaf in fit.payload.items() if name.startswith(OWN)}
        sent = (
            moments(under(kept, OWN), message)
            if self.kind == "moments"
            else {name: fit.payload[name] for name in message}
        )
        return fit._replace(payload=sent, memory=kept if len(data) else {})


def moments(own: Tree, message: Tree) -> Tree:
    """Return a posterior's means, and its second moments about the means of the message, which lose
    less to rounding than those about zero.
    """
    mean = under(own, MEAN)
    squares = {
        SQUARE + name: sd.square() + (mean[name] - message[MEAN + name]).square()
        for name, sd in sds(own).items()
    }
    return {MEAN + name: leaf for name, leaf in mean.items()} | squares


@dataclass(frozen=True)
class Partly:
    """Go a share of the way to the clients' mean.

    Parameters
    ----------
    rate
        The share: beta of the paper.
    """

    rate: float

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Return the next state. A round in which no client has data changes nothing."""
        mean, info = Average().step(state, reducer, round)
        return {name: leaf.lerp(mean[name], self.rate) for name, leaf in state.items()}, info


@dataclass(frozen=True)
class Matching:
    """Go a share of the way to the normals with the mean and the variance of the mixture of the
    clients' posteriors.

    Parameters
    ----------
    rate
        The share: beta of the paper.
    """

    rate: float

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Return the next state. A round in which no client has data changes nothing."""
        total = summed(reducer, "moments")
        if not total.weighs:
            return state, {}
        mean = total.mean()
        result: dict[str, Tensor] = {}
        for name, old in under(state, MEAN).items():
            new = mean[MEAN + name]
            # Coarse codecs can leave less than nothing.
            sd = (mean[SQUARE + name] - (new - old).square()).clamp_min(1e-8).sqrt()
            result |= {MEAN + name: new, RHO + name: sd.expm1().log()}
        return {name: leaf.lerp(result[name], self.rate) for name, leaf in state.items()}, {}


@recipe(cites=("zhang2022personalized",))
def p_fed_bayes(
    net: nn.Module,
    *,
    strength: float = 1.0,
    initial_sd: float = 0.02,
    server_rate: float = 1.0,
    prior_update: PriorUpdate = "gradient",
    likelihood: Likelihood | None = None,
    training: Training | None = None,
    codec: Codec | None = None,
    link: Link | None = None,
) -> Algorithm:
    """Fit to each client's rows a posterior of its own, whose prior is a distribution that all
    clients share and learn.

    Messages are twice as long as those of `fed_avg` in both directions: a mean and a width for
    every parameter.

    Parameters
    ----------
    strength
        zeta, the factor on the KL divergence from a client's posterior to the shared distribution;
        1 is Bayes' rule.
    initial_sd
        Standard deviation of every parameter before the first round; the means are the network's
        parameters.
    server_rate
        beta, the share of the way that the server goes to the clients' mean.
    prior_update
        How the shared distribution is learned. "gradient": as in the paper, by steps on each
        client's copy of it along with those on the client's posterior, after which the server
        averages the copies. "moments": it is held in clients' fits, and the server takes the mean
        and the variance of the mixture of their posteriors, the minimum of the mean divergence. Its
        widths then grow where clients differ.
    training
        Local work of a round. Default: 50 steps of 64 rows with ``Adam(1e-3)``.
    likelihood, codec, link
        As in `fed_avg`.

    Raises
    ------
    ArgumentError
        If a number is outside its domain, or `prior_update` is neither of the two.
    """
    if prior_update not in get_args(PriorUpdate):
        raise ArgumentError(
            "p_fed_bayes, prior_update", "'gradient' or 'moments'", repr(prior_update), "'gradient'"
        )
    if not (strength > 0 and 0 < initial_sd < math.inf and 0 < server_rate <= 1):
        expected = "strength > 0, initial_sd > 0 and server_rate in (0, 1]"
        raise ArgumentError(
            "p_fed_bayes", expected, (strength, initial_sd, server_rate), "1.0, 0.02, 1.0"
        )
    work, scored = training or Training(), likelihood or Categorical()
    by_moments = prior_update == "moments"
    descent = work.descent(PersonalElbo(net, scored, strength, by_moments), net, default=Adam(1e-3))
    model, rho = travelling(net, "static", where="p_fed_bayes"), math.log(math.expm1(initial_sd))

    def posterior(tree: Tree) -> WeightPosterior:
        return WeightPosterior(net, scored, under(tree, MEAN), sds(tree))

    def personal(state: Tree, memory: Tree) -> Personal:
        own = under(memory, OWN) or state
        return Personal(Model(net, under(own, MEAN)), posterior(own))

    return compose(
        "p_fed_bayes",
        net,
        OwnPosterior(descent, "moments" if by_moments else "value"),
        Matching(server_rate)
        if by_moments
        else Average()
        if server_rate == 1
        else Partly(server_rate),
        training=work,
        initial={MEAN + name: leaf for name, leaf in model.items()}
        | {RHO + name: torch.full_like(leaf, rho) for name, leaf in model.items()},
        predictor=lambda state: Model(net, under(state, MEAN)),
        posterior=posterior,
        codec=codec,
        link=link,
        personal=personal,
        owner="",
    )

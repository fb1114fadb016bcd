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
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from bayesfed.algorithms.composing import compose, within
from bayesfed.algorithms.personal.bayes.objective import MEAN, OWN, RHO, PersonalElbo, sds
from bayesfed.algorithms.registry import recipe
from bayesfed.algorithms.surveys import LARGEST, Limit
from bayesfed.compress import Codec
from bayesfed.data import Dataset
from bayesfed.errors.checks import checked, number
from bayesfed.federated import (
    Adam,
    Algorithm,
    Average,
    Descent,
    Fit,
    Link,
    LocalOptions,
    Model,
    Personal,
    Reducer,
    Training,
)
from bayesfed.federated.aggregation.servers import summed
from bayesfed.federated.core import Around, Info, Server, of, owned
from bayesfed.federated.training.batch_norm import travelling
from bayesfed.inference.ensembles.networks import Networks, figures
from bayesfed.keys import Key
from bayesfed.models import Categorical, Likelihood
from bayesfed.trees import Tree, only, shapes

PriorUpdate = Literal["gradient", "moments"]
# Owner of an entry's second moment about the mean that the client received, in what is sent: a
# payload has the names of the message.
SQUARE = RHO


@dataclass(frozen=True)
class OwnPosterior(Around):
    """Steps on a client's own posterior, which stays in its memory.

    Parameters
    ----------
    local
        Steps on `PersonalElbo`. Their kind says what is sent: "value", the client's copy of the
        shared distribution, trained along with the posterior; "moments", the first two moments of
        the posterior.
    """

    local: Descent

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Train from the message. A client without rows keeps no posterior of its own."""
        fit = self.local.train(message | of(OWN, message), data, key, options)
        own = owned(fit.payload, OWN)
        sent = moments(own, message) if self.kind == "moments" else only(fit.payload, message)
        return fit._replace(payload=sent, memory=of(OWN, own) if len(data) else {})


def moments(own: Tree, message: Tree) -> Tree:
    """Return a posterior's means, and its second moments about the means of the message, which lose
    less to rounding than those about zero.
    """
    mean, centre = owned(own, MEAN), owned(message, MEAN)
    squares = {
        name: sd.square() + (mean[name] - centre[name]).square() for name, sd in sds(own).items()
    }
    return of(MEAN, mean) | of(SQUARE, squares)


def widths_limits(payload: Tree, rows: float) -> Iterator[Limit]:
    """Yield what the widths of a normal can be, so that the sd is above 0 in single precision."""
    for name, leaf in owned(payload, RHO).items():
        yield f"{RHO} of {name}", leaf, -80.0, LARGEST


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
        means, squares = owned(total.mean(), MEAN), owned(total.mean(), SQUARE)
        rhos = dict[str, Tensor]()
        for name, old in owned(state, MEAN).items():
            # Coarse codecs can leave less than nothing.
            variance = (squares[name] - (means[name] - old).square()).clamp_min(1e-8)
            rhos[name] = variance.sqrt().expm1().log()
        result = of(MEAN, means) | of(RHO, rhos)
        return {name: leaf.lerp(result[name], self.rate) for name, leaf in state.items()}, {}


@dataclass(frozen=True, eq=False)
class WeightPosterior(Networks):
    """Independent normals over the parameters of a network: a `Posterior`, whose prior is what all
    clients share.

    Parameters
    ----------
    mean, sd
        Mean and standard deviation of every entry, by the names of the parameters.
    """

    mean: Tree
    sd: Tree

    @property
    def constants(self) -> Tree:
        """Mean and sd of every parameter, as ``NAME.mean`` and ``NAME.sd``."""
        return figures(self.mean, self.sd)

    @checked()
    def draw(self, key: Key) -> Tree:
        """Return one draw of every parameter."""
        noise = key.generator()
        return {
            name: leaf + self.sd[name] * torch.randn(leaf.shape, generator=noise, dtype=leaf.dtype)
            for name, leaf in self.mean.items()
        }


@recipe(
    cites=("zhang2022personalized",),
    strength=number("(0, inf)", "1.0"),
    initial_sd=number("(0, inf)", "0.02"),
    server_rate=number("(0, 1]", "1.0"),
)
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
    net, likelihood, codec, link
        As in `fed_avg`.

    Raises
    ------
    ArgumentError
        If a number is outside its domain, or `prior_update` is neither of the two.

    References
    ----------
    Zhang et al., "Personalized Federated Learning via Variational Bayesian Inference" (2022).
    """
    work, scored = training or Training(), likelihood or Categorical()
    by_moments, rho = prior_update == "moments", math.log(math.expm1(initial_sd))
    server: Server = Matching(server_rate) if by_moments else Partly(server_rate)
    if server == Partly(1):
        server = Average()
    objective = PersonalElbo(net, scored, strength, by_moments)
    descent = work.descent(objective, net, "moments" if by_moments else "value", Adam(1e-3))
    model = travelling(net, "static", where="p_fed_bayes")
    rhos = {name: torch.full_like(leaf, rho) for name, leaf in model.items()}
    begun = of(MEAN, model) | of(RHO, rhos)

    def posterior(tree: Tree) -> WeightPosterior:
        return WeightPosterior(net, scored, owned(tree, MEAN), sds(tree))

    def predictor(tree: Tree) -> Model:
        return Model(net, owned(tree, MEAN))

    def personal(state: Tree, memory: Tree) -> Personal:
        own = owned(memory, OWN) or state
        return Personal(predictor(own), posterior(own))

    return compose(
        "p_fed_bayes",
        net,
        OwnPosterior(descent),
        server,
        training=work,
        initial=begun,
        predictor=predictor,
        posterior=posterior,
        view=None if by_moments else within(shapes(begun), widths_limits),
        codec=codec,
        link=link,
        personal=personal,
        owner="",
    )

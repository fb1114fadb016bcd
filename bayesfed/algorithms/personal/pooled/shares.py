"""Shares of classes as each client's own parameters: a conjugate hierarchy on top of one network.

===========================================  =======================================================
notation                                     here
===========================================  =======================================================
f, logits of the network                     trained as by FedAvg
pi_k ~ Dirichlet(a b), shares of client k    the client's memory has its counts n_k, so that its
                                             posterior is Dirichlet(n_k + a b)
b, shares of all clients together            the server's state, ``shares/base``: those of all rows
a, how alike the clients are                 the server's state, ``shares/total``: most likely of
                                             `TOTALS` given the counts
===========================================  =======================================================

The network learns p(y | x) where classes have the shares b. Where they have the shares pi it is
softmax(f + log pi - log b) by Bayes' rule, if classes look alike at all clients (label shift;
Saerens et al., 2002, (4)). The shares of one more row are the posterior's mean, so that nothing is
left to draw.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bayesfed.algorithms.composing import compose
from bayesfed.algorithms.personal.pooled.unlabelled import SharesModel, UnseenModel
from bayesfed.compress import Codec
from bayesfed.data import Dataset
from bayesfed.errors import DataError
from bayesfed.federated import (
    Algorithm,
    Descent,
    Fit,
    Link,
    LocalOptions,
    Model,
    Personal,
    Reducer,
    Training,
    Whole,
)
from bayesfed.federated.aggregation.servers import summed
from bayesfed.federated.core import MODEL, Around, Info, of, owned
from bayesfed.inference.laplace.layers import last_layer as output_layer
from bayesfed.keys import Key
from bayesfed.models import Likelihood
from bayesfed.trees import Tree, shapes

# Leaves of the state; what a client sends of the log likelihood of its counts; its counts in its
# memory.
BASE, TOTAL, EVIDENCE, COUNTS = "shares/base", "shares/total", "shares/evidence", "own/counts"
# Totals a of pseudo-counts that are compared.
TOTALS = 2.0 ** torch.arange(-6, 14.1, 0.5, dtype=torch.float64)


def log_evidence(counts: Tensor, base: Tensor) -> Tensor:
    """Return the log likelihood of a client's counts ``(C,)`` at every total, the shares integrated
    out (Minka, 2000, (2)).
    """
    prior = TOTALS[:, None] * base.double().cpu()
    total = torch.lgamma(TOTALS) - torch.lgamma(TOTALS + counts.sum().cpu())
    result: Tensor = total + (
        torch.lgamma(prior + counts.double().cpu()) - torch.lgamma(prior)
    ).sum(1)
    return result


@dataclass(frozen=True)
class SharesAndNetwork(Around):
    """Steps on the network, and the client's shares of classes with their likelihood under the
    population.

    Parameters
    ----------
    local
        Steps on the network.
    net
        The network.
    trained
        Whether the network is trained. If not, it is not sent.
    """

    local: Descent
    net: nn.Module
    trained: bool = True

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Send the network, shares and likelihoods; keep the counts. A client without rows sends
        the population's shares, which weigh nothing.

        Raises
        ------
        DataError
            If the network has another number of outputs than there are shares, or the rows do not
            fit it.
        """
        network, base = owned(message, MODEL), message[BASE]
        if len(data):
            self._check(network, len(base), data.inputs)
        fit = self.local.train(network, data, key, options) if self.trained else Fit({}, {}, {})
        sent = of(MODEL, fit.payload)
        if not len(data):
            sent |= {BASE: base, EVIDENCE: torch.zeros_like(TOTALS).to(base)}
            return fit._replace(payload=sent, memory={})
        self.local.objective.check(network, {}, data)
        counts = torch.bincount(data.targets, minlength=len(base)).to(base)
        # Divided by the rows, by which the client is weighed.
        evidence = (log_evidence(counts, base) / len(data)).to(base)
        sent |= {BASE: counts / len(data), EVIDENCE: evidence}
        return fit._replace(payload=sent, memory={COUNTS: counts})

    def _check(self, network: Tree, classes: int, inputs: Tensor) -> None:
        # Batch norm without statistics refuses a single row of vectors: it gets the row twice.
        outputs = Model(self.net, network)(inputs[:1].expand(2, *inputs.shape[1:]))
        if outputs.shape != (2, classes):
            raise DataError(
                "pooled, local='classes'",
                f"outputs (B, {classes}) as of the linear layer registered last",
                f"(B, {', '.join(map(str, outputs.shape[1:]))})",
                "a network that registers its output layer last",
            )


@dataclass(frozen=True)
class SharesOfClasses:
    """Average the networks, and learn the population of the shares from sums over its clients.

    Parameters
    ----------
    learned
        Whether the total of the pseudo-counts is learned. If not, it stays as it is.
    """

    learned: bool

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Return the next state. A round in which no client has data changes nothing."""
        total = summed(reducer, "moments")
        if not total.weighs:
            return state, {}
        mean, rows = total.mean(), total.number()
        result = dict(state) | of(MODEL, owned(mean, MODEL))
        # One more row of every class: none has a share of 0. Coarse codecs can leave less than
        # nothing.
        base = rows * mean[BASE].clamp_min(0) + 1
        result[BASE] = base / base.sum()
        if self.learned:
            result[TOTAL] = TOTALS[mean[EVIDENCE].argmax().cpu()].reshape(1).to(state[TOTAL])
        return result, {}


def by_classes(
    net: nn.Module,
    begun: Tree,
    learned: bool,
    trained: bool,
    likelihood: Likelihood,
    work: Training,
    codec: Codec | None,
    link: Link | None,
) -> Algorithm:
    """Return the method whose own parameters are the shares of classes.

    Parameters
    ----------
    net, begun
        Network, and the parameters that it begins with.
    learned
        Whether the pseudo-counts of the population are learned.
    trained
        Whether the network is trained.
    likelihood, work, codec, link
        As in `pooled`.
    """
    first, classes = next(iter(begun.values())), output_layer(net).outputs
    base = torch.full((classes,), 1 / classes).to(first)
    unknown = torch.zeros_like(TOTALS).to(first)
    sent = of(MODEL, begun if trained else {}) | {BASE: base, EVIDENCE: unknown}

    def network(state: Tree) -> Tree:
        return owned(state, MODEL)

    def unseen(state: Tree) -> UnseenModel:
        return UnseenModel(net, network(state), state[BASE], state[TOTAL] * state[BASE])

    def personal(state: Tree, memory: Tree) -> Personal:
        if COUNTS not in memory:
            return Personal(unseen(state))
        return Personal(
            SharesModel(
                net, network(state), state[BASE], memory[COUNTS] + state[TOTAL] * state[BASE]
            )
        )

    return compose(
        "pooled",
        net,
        SharesAndNetwork(work.likelihood_descent(net, likelihood, "moments"), net, trained),
        SharesOfClasses(learned),
        training=work,
        initial=of(MODEL, begun) | {BASE: base, TOTAL: torch.ones(1).to(first)},
        predictor=unseen,
        view=Whole(shapes(sent)),
        codec=codec,
        link=link,
        personal=personal,
        owner="",
    )

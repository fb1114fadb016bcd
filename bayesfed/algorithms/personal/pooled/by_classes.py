"""`pooled(local="classes")`: the parts of `shares.py` put together."""

from __future__ import annotations

import torch
from torch import nn

from bayesfed.algorithms.composing import compose
from bayesfed.algorithms.personal.pooled.shares import (
    BASE,
    COUNTS,
    EVIDENCE,
    TOTAL,
    TOTALS,
    SharesAndNetwork,
    SharesModel,
    SharesOfClasses,
)
from bayesfed.algorithms.personal.pooled.unlabelled import UnseenModel
from bayesfed.compress import Codec
from bayesfed.federated import Algorithm, Link, Personal, Training, Whole
from bayesfed.federated.core import MODEL, of, owned
from bayesfed.inference.laplace.layers import last_layer as output_layer
from bayesfed.models import Likelihood
from bayesfed.trees import Tree, shapes


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

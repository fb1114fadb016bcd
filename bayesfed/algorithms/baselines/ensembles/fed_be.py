"""FedBE without distillation (Chen and Chao, "FedBE: Making Bayesian model ensemble applicable to
federated learning", 2021).

======================  ====================================================================
paper                   here
======================  ====================================================================
w-bar                   the state: the mean of the clients' models, as in FedAvg
{w_i}                   ``fed_be/NAME``, ``(K, ...)``: the models of the last round's clients
Gaussian, M             `ClientCloud`, `draws`
======================  ====================================================================

The paper distils the ensemble into one network on unlabelled rows of the server; here it predicts
itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import torch
from torch import nn

from bayesfed.algorithms.baselines.ensembles.models import updates_of
from bayesfed.algorithms.composing import compose
from bayesfed.algorithms.registry import recipe
from bayesfed.compress import Codec
from bayesfed.errors.checks import number
from bayesfed.federated import Algorithm, Keep, Link, Posterior, Reducer, Training, Whole
from bayesfed.federated.aggregation.servers import PublishesModel
from bayesfed.federated.core import MODEL, Info, of, owned
from bayesfed.federated.training.batch_norm import travelling
from bayesfed.inference.ensembles.networks import together
from bayesfed.inference.ensembles.weight_clouds import ClientCloud
from bayesfed.keys import Key
from bayesfed.models import Categorical, Likelihood
from bayesfed.trees import Tree, shapes

# Owner of the clients' models in the state.
CLIENTS = "clients"


@recipe(cites=("chen2021fedbe",), spread=number("[0, inf)", "0.1"))
def fed_be(
    net: nn.Module,
    *,
    draws: int = 10,
    spread: float = 0.1,
    key: Key | None = None,
    likelihood: Likelihood | None = None,
    training: Training | None = None,
    codec: Codec | None = None,
    link: Link | None = None,
) -> Algorithm:
    """Train as `fed_avg` does, and predict by the averaged network, the clients' own, and draws of
    a Gaussian through them.

    Messages are those of FedAvg. The server keeps every client's model, so that secure sums and the
    air are out. A `Predictive` of the posterior takes each of the ``1 + K + draws`` networks once,
    whatever the number of draws that it is asked for.

    Parameters
    ----------
    draws
        M, the number of networks that are drawn.
    spread
        Factor on the sd of the clients' directions; 0.1 in the authors' code.
    key
        Names the draws. Default: ``Key(0, "fed_be")``.
    net, likelihood, training, codec, link
        As in `fed_avg`.

    Raises
    ------
    ArgumentError
        If `draws` or `spread` is negative, or the network has running statistics.

    References
    ----------
    Chen and Chao, "FedBE: Making Bayesian Model Ensemble Applicable to Federated Learning" (2021).
    """
    work, scored = training or Training(), likelihood or Categorical()
    named = key or Key(0, "fed_be")
    begin = travelling(net, "static", where="fed_be")

    def posterior(state: Tree) -> Posterior:
        mean, own = owned(state, MODEL), owned(state, CLIENTS)
        return ClientCloud(net, scored, mean, own, draws, spread, named)

    return compose(
        "fed_be",
        net,
        work.fitting(net, scored),
        ClientsKept(),
        training=work,
        initial=of(MODEL, begin) | of(CLIENTS, {n: leaf[None] for n, leaf in begin.items()}),
        posterior=posterior,
        view=Whole(shapes(begin)),
        codec=codec,
        link=link,
        reducer=Keep,
        owner="",
    )


@dataclass(frozen=True)
class ClientsKept(PublishesModel):
    """Average the clients' models, and keep them."""

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Return the mean and the models of this round. A round in which no client has rows changes
        nothing.
        """
        updates = updates_of(reducer)
        if not updates:
            return state, {}
        rows = sum(update.number() for update in updates)
        mean = {
            name: reduce(torch.add, [update.total[name] for update in updates]) / rows
            for name in updates[0].total
        }
        kept = together([update.mean() for update in updates])
        after = of(MODEL, mean) | of(CLIENTS, kept)
        return after, {"models": float(len(updates))}

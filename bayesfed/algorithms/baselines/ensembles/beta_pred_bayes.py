"""beta-Predictive Bayes in one round (Hasan et al., "Calibrated one round federated learning with
Bayesian inference in the predictive space", 2024).

======================================  ============================================================
paper                                   here
======================================  ============================================================
samples of the local posteriors         `Langevin`, sent as ``(S, ...)`` by parameter
p(y | x), beta                          `Consensus`, the leaf ``beta/share`` of the state
NLL on the server's labelled rows       NLLs on a grid, summed over rows that clients held out
======================================  ============================================================

Where the paper draws by cyclical SGHMC, plain Langevin steps draw here; where it distils the
prediction into one network, all networks are kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from bayesfed.algorithms.baselines.drift.plain_sgd import sgd_of
from bayesfed.algorithms.baselines.ensembles.langevin import Langevin
from bayesfed.algorithms.baselines.ensembles.models import updates_of
from bayesfed.algorithms.registry import recipe
from bayesfed.algorithms.surveys import Asked, Bounded, sums_limits
from bayesfed.compress import Codec
from bayesfed.compress.codecs import exact
from bayesfed.data import Dataset
from bayesfed.errors.checks import number
from bayesfed.federated import (
    Algorithm,
    Assignment,
    Digital,
    Fit,
    Keep,
    Link,
    LocalOptions,
    Phase,
    Profile,
    Reducer,
    Training,
    Whole,
)
from bayesfed.federated.aggregation.servers import PublishesModel, summed
from bayesfed.federated.core import MODEL, Info, of, owned
from bayesfed.federated.core.layering import of_core
from bayesfed.federated.core.settings import with_settings
from bayesfed.federated.training.batch_norm import travelling
from bayesfed.federated.training.held_out_scores import split_held
from bayesfed.inference.ensembles.consensus import Consensus, by_client, interpolated
from bayesfed.inference.ensembles.networks import together
from bayesfed.keys import Key
from bayesfed.models import Categorical
from bayesfed.trees import Tree, shapes

# Owner of the clients' networks in the state, and the name of beta there.
NETWORKS, SHARE = "networks", "beta/share"
# 21 values of beta from 0 to 1.
SHARES = tuple(number / 20 for number in range(21))


@recipe(cites=("hasan2024calibrated",), temperature=number("[0, inf)", "1.0"))
def beta_pred_bayes(
    net: nn.Module,
    *,
    samples: int = 3,
    temperature: float = 0.001,
    training: Training | None = None,
    codec: Codec | None = None,
    link: Link | None = None,
) -> Algorithm:
    """Combine what the clients' own posteriors predict, in one round:
    ``bf.run(bf.beta_pred_bayes(net), clients, rounds=1)``.

    Each client draws S networks from its own posterior, beginning with the network's parameters,
    and sends them. They are then sent to all clients, who return NLLs of rows that they held out,
    every tenth, at 21 values of beta. K clients so receive ``K S`` networks each: it is meant for
    few clients and small networks. A second round begins anew.

    Parameters
    ----------
    samples
        S.
    temperature
        Temperature of the clients' posteriors; 0 leaves out the noise, so that the networks are
        iterates of SGD. At 1, Bayes' rule, `training` needs a prior: without one nothing bounds
        weights that the rows leave open, and the noise of clients with few rows drives them away.
    training
        Local work, by `Sgd` without momentum; a prior by its `prior_precision`. It is all that a
        client trains. Default: 500 steps of 64 rows with ``Sgd(0.05)``.
    net, codec, link
        As in `fed_avg`.

    Raises
    ------
    ArgumentError
        If a number is outside its domain, there are fewer than two steps for each network, the
        optimiser is not `Sgd` without momentum, or the network has running statistics.

    References
    ----------
    Hasan et al., "Calibrated One Round Federated Learning with Bayesian Inference in the Predictive
    Space" (2024).
    """
    work = training or Training(steps=500)
    sgd_of(work, "beta_pred_bayes")
    local = Langevin(work.likelihood_descent(net), samples, temperature)
    if work.epochs is None:
        local.spacing(work.steps)
    begin = travelling(net, "static", where="beta_pred_bayes")
    as_is = exact(begin)
    sent = codec or as_is
    first = {name: leaf[None, None] for name, leaf in begin.items()}
    drawn = Whole({name: (samples, *shape) for name, shape in shapes(begin).items()})

    @with_settings(drawn=drawn, sent=sent, work=work)
    def draw(state: Tree, round: int, profile: Profile, key: Key) -> Assignment:
        return Assignment(
            drawn, float(profile.samples > 0), sent, sent, work.options(round, profile.samples)
        )

    @with_settings(as_is=as_is, sent=sent)
    def score(state: Tree, round: int, profile: Profile, key: Key) -> Assignment:
        scores = Bounded({"nll": (len(SHARES),)}, float(profile.samples), sums_limits)
        return Assignment(scores, 1.0, sent, as_is)

    over = link or Digital()

    def consensus(state: Tree) -> Consensus:
        return Consensus(net, Categorical(), owned(state, NETWORKS), float(state[SHARE]))

    return of_core(
        "beta_pred_bayes",
        of(MODEL, begin) | of(NETWORKS, first) | {SHARE: torch.zeros(1, dtype=torch.float64)},
        (
            Phase("draw", draw, local, NetworksKept(), over, Keep, owner=""),
            Phase("share", score, GridOfShares(net), BestShare(), over, owner=""),
        ),
        consensus,
        consensus,
    )


@dataclass(frozen=True)
class NetworksKept(PublishesModel):
    """Keep the networks that clients drew."""

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Return the state with the networks, ``(K, S, ...)``. With no rows at all it stays as it
        is.
        """
        updates = updates_of(reducer)
        if not updates:
            return state, {}
        networks = together([update.mean() for update in updates])
        return state | of(NETWORKS, networks), {"clients": float(len(updates))}


@dataclass(frozen=True)
class GridOfShares(Asked):
    """Sum the negative log likelihood of the rows that a client held out at every value of beta.

    Parameters
    ----------
    net
        The network.
    """

    net: nn.Module

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Send the sums."""
        _, rows = split_held(data)
        sums = torch.zeros(len(SHARES), dtype=torch.float64)
        if len(rows):
            logs = by_client(self.net, message, rows.inputs).double()
            right = [interpolated(logs, share).gather(1, rows.targets[:, None]) for share in SHARES]
            sums = -torch.stack([one.sum() for one in right]).cpu()
        return Fit({"nll": sums}, {}, {"samples": float(len(rows))})


@dataclass(frozen=True)
class BestShare(PublishesModel):
    """Take the beta with the least sum."""

    # Held-out rows are scored by the networks of all clients.
    shown: ClassVar[str] = NETWORKS

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Return the state with beta; without held-out rows it is 0, the mean."""
        sums = summed(reducer, "moments").total["nll"]
        best = SHARES[int(sums.argmin())] if float(sums.abs().max()) > 0 else 0.0
        return state | {SHARE: torch.tensor([best], dtype=torch.float64)}, {"beta": best}

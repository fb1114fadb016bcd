"""STC (Sattler et al., "Robust and communication-efficient federated learning from non-IID data", 2019): sparse and ternary, both ways.

Notation: p -> `share`; client residual A_i -> `ErrorFeedback`, kept in the client's memory; server residual R, the broadcast change and the
cached sums P^(s) -> `TernaryStep`.
"""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from bayesfed.algorithms.baselines.fed_avg import average_of
from bayesfed.algorithms.baselines.stc.server import TernaryStep
from bayesfed.compress.coded import Coded
from bayesfed.compress.feedback import ErrorFeedback
from bayesfed.compress.quantisers.sparse import Sparse
from bayesfed.compress.quantisers.ternary import Ternary
from bayesfed.federated.core.algorithm import Algorithm, Model
from bayesfed.federated.training.delta_downlink import Holding
from bayesfed.federated.training.optimisers import Optimiser
from bayesfed.federated.training.schedules import Schedule, constant
from bayesfed.inference.objectives.likelihood import MaximumLikelihood
from bayesfed.models.priors.likelihoods import Categorical, Likelihood


def stc(
    net: nn.Module,
    *,
    share: float = 0.01,
    cache: int = 2,
    likelihood: Likelihood | None = None,
    steps: int = 1,
    batch_size: int = 64,
    optimiser: Optimiser | None = None,
    schedule: Schedule = constant,
) -> Algorithm:
    """Send the largest changes as one magnitude and signs, up with the clients' residuals and down with the server's.

    Parameters
    ----------
    share
        Share of a leaf's entries that a message changes.
    cache
        A client that missed at most so many rounds gets the sum of the changes it missed, others the model, 32-bit.
    likelihood, steps, batch_size, optimiser, schedule
        As in `fed_avg`; the paper makes one step a round.
    """
    server = TernaryStep(share, cache)
    base = average_of(
        "stc", net, MaximumLikelihood(net, likelihood or Categorical()), steps, batch_size, optimiser, schedule,
        Coded(Sparse()), ErrorFeedback(Coded(Ternary(share))),
    )  # fmt: skip
    (phase,) = base.phases
    train = replace(phase, local=Holding(phase.local), server=server)
    return replace(base, initial=server.initial(base.initial), phases=(train,), predictor=lambda state: Model(net, server.model(state)))

"""FedHQ (Chen et al., "Dynamic aggregation for heterogeneous quantization in federated learning", 2021): as many levels as the channel bears.

Notation: s_k, a client's quantisation levels -> what `Budgeted` finds for its beta; q_k, the quantiser's relative variance -> `FlexibleMap.error`;
its weights ``p_k = (1 / (1 + q_k)) / sum_j 1 / (1 + q_j)``.
"""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from bayesfed.algorithms.baselines.fed_avg import average_of
from bayesfed.compress.budgets import Budgeted, FlexibleMap
from bayesfed.compress.codecs import Cast, Codec
from bayesfed.errors import ArgumentError, complain
from bayesfed.federated.locals import Optimiser, Schedule, constant
from bayesfed.federated.protocols import Algorithm, Assignment, Profile, Skip
from bayesfed.federated.workloads import Planner, on_devices
from bayesfed.inference.objectives import MaximumLikelihood
from bayesfed.keys import Key
from bayesfed.models.likelihoods import Categorical, Likelihood
from bayesfed.trees import Tree


def fed_hq(
    net: nn.Module,
    planner: Planner,
    settings: FlexibleMap,
    *,
    likelihood: Likelihood | None = None,
    optimiser: Optimiser | None = None,
    schedule: Schedule = constant,
    codec: Codec | None = None,
) -> Algorithm:
    """Quantise whole updates to what a client's channel carries within the deadline, and weigh clients by how little that loses.

    Parameters
    ----------
    planner
        Of one size, the whole network.
    settings
        What a size of message buys when nothing is left out: ``fit_flexible(updates, key, shares=(1.0,))``.
    optimiser, schedule
        As in `fed_avg`; steps and batches are the planner's.
    codec
        Of the down-link; default 32-bit floats.

    Raises
    ------
    ArgumentError
        If the planner shrinks, or `settings` leaves kernels out.
    """
    if [row.alpha for row in planner.sizes] != [1.0]:
        alphas = [row.alpha for row in planner.sizes]
        raise ArgumentError(
            complain("fed_hq, planner", expected="the whole network as its only size", actual=alphas, hint="shrunk_shares(..., [1.0])")
        )
    if any(setting.share < 1 for setting in settings.settings):
        shares = [setting.share for setting in settings.settings]
        raise ArgumentError(complain("fed_hq, settings", expected="shares of 1", actual=shares, hint="fit_flexible(..., shares=(1.0,))"))
    objective = MaximumLikelihood(net, likelihood or Categorical())
    base = average_of("fed_hq", net, objective, 1, planner.batch_size, optimiser, schedule, codec, Cast(32))
    placed = on_devices(base, planner)
    (phase,) = placed.phases

    def assign(state: Tree, round: int, profile: Profile, key: Key) -> Assignment | Skip:
        found, planned = phase.assign(state, round, profile, key), planner(profile, round, key)
        if isinstance(found, Skip) or isinstance(planned, Skip):
            return found
        return replace(found, weight=1 / (1 + settings.error(planned.beta)), up=Budgeted(settings, planned.beta))

    return replace(placed, phases=(replace(phase, assign=assign),))

"""Split-Mix (Hong, Wang, Wang and Zhou, "Efficient split-mix federated learning for on-demand and in-situ customization", 2022).

======================  ==============================================
paper                   here
======================  ==============================================
base models             `count` copies of `net`, a narrow network, each initialised by itself
budget of a client      `nets_of`: how many of them a client of each size trains a round
mixing                  `Ensemble`: the mean of their outputs
======================  ==============================================
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import nn

from bayesfed.algorithms.baselines.split_mix.ensembles import EachNet, Ensemble, Nets, joined
from bayesfed.compress.codecs import Cast, Codec
from bayesfed.errors import ArgumentError, complain
from bayesfed.federated.aggregation.servers import Average
from bayesfed.federated.core.algorithm import Algorithm, Phase
from bayesfed.federated.core.protocols import Assignment, Link, Local, Profile
from bayesfed.federated.links.digital import Digital
from bayesfed.federated.training.descent import Descent, LocalClasses, draws_globally
from bayesfed.federated.training.model_sizes import Capacity
from bayesfed.federated.training.optimisers import Optimiser, Sgd
from bayesfed.federated.training.schedules import Schedule, constant
from bayesfed.inference.objectives.likelihood import MaximumLikelihood
from bayesfed.keys import Key
from bayesfed.models.priors.likelihoods import Categorical
from bayesfed.trees import Tree, parameters, running_statistics, shapes


def split_mix(
    make: Callable[[Key], nn.Module],
    nets_of: Sequence[int],
    capacity: Capacity,
    *,
    key: Key,
    steps: int = 50,
    batch_size: int = 64,
    optimiser: Optimiser | None = None,
    schedule: Schedule = constant,
    masked: bool = True,
    codec: Codec | None = None,
    link: Link | None = None,
) -> Algorithm:
    """Train many narrow networks, each on the devices that can afford one more; a strong device runs several and averages them.

    Parameters
    ----------
    make
        Builds one narrow network from a key.
    nets_of
        How many networks clients of each size train, largest first: as many as there are, to begin with. FedHM compares 9, 3, 2 and 1.
    capacity
        Which size a client has in a round. Which networks it gets is drawn each round, so that all are trained alike.
    key
        Of the initial parameters.
    steps, batch_size, optimiser, schedule
        Local work of a round for each network; default SGD at 0.05.
    masked
        Leave out of the loss the classes a client has no rows of.

    Raises
    ------
    ArgumentError
        If the numbers do not fall to 1 or more, or the network has running statistics.
    """
    if not nets_of or min(nets_of) < 1 or list(nets_of) != sorted(nets_of, reverse=True):
        raise ArgumentError(complain("split_mix, nets_of", expected="falling numbers >= 1", actual=list(nets_of), hint="[9, 3, 2, 1]"))
    net, count = make(key.child(0)), nets_of[0]
    if running := running_statistics(net):
        raise ArgumentError(complain("split_mix", expected="networks without running statistics", actual=running, hint='norm="group"'))
    initial, codec = joined({number: parameters(make(key.child(number))) for number in range(count)}), codec or Cast(32)

    def assign(state: Tree, round: int, profile: Profile, key: Key) -> Assignment:
        able = nets_of[capacity(profile, round, key)]
        chosen = torch.randperm(count, generator=key.child("nets").generator())[:able].tolist()
        return Assignment(Nets(chosen, shapes(initial)), float(profile.samples), codec, codec, {"learning_rate": schedule(round)})

    objective = partial(MaximumLikelihood, net)
    descent = Descent(objective(Categorical()), optimiser or Sgd(), steps, batch_size, "value", draws_globally(net))
    local: Local = LocalClasses(descent, objective, Categorical()) if masked else descent

    def model(able: int, state: Tree) -> Ensemble:
        return Ensemble(net, Nets(range(able), shapes(initial)).restrict(state))

    phase = Phase("train", assign, EachNet(local), Average(), link or Digital())
    return Algorithm("split_mix", initial, (phase,), partial(model, count), sizes={f"{able} nets": partial(model, able) for able in nets_of})

"""FedAvg (McMahan et al., "Communication-efficient learning of deep networks from decentralized data", 2017).

Notation: K clients, n_k rows of client k, E local epochs -> `steps` local steps, B -> `batch_size`, eta -> the optimiser.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import nn

from bayesfed.compress.codecs import Cast, Codec
from bayesfed.federated.aggregation.servers import Add, Average
from bayesfed.federated.aggregation.views import Whole
from bayesfed.federated.core.algorithm import Algorithm, Model, Phase, Server
from bayesfed.federated.core.protocols import Assignment, Link, Local, Profile
from bayesfed.federated.links.digital import Digital
from bayesfed.federated.training.batch_norm import Buffers, buffered, predicting, travelling
from bayesfed.federated.training.descent import Descent, LocalClasses, draws_globally
from bayesfed.federated.training.optimisers import Optimiser, Sgd
from bayesfed.federated.training.schedules import Schedule, constant
from bayesfed.inference.objectives.likelihood import MaximumLikelihood, Objective
from bayesfed.keys import Key
from bayesfed.models.priors.likelihoods import Categorical, Likelihood
from bayesfed.trees import Tree, shapes


def fed_avg(
    net: nn.Module,
    *,
    likelihood: Likelihood | None = None,
    steps: int = 50,
    batch_size: int = 64,
    optimiser: Optimiser | None = None,
    schedule: Schedule = constant,
    codec: Codec | None = None,
    link: Link | None = None,
    buffers: Buffers = "static",
    masked: bool = False,
) -> Algorithm:
    """Train `net` by local SGD and weighted averages, starting from its own parameters.

    Parameters
    ----------
    likelihood
        Default `Categorical()`.
    steps, batch_size, optimiser
        Local work of a round; default SGD at 0.05.
    schedule
        ``round -> factor`` on the learning rate.
    codec
        Of both directions; default 32-bit floats.
    link
        How models reach the server; default `Digital()`.
    buffers
        What becomes of running statistics (`bayesfed.federated.training.batch_norm`): "static" refuses networks that have any; "mean" averages them with
        the parameters; "local" leaves each client its own, and the predictor normalises by the batch it is given: query it with `batch_statistics`.
    masked
        Leave out of the loss the classes a client has no rows of (HeteroFL's masked cross-entropy); targets must be classes.

    Raises
    ------
    ArgumentError
        If the network has running statistics and `buffers` is "static", or there is no such policy.
    """
    scored, objective = likelihood or Categorical(), partial(MaximumLikelihood, net)

    def local(descent: Descent) -> Local:
        return LocalClasses(descent, objective, scored) if masked else descent

    return average_of("fed_avg", net, objective(scored), steps, batch_size, optimiser, schedule, codec, link=link, local=local, buffers=buffers)


def average_of(
    name: str,
    net: nn.Module,
    objective: Objective,
    steps: int,
    batch_size: int,
    optimiser: Optimiser | None,
    schedule: Schedule,
    codec: Codec | None,
    up: Codec | None = None,
    *,
    link: Link | None = None,
    local: Callable[[Descent], Local] | None = None,
    server: Server | None = None,
    buffers: Buffers = "static",
) -> Algorithm:
    """Average whole models trained on any objective: what FedAvg, FedProx and the methods that compress the up-link share.

    Without `up`, models travel up by the `codec` of the down-link; with it, changes of the model do, by a codec of their own. `local` makes
    the clients' step of the descent, default that itself; `server` stands in for the average.
    """
    initial, codec = travelling(net, buffers, where=name), codec or Cast(32)
    view = Whole(shapes(initial))

    def assign(state: Tree, round: int, profile: Profile, key: Key) -> Assignment:
        return Assignment(view, profile.samples, codec, up or codec, {"learning_rate": schedule(round)})

    descent = Descent(objective, optimiser or Sgd(), steps, batch_size, "delta" if up else "value", draws_globally(net))
    default: Server = Add() if up else Average()
    step = buffered(local(descent) if local else descent, net, buffers)
    train, served = Phase("train", assign, step, server or default, link or Digital()), predicting(net, buffers)
    return Algorithm(name, initial, (train,), lambda state: Model(served, state))

"""HeteroFL (Diao, Ding and Tarokh, "HeteroFL: computation and communication efficient federated learning for heterogeneous clients", 2021).

======================  ==============================================
paper                   here
======================  ==============================================
W_l^p, r                `nets`, one for each shrinkage ratio, largest first
W_l^p - W_l^(p+1)       entries that fewer clients cover: `Slice`
masked cross-entropy    `masked`: logits of classes a client has not are zero
static batch norm       nets with ``norm="static"``; `batch_statistics`
======================  ==============================================

V2 and V3 of FedHM's comparison leave out the largest sizes: ``hetero_fl(nets[1:], ...)``, ``hetero_fl(nets[2:], ...)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import nn

from bayesfed.compress.codecs import Cast, Codec
from bayesfed.errors import ArgumentError, complain
from bayesfed.federated.aggregation.servers import Add, Average
from bayesfed.federated.aggregation.views import Slice
from bayesfed.federated.core.algorithm import Algorithm, Model, Phase
from bayesfed.federated.core.protocols import Assignment, Link, Local, Profile
from bayesfed.federated.links.digital import Digital
from bayesfed.federated.training.batch_norm import Buffers, buffered, predicting, travelling
from bayesfed.federated.training.descent import Descent, LocalClasses, draws_globally
from bayesfed.federated.training.model_sizes import Capacity, Sized
from bayesfed.federated.training.optimisers import Optimiser, Sgd
from bayesfed.federated.training.schedules import Schedule, constant
from bayesfed.inference.objectives.likelihood import MaximumLikelihood
from bayesfed.keys import Key
from bayesfed.models.priors.likelihoods import Categorical
from bayesfed.trees import Tree, parameters, shapes


def hetero_fl(
    nets: Sequence[nn.Module],
    capacity: Capacity,
    *,
    steps: int = 50,
    batch_size: int = 64,
    optimiser: Optimiser | None = None,
    schedule: Schedule = constant,
    masked: bool = True,
    codec: Codec | None = None,
    up: Codec | None = None,
    link: Link | None = None,
    buffers: Buffers = "static",
) -> Algorithm:
    """Let every client train as many of the channels as it can; average each weight over the clients that have it.

    Parameters
    ----------
    nets
        The same network at falling widths, largest first; the first one's parameters are where training begins.
    capacity
        Which size a client trains: `fixed`, `dynamic`, `by_device`.
    steps, batch_size, optimiser, schedule
        Local work of a round; default SGD at 0.05.
    masked
        Leave out of the loss the classes a client has no rows of.
    codec
        Of both directions; default 32-bit floats.
    up
        Of changes, which travel up in place of values where it is given.
    buffers
        What becomes of running statistics, as in `fed_avg`; under "mean" each channel's are averaged over the clients that have it, under "local"
        a client whose size changes begins anew. The paper's networks are static, and `batch_statistics` queries every size.

    Raises
    ------
    ArgumentError
        If there are no nets, one has running statistics and `buffers` is "static", or one is not a slice of the first.
    """
    if not nets:
        raise ArgumentError(complain("hetero_fl", expected="a network for each size", actual="none", hint="[resnet18(...), ...]"))
    parts, codec = [travelling(net, buffers, where="hetero_fl") for net in nets], codec or Cast(32)
    initial = parts[0]
    views = [Slice(shapes(initial), shapes(part)) for part in parts]

    def assign(state: Tree, round: int, profile: Profile, key: Key) -> Assignment:
        size = capacity(profile, round, key)
        return Assignment(views[size], float(profile.samples), codec, up or codec, {"learning_rate": schedule(round), "size": size})

    def local(net: nn.Module) -> Local:
        objective = partial(MaximumLikelihood, net)
        descent = Descent(objective(Categorical()), optimiser or Sgd(), steps, batch_size, "delta" if up else "value", draws_globally(net))
        return buffered(LocalClasses(descent, objective, Categorical()) if masked else descent, net, buffers)

    def model(size: int, state: Tree) -> Model:
        return Model(served[size], views[size].restrict(state))

    served = [predicting(net, buffers) for net in nets]
    phase = Phase("train", assign, Sized(tuple(local(net) for net in nets)), Add() if up else Average(), link or Digital())
    counts = [sum(leaf.numel() for leaf in parameters(net).values()) for net in nets]
    return Algorithm(
        "hetero_fl", initial, (phase,), partial(model, 0), sizes={f"{count:,}": partial(model, size) for size, count in enumerate(counts)}
    )

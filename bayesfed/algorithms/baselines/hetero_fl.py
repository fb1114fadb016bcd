"""HeteroFL (Diao, Ding and Tarokh, "HeteroFL: computation and communication efficient federated
learning for heterogeneous clients", 2021).

======================  ==============================================
paper                   here
======================  ==============================================
W_l^p, r                `nets`, one for each shrinkage ratio, largest first
W_l^p - W_l^(p+1)       entries that fewer clients cover: `Slice`
masked cross-entropy    ``masked=True``: logits of classes a client has not are zero
static batch norm       nets with ``norm="static"``; `batch_statistics`
======================  ==============================================

V2 and V3 of FedHM's comparison leave out the largest sizes: ``hetero_fl(nets[1:], ...)``,
``hetero_fl(nets[2:], ...)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import nn

from bayesfed.algorithms.composing import compose
from bayesfed.algorithms.registry import recipe
from bayesfed.compress import Codec
from bayesfed.errors import ArgumentError
from bayesfed.federated import Algorithm, Buffers, Capacity, Link, Model, Slice, Training
from bayesfed.federated.core.settings import with_settings
from bayesfed.federated.training.batch_norm import predicting, travelling
from bayesfed.models import Likelihood
from bayesfed.models.calling import check_resolved
from bayesfed.trees import Tree, parameters, shapes, size


@recipe(cites=("diao2021heterofl",))
def hetero_fl(
    nets: Sequence[nn.Module],
    capacity: Capacity,
    *,
    likelihood: Likelihood | None = None,
    training: Training | None = None,
    masked: bool = False,
    codec: Codec | None = None,
    up: Codec | None = None,
    link: Link | None = None,
    buffers: Buffers = "static",
) -> Algorithm:
    """Let every client train as many channels as it can, and average each weight over the clients
    that have it.

    Parameters
    ----------
    nets
        The same network at falling widths. Training begins at the parameters of the first.
    capacity
        Which size a client trains: `fixed`, `dynamic`, `by_device`.
    training
        Local work of a round. Default: 50 steps of 64 rows with ``Sgd(0.05)``.
    likelihood
        Default: `Categorical()`.
    masked
        Train with the logits of classes that a client has no rows of set to zero, as in `fed_avg`;
        the paper does so.
    codec
        Codec of both directions. Default: 32-bit floats.
    up
        Codec of changes; if given, changes travel up in place of values.
    buffers
        Policy of running statistics, as in `fed_avg`. Under "mean" those of each channel are
        averaged over the clients that have it; under "local" a client whose size changes begins
        anew. The paper's networks are static; `batch_statistics` then queries every size.
    link
        As in `fed_avg`.

    Raises
    ------
    ArgumentError
        If there are no nets, one has running statistics and `buffers` is "static", or one is not a
        slice of the first.

    References
    ----------
    Diao, Ding and Tarokh, "HeteroFL: Computation and Communication Efficient Federated Learning for
    Heterogeneous Clients" (2021).
    """
    if not nets:
        raise ArgumentError(
            "hetero_fl", "a network for each size", "none", "[mlp([64, 32, 10], Key(0)), ...]"
        )
    for net in nets:
        check_resolved("hetero_fl", net)
    work = training or Training()
    parts = [travelling(net, buffers, where="hetero_fl") for net in nets]
    views = [Slice(shapes(parts[0]), shapes(part)) for part in parts]
    locals = [
        work.fitting(net, likelihood, "delta" if up else "value", masked=masked, buffers=buffers)
        for net in nets
    ]
    served = [predicting(net, buffers) for net in nets]

    def model(number: int, state: Tree) -> Model:
        return Model(served[number], views[number].restrict(state))

    return compose(
        "hetero_fl",
        nets[0],
        locals,
        training=work,
        initial=parts[0],
        predictor=partial(model, 0),
        sizes={f"{size(parameters(net)):,}": partial(model, n) for n, net in enumerate(nets)},
        view=with_settings(views=views)(lambda turn: views[turn.size]),
        capacity=capacity,
        codec=codec,
        up=up,
        link=link,
        buffers=buffers,
    )

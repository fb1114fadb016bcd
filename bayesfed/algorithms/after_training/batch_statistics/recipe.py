"""The statistics of static batch norm, queried from clients after training (HeteroFL, Diao, Ding
and Tarokh, 2021; FedHM, Yao et al.).

======================  ==============================================
HeteroFL                here
======================  ==============================================
static batch norm       ``norm="static"``: training normalises by the batch
query of statistics     one phase for each norm, in the order in which a forward pass comes to them
global statistics       mean and variance of all clients' rows, exactly: the papers average those of
                        batches
======================  ==============================================

The inputs of a norm depend on the norms before it, so each is queried with the global statistics of
those before it in place.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from bayesfed.algorithms.after_training.batch_statistics.moments import (
    BatchMoments,
    PooledStatistics,
    moments_limits,
)
from bayesfed.algorithms.registry import recipe
from bayesfed.algorithms.surveys import survey
from bayesfed.compress import Cast
from bayesfed.errors import ArgumentError, UpdateError
from bayesfed.errors.checks import whole
from bayesfed.federated import Algorithm, Model
from bayesfed.federated.core import MODEL
from bayesfed.federated.core.layering import of_core
from bayesfed.models.modules import noting, outputs
from bayesfed.models.nets.norms import batch_norms, tracked
from bayesfed.trees import Tree, check, frozen, leaf_of, shapes
from bayesfed.trees import parameters as parameters_of


@recipe(cites=("diao2021heterofl",), batch_size=whole(1, "128"))
def batch_statistics(
    net: nn.Module, parameters: Mapping[str, Tensor], sample: Tensor, *, batch_size: int = 128
) -> Algorithm:
    """Query the statistics of a trained network's static batch norms in one round,
    ``bf.run(algorithm, clients, rounds=1).model``.

    The round has a phase for each norm. Clients get the parameters and the statistics so far in 32
    bits a number, run their rows up to the norm in evaluation mode, and send two 64-bit numbers a
    channel. The result does not depend on the partition of rows over clients and batches: the
    network normalises by all rows as training does by a batch. Clients without rows do not count,
    and one that fails under ``on_client_error="drop"`` does not count for that norm. The predictor
    has running statistics, so a row's output does not depend on others.

    Parameters
    ----------
    net, parameters
        Network and parameters of a `Model`, also of a size of `fed_hm` or `hetero_fl`. They are not
        changed. Batch norms with statistics keep them.
    sample
        Inputs of the network, ``(B, ...)``; one row or zeros will do, since only the order of the
        norms is read from them.
    batch_size
        Number of rows of a forward pass.

    Raises
    ------
    ArgumentError
        If every batch norm has statistics, a forward pass reaches a norm not exactly once, the
        parameters are not the network's, or `batch_size` is below 1.
    UpdateError
        In the run, if no client with rows takes part.

    References
    ----------
    Diao, Ding and Tarokh, "HeteroFL: Computation and Communication Efficient Federated Learning for
    Heterogeneous Clients" (2021).
    """
    norms = {
        name: norm.num_features
        for name, norm in batch_norms(net).items()
        if norm.running_mean is None
    }
    if not norms:
        raise ArgumentError(
            "batch_statistics",
            "static batch norms",
            *(
                ("running statistics", "bayesfed.models.untracked(net)")
                if batch_norms(net)
                else ("no batch norm", "the network as it is")
            ),
        )
    try:
        known = frozen(net)
        check({**known, **parameters}, shapes(parameters_of(net)), where="batch_statistics")
    except UpdateError as error:
        raise ArgumentError(str(error)) from None
    if moved := [n for n, leaf in known.items() if not torch.equal(parameters.get(n, leaf), leaf)]:
        hint = "net.requires_grad_(), or the values that the network has"
        raise ArgumentError("batch_statistics", "frozen parameters as they are", moved, hint)
    twin = tracked(net).eval()
    queried = {leaf_of(name, part) for name in norms for part in ("running_mean", "running_var")}
    initial = {
        **{name: leaf for name, leaf in parameters.items() if name not in known},
        **{name: value for name, value in twin.named_buffers() if name in queried},
    }
    phases = [
        survey(
            norm or "norm",
            BatchMoments(twin, norm, norms[norm], batch_size),
            PooledStatistics(norm),
            dict.fromkeys(("mean", "square"), (norms[norm],)),
            moments_limits,
            initial,
            up=Cast(64),
            by_rows=True,
            owner=MODEL,
        )
        for norm in _order(twin, initial, sorted(norms), sample)
    ]
    return of_core("batch_statistics", initial, phases, lambda state: Model(twin, state))


def _order(net: nn.Module, state: Tree, norms: list[str], sample: Tensor) -> list[str]:
    """Return the norms in the order in which a forward pass comes to them."""
    with noting(net, norms) as calls:
        outputs(net, state, sample)
    order = [name for name, _ in calls]
    if sorted(order) != norms:
        raise ArgumentError(
            "batch_statistics",
            "a forward pass that uses each norm once",
            {name: order.count(name) for name in norms if order.count(name) != 1},
            "a norm for each use",
        )
    return order

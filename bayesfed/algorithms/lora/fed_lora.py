"""Federated LoRA (Zhang et al., "Towards building the FederatedGPT: federated instruction tuning", 2024): FedAvg of adapters.

Notation: B, A -> leaves ``NAME.lora_b``, ``NAME.lora_a``; H local steps -> `steps`; N clients, each of weight 1 / N unless `by_rows`.
"""

from __future__ import annotations

from torch import nn

from bayesfed.algorithms.lora.adapting import adapted, alike, descent, exchange
from bayesfed.compress.codecs import Codec
from bayesfed.federated.aggregation.servers import Add
from bayesfed.federated.aggregation.views import Whole
from bayesfed.federated.core.algorithm import Algorithm, Model
from bayesfed.federated.core.protocols import Link
from bayesfed.federated.training.optimisers import Optimiser
from bayesfed.federated.training.schedules import Schedule, constant
from bayesfed.models.priors.likelihoods import Likelihood
from bayesfed.trees import shapes


def fed_lora(
    net: nn.Module,
    *,
    likelihood: Likelihood | None = None,
    steps: int = 50,
    batch_size: int = 16,
    optimiser: Optimiser | None = None,
    schedule: Schedule = constant,
    by_rows: bool = False,
    codec: Codec | None = None,
    up: Codec | None = None,
    link: Link | None = None,
) -> Algorithm:
    """Train adapters and head by local steps and averages of B and of A, whose product is not the average of products.

    Parameters
    ----------
    net
        From `lora`.
    steps, batch_size, optimiser, schedule
        Local work of a round; default SGD at 0.05.
    by_rows
        Weigh clients by their rows; or alike.
    codec, up
        Of the down-link, and of changes; default 32-bit floats, and the same.

    Raises
    ------
    ArgumentError
        If the network has no adapters of one rank, or running statistics.
    """
    _, initial = adapted(net, where="fed_lora")
    view = Whole(shapes(initial))
    local = descent(net, "delta", likelihood, steps, batch_size, optimiser)
    phase = exchange(alike, lambda *_: view, [local], Add(), by_rows=by_rows, schedule=schedule, codec=codec, up=up, link=link)
    return Algorithm("fed_lora", initial, (phase,), lambda state: Model(net, state))

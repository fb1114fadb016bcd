"""FlexLoRA (Bai et al., "Federated fine-tuning of large language models under heterogeneous tasks and client resources", 2024).

======================  ==============================================
paper                   here
======================  ==============================================
W_g = sum_i w_i B_i A_i `Stack`: factors side by side, never formed
SVD(W_g)                `refactored`: two thin QRs and a small SVD
B = U Sigma, A = V^T    cut to each client's rank by `Unlike`
======================  ==============================================
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import nn

from bayesfed.algorithms.lora.adapting import adapted, by_rank, descent, exchange
from bayesfed.algorithms.lora.stacking import Refactored, Stack, Unlike
from bayesfed.compress.codecs import Codec
from bayesfed.federated.core.algorithm import Algorithm, Model
from bayesfed.federated.core.protocols import Link
from bayesfed.federated.training.model_sizes import Capacity
from bayesfed.federated.training.optimisers import Optimiser
from bayesfed.federated.training.schedules import Schedule, constant
from bayesfed.keys import Key
from bayesfed.models.adapters.lora import adapters
from bayesfed.models.priors.likelihoods import Likelihood
from bayesfed.trees import Tree, shapes, trainable


def flex_lora(
    net: nn.Module,
    ranks: Sequence[int],
    capacity: Capacity,
    *,
    likelihood: Likelihood | None = None,
    steps: int = 50,
    batch_size: int = 16,
    optimiser: Optimiser | None = None,
    schedule: Schedule = constant,
    by_rows: bool = False,
    codec: Codec | None = None,
    link: Link | None = None,
) -> Algorithm:
    """Train adapters of unlike rank, and truncate the mean of their products to the server's rank and to each client's.

    Parameters
    ----------
    net
        From `lora`, at the server's rank. All clients have its scale.
    ranks, capacity
        Slices of every size, falling, and the number of the size that a client trains.
    steps, batch_size, optimiser, schedule
        Local work of a round; default SGD at 0.05.
    by_rows
        Weigh clients by their rows; or alike.

    Raises
    ------
    ArgumentError
        If the network has no adapters of one rank, or running statistics, or ranks do not fall from at most that to at least 1.
    """
    (rank, initial), nets = adapted(net, where="flex_lora"), by_rank(net, ranks, where="flex_lora")
    layers = tuple(sorted(adapters(net)))
    views = [Unlike(k, layers, shapes(trainable(made))) for k, made in zip(ranks, nets, strict=True)]

    def view(state: Tree, size: int, key: Key) -> Unlike:
        return views[size]

    def model(size: int, state: Tree) -> Model:
        return Model(nets[size], views[size].restrict(state))

    locals = [descent(made, "factors", likelihood, steps, batch_size, optimiser) for made in nets]
    phase = exchange(
        capacity, view, locals, Refactored(layers, rank), by_rows=by_rows, schedule=schedule, codec=codec, link=link, reducer=partial(Stack, layers)
    )
    sizes = {str(k): partial(model, size) for size, k in enumerate(ranks)}
    return Algorithm("flex_lora", initial, (phase,), lambda state: Model(net, state), sizes=sizes)

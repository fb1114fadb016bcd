"""FlexLoRA (Bai et al., "Federated fine-tuning of large language models under heterogeneous tasks
and client resources", 2024).

======================  ==============================================
paper                   here
======================  ==============================================
W_g = sum_i w_i B_i A_i `Stack`: factors side by side, never formed
SVD(W_g)                `refactored`: two thin QRs and a small SVD
B = U Sigma, A = V^T    cut to each client's rank by `Slices`
======================  ==============================================
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import nn

from bayesfed.algorithms.composing import compose, weighing
from bayesfed.algorithms.lora.adapting import by_rank, models_of
from bayesfed.algorithms.lora.sketches import Slices, leading
from bayesfed.algorithms.lora.stacking import Refactored, Stack
from bayesfed.algorithms.registry import recipe
from bayesfed.compress import Codec
from bayesfed.federated import Algorithm, Capacity, Link, Training
from bayesfed.federated.core.settings import with_settings
from bayesfed.federated.training.batch_norm import travelling
from bayesfed.models import Likelihood, adapters, lora_rank
from bayesfed.trees import shapes


@recipe(cites=("bai2024federated", "hu2021lora"))
def flex_lora(
    net: nn.Module,
    ranks: Sequence[int],
    capacity: Capacity,
    *,
    likelihood: Likelihood | None = None,
    training: Training | None = None,
    by_rows: bool = False,
    codec: Codec | None = None,
    link: Link | None = None,
) -> Algorithm:
    """Train adapters of unlike rank, and truncate the mean of their products to the server's rank
    and to each client's.

    Parameters
    ----------
    net
        A network from `lora`, at the server's rank. All clients have its scale.
    ranks, capacity
        Numbers of slices of the sizes, falling; and which size a client trains in a round.
    training
        Local work of a round. Default: 50 steps of 16 rows with ``Sgd(0.05)``.
    by_rows
        Weigh clients by their rows. Default: all alike.
    likelihood, codec, link
        As in `fed_avg`.

    Raises
    ------
    ArgumentError
        If the network has no adapters of one rank, or running statistics, or ranks do not fall from
        at most that to at least 1.

    References
    ----------
    Bai et al., "Federated Fine-tuning of Large Language Models under Heterogeneous Tasks and Client
    Resources" (2024); Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models" (2021).
    """
    full = shapes(travelling(net, "static", where="flex_lora"))
    nets = by_rank(net, ranks, where="flex_lora")
    layers = tuple(sorted(adapters(net)))
    views = [Slices(leading(layers, k), full, stacked=True) for k in ranks]
    work = training or Training(batch_size=16)
    return compose(
        "flex_lora",
        net,
        [work.fitting(made, likelihood, "factors") for made in nets],
        Refactored(layers, lora_rank(net)),
        training=work,
        sizes=models_of(ranks, nets, views),
        view=with_settings(views=views)(lambda turn: views[turn.size]),
        capacity=capacity,
        weight=weighing(by_rows),
        codec=codec,
        link=link,
        reducer=partial(Stack, layers),
    )

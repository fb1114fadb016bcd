"""HeteroLoRA (Cho et al., "Heterogeneous LoRA for federated fine-tuning of on-device foundation
models", 2024).

======================  ==============================================
paper                   here
======================  ==============================================
r_k                     one of `ranks`, the leading slices
truncation              `Slices` of the first k
zero-padding            `Slices.lift`; the sum is divided by all weights
||Delta W_k||_F         `Slices.by_norm`, the weight of a client
======================  ==============================================

Rank self-pruning, in which clients drop slices by themselves, is not here: FSLoRA's comparison
fixes ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from bayesfed.algorithms.composing import compose, weighing
from bayesfed.algorithms.lora.adapting import by_rank, models_of
from bayesfed.algorithms.lora.sketches import Slices, leading
from bayesfed.algorithms.registry import recipe
from bayesfed.compress import Codec
from bayesfed.federated import Algorithm, Capacity, Link, Training
from bayesfed.federated.core.settings import with_settings
from bayesfed.federated.training.batch_norm import travelling
from bayesfed.models import Likelihood, adapters
from bayesfed.trees import shapes


@recipe(cites=("cho2024heterogeneous", "hu2021lora"))
def hetero_lora(
    net: nn.Module,
    ranks: Sequence[int],
    capacity: Capacity,
    *,
    by_norm: bool = True,
    by_rows: bool = False,
    likelihood: Likelihood | None = None,
    training: Training | None = None,
    codec: Codec | None = None,
    link: Link | None = None,
) -> Algorithm:
    """Train adapters of unlike rank. Each client trains the leading slices; the average counts
    zeros for clients that lack a slice.

    Parameters
    ----------
    net
        A network from `lora`, at the largest rank. All clients have its scale.
    ranks, capacity
        Numbers of slices of the sizes, falling; and which size a client trains in a round.
    by_norm, by_rows
        Weigh clients by the norm of their adapters; weigh them by their rows. If both are false,
        all clients weigh alike.
    training
        Local work of a round. Default: 50 steps of 16 rows with ``Sgd(0.05)``.
    likelihood, codec, link
        As in `fed_avg`.

    Raises
    ------
    ArgumentError
        If the network has no adapters of one rank, or running statistics, or ranks do not fall from
        at most that to at least 1.

    References
    ----------
    Cho et al., "Heterogeneous LoRA for Federated Fine-tuning of On-Device Foundation Models"
    (2024); Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models" (2021).
    """
    full = shapes(travelling(net, "static", where="hetero_lora"))
    nets = by_rank(net, ranks, where="hetero_lora")
    views = [Slices(leading(sorted(adapters(net)), k), full, by_norm=by_norm) for k in ranks]
    work = training or Training(batch_size=16)
    return compose(
        "hetero_lora",
        net,
        [work.fitting(made, likelihood) for made in nets],
        training=work,
        sizes=models_of(ranks, nets, views),
        view=with_settings(views=views)(lambda turn: views[turn.size]),
        capacity=capacity,
        weight=weighing(by_rows),
        codec=codec,
        link=link,
    )

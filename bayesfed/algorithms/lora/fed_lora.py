"""Federated LoRA (Zhang et al., "Towards building the FederatedGPT: federated instruction tuning",
2024), FedAvg of adapters, and FFA-LoRA (Sun et al., "Improving LoRA in privacy-preserving federated
learning", 2024), in which A stays as it was drawn and only B is trained.

Notation: B, A -> leaves ``NAME.lora_b``, ``NAME.lora_a``; H local steps -> `steps`; N clients, each
of weight 1 / N unless `by_rows`. A_0 of FFA-LoRA is frozen like the base and never sent; averages
of B are averages of products.
"""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from bayesfed.algorithms.composing import compose, weighing
from bayesfed.algorithms.lora.adapting import half_frozen
from bayesfed.algorithms.registry import recipe
from bayesfed.compress import Codec
from bayesfed.federated import Algorithm, Link, Training
from bayesfed.models import Likelihood, lora_rank


@recipe(cites=("zhang2024towards", "hu2021lora"))
def fed_lora(
    net: nn.Module,
    *,
    likelihood: Likelihood | None = None,
    training: Training | None = None,
    by_rows: bool = False,
    codec: Codec | None = None,
    up: Codec | None = None,
    link: Link | None = None,
) -> Algorithm:
    """Train adapters and head by local steps and averages of B and of A. The product of the
    averages is not the average of the products.

    Parameters
    ----------
    net
        A network from `lora`.
    training
        Local work of a round. Default: 50 steps of 16 rows with ``Sgd(0.05)``.
    by_rows
        Weigh clients by their rows. Default: all alike.
    codec, up
        Codec of the down-link, by default 32-bit floats; codec of the changes, by default the same.
    likelihood, link
        As in `fed_avg`.

    Raises
    ------
    ArgumentError
        If the network has no adapters of one rank, or running statistics.

    References
    ----------
    Zhang et al., "Towards Building the FederatedGPT: Federated Instruction Tuning" (2024); Hu et
    al., "LoRA: Low-Rank Adaptation of Large Language Models" (2021).
    """
    lora_rank(net)
    work = training or Training(batch_size=16)
    local = work.fitting(net, likelihood, "delta")
    return compose(
        "fed_lora",
        net,
        local,
        training=work,
        weight=weighing(by_rows),
        codec=codec,
        up=up,
        link=link,
    )


@recipe(cites=("sun2024improving", "hu2021lora"))
def ffa_lora(
    net: nn.Module,
    *,
    likelihood: Likelihood | None = None,
    training: Training | None = None,
    by_rows: bool = False,
    codec: Codec | None = None,
    up: Codec | None = None,
    link: Link | None = None,
) -> Algorithm:
    """Train B and the head: half the traffic of `fed_lora`, and an exact average.

    Parameters
    ----------
    net
        A network from `lora`. It is never changed.
    likelihood, training, by_rows, codec, up, link
        As `fed_lora`.

    Raises
    ------
    ArgumentError
        As `fed_lora`.

    References
    ----------
    Sun et al., "Improving LoRA in Privacy-preserving Federated Learning" (2024); Hu et al., "LoRA:
    Low-Rank Adaptation of Large Language Models" (2021).
    """
    made = fed_lora(
        half_frozen(net),
        likelihood=likelihood,
        training=training,
        by_rows=by_rows,
        codec=codec,
        up=up,
        link=link,
    )
    return replace(made, name="ffa_lora")

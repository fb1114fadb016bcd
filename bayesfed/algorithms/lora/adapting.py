"""What methods that train adapters share: checks of their network and ranks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from bayesfed.errors import ArgumentError
from bayesfed.federated.training.batch_norm import travelling
from bayesfed.models import adapters, lora_rank, resized
from bayesfed.trees import Tree


def adapted(net: nn.Module, *, where: str) -> tuple[int, Tree]:
    """Return the rank of a network's adapters and a copy of what it trains.

    Raises
    ------
    ArgumentError
        If it has no adapters, or running statistics, or trains nothing.
    """
    return lora_rank(net), travelling(net, "static", where=where)


def half_frozen(net: nn.Module) -> nn.Module:
    """Return the network with A frozen in every adapter, so that only B is trained and travels."""
    half = resized(net, lora_rank(net))
    for layer in adapters(half).values():
        layer.lora_a.requires_grad_(False)
    return half


def by_rank(
    net: nn.Module,
    ranks: Sequence[int],
    *,
    where: str,
    sketched: bool = False,
    by_slice: bool = False,
) -> list[nn.Module]:
    """Return the network at every rank, over the same frozen weights; scaled by ``r / k`` for
    sketches that have it alike for all slices.

    Raises
    ------
    ArgumentError
        If there are no ranks, they do not fall, or one is outside of 1 to the network's.
    """
    rank = lora_rank(net)
    if (
        not ranks
        or any(b >= a for a, b in pairwise(ranks))
        or not 1 <= min(ranks) <= max(ranks) <= rank
    ):
        hint = f"{sorted({max(1, rank // part) for part in (1, 2, 4)}, reverse=True)}"
        raise ArgumentError(
            f"{where}, ranks", f"falling numbers from 1 to {rank}", list(ranks), hint
        )
    return [
        resized(net, k, factor=rank / k if sketched and not by_slice else 1.0, by_slice=by_slice)
        for k in ranks
    ]

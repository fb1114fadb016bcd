"""What methods that train adapters share: networks and models at every rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

from torch import nn

from bayesfed.algorithms.lora.sketches import Slices
from bayesfed.errors import ArgumentError
from bayesfed.federated import Model
from bayesfed.models import adapters, lora_rank, resized
from bayesfed.trees import Tree


def half_frozen(net: nn.Module) -> nn.Module:
    """Return the network with A frozen in every adapter, so that only B is trained and travels."""
    half = resized(net, lora_rank(net))
    for layer in adapters(half).values():
        layer.lora_a.requires_grad_(False)
    return half


def by_rank(
    net: nn.Module, ranks: Sequence[int], *, where: str, sketched: bool = False
) -> list[nn.Module]:
    """Return the network at every rank, over the same frozen weights; for sketches scaled by
    ``r / k``.

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
        raise ArgumentError(
            f"{where}, ranks",
            f"falling numbers from 1 to {rank}",
            list(ranks),
            f"{sorted({max(1, rank // part) for part in (1, 2, 4)}, reverse=True)}",
        )
    return [resized(net, k, factor=rank / k if sketched else 1.0) for k in ranks]


def models_of(
    ranks: Sequence[int], nets: Sequence[nn.Module], views: Sequence[Slices]
) -> dict[str, Callable[[Tree], Model]]:
    """Return the models of all sizes, as `Algorithm.sizes` has them."""

    def model(net: nn.Module, view: Slices, state: Tree) -> Model:
        return Model(net, view.restrict(state))

    return {
        str(k): partial(model, net, view) for k, net, view in zip(ranks, nets, views, strict=True)
    }

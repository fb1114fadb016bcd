"""Replacing the dense layers of a network by layers of fixed rank.

    net = mlp([784, 256, 256, 10], key)
    fixed_rank(net, 4)  # the best approximation of rank 4 in every layer
    fixed_rank(net, 1 / 16)  # in each layer, the largest rank with 1/16 of its numbers
    fixed_rank(net, {"0": 8, "2": 4})  # by name; other layers stay as they are

The layers are those of `bayesfed.models.low_rank.thin_layers`;
`bayesfed.models.low_rank.fixed_rank_trees` trains them.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from bayesfed.geometry import from_dense, random_point, uniform_ranks
from bayesfed.keys import Key
from bayesfed.models.low_rank.replacing import Initial, chosen, thinned
from bayesfed.models.low_rank.thin_layers import FixedRankLayer
from bayesfed.models.modules import Dense, Predicate, weight_matrices


def fixed_rank(
    net: nn.Module,
    rank: int | float | Mapping[str, int],
    *,
    initial: Initial = "spectral",
    key: Key | None = None,
    where: Predicate = weight_matrices,
) -> nn.Module:
    """Return a copy of a network in which the weights of some layers have fixed rank.

    Parameters
    ----------
    net
        Network, never changed. A module that reads the weight of a replaced layer directly fails
        when called, since there is no ``weight``.
    rank
        One rank for all layers. Or a float in (0, 1]: the largest share of a layer's numbers that
        ``R (M + N)`` may take (`uniform_ranks`), not counting cores and biases. Or ranks by the
        layer's name; layers that are not named stay dense.
    initial
        "spectral": the matrix of this rank that is nearest to the layer's own, by an SVD; "random":
        a `random_point` whose entries have the root mean square of the layer's own.
    key
        Random key for "random" only; each layer draws from the child with its name.
    where
        ``(parameter name, owning module) -> bool``; may select weights of `nn.Linear`, `nn.Conv1d`,
        `nn.Conv2d` and `nn.Conv3d`.

    Raises
    ------
    ArgumentError
        If a rank is not from 1 to min(M, N) or the ratio not in (0, 1], a named layer is not among
        the selected ones, there is no key to draw from, a weight is not finite or of half
        precision, or `where` selects nothing, or anything but the weight of an ungrouped layer of
        exactly these classes, without hooks and not shared with another layer.
    """
    by_name = rank if isinstance(rank, Mapping) else None
    kinds = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
    layers = chosen(net, where, by_name, caller="fixed_rank", kinds=kinds)
    sizes = {name: (len(layer.weight), layer.weight[0].numel()) for name, layer in layers.items()}
    if isinstance(rank, float):
        ranks: Mapping[str, int] = uniform_ranks(sizes, rank)
    else:
        ranks = rank if isinstance(rank, Mapping) else dict.fromkeys(sizes, rank)

    def made(layer: Dense, matrix: Tensor, rank: int, key: Key | None) -> FixedRankLayer:
        if key is None:
            return FixedRankLayer(layer, from_dense(matrix, rank))
        std, kind, at = float(matrix.square().mean().sqrt()), matrix.dtype, matrix.device
        point = random_point(*matrix.shape, rank, key, std=std, dtype=kind, device=at)
        return FixedRankLayer(layer, point)

    return thinned(
        net, layers, ranks, made, split="pufferfish", initial=initial, key=key, caller="fixed_rank"
    )

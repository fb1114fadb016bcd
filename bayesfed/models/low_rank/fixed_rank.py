"""Networks of which layers have fixed rank, and Riemannian descent on their flat trees: points,
probes, and Riemannian gradients.

    net = mlp([784, 256, 256, 10], key)
    fixed_rank(net, 4)  # the best approximation of rank 4 in every layer
    fixed_rank(net, 1 / 16)  # in each layer, the largest rank with 1/16 of its numbers
    fixed_rank(net, {"0": 8, "2": 4})  # by name; other layers stay as they are

The layers are those of `bayesfed.models.low_rank.thin_layers`. Such a network has leaves
``NAME.u``, ``NAME.s``, ``NAME.v`` for each layer NAME of fixed rank, beside ordinary ones.
One step::

    tree = parameters(net)
    at = points(tree)
    probe = probes(at)
    found = loss(functional_call(net, {**tree, **probe}, (inputs,)), targets)
    gradients = dict(zip(probe, torch.autograd.grad(found, list(probe.values()))))
    step = {name: -rate * gradient for name, gradient in tangents(at, gradients).items()}
    moved = {name: metric_retraction(point, step[name]) for name, point in at.items()}
    tree = with_points(tree, moved)

To train biases and dense layers as well, let their leaves require gradients and step
them as usual. A point may change its rank, since the network runs at any rank.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn

from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import ITSELF, check, checked, number
from bayesfed.geometry import FixedRank, Tangent, from_dense, project, random_point
from bayesfed.keys import Key
from bayesfed.models.low_rank.replacing import Initial, chosen, thinned
from bayesfed.models.low_rank.thin_layers import FixedRankLayer
from bayesfed.models.modules import DENSE, Dense, Predicate, weight_matrices
from bayesfed.trees import Tree, leaf_of


@checked(rank=ITSELF)
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
        ``R (M + N)`` may take, not counting cores and biases, though the rank is at least 1. Or
        ranks by the layer's name; layers that are not named stay dense.
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
    layers = chosen(net, where, by_name, caller="fixed_rank", kinds=DENSE)
    if isinstance(rank, Mapping):
        ranks = dict(rank)
    elif isinstance(rank, float):
        check("fixed_rank, rank", rank, number("(0, 1]", "1 / 16"))
        sizes = {name: (len(one.weight), one.weight[0].numel()) for name, one in layers.items()}
        ranks = {
            name: max(1, min(int(rank * rows * columns / (rows + columns)), rows, columns))
            for name, (rows, columns) in sizes.items()
        }
    else:
        ranks = dict.fromkeys(layers, rank)

    def made(layer: Dense, matrix: Tensor, rank: int, key: Key | None) -> FixedRankLayer:
        if key is None:
            return FixedRankLayer(layer, from_dense(matrix, rank))
        rows, columns = matrix.shape
        std, kind, at = float(matrix.square().mean().sqrt()), matrix.dtype, matrix.device
        point = random_point(rows, columns, rank, key, std=std, dtype=kind, device=at)
        return FixedRankLayer(layer, point)

    return thinned(
        net, layers, ranks, made, split="pufferfish", initial=initial, key=key, caller="fixed_rank"
    )


def points(
    tree: Mapping[str, Tensor], layers: Collection[str] | None = None
) -> dict[str, FixedRank]:
    """Return the points of a tree by layer: every NAME with leaves ``NAME.u``, ``NAME.s`` and
    ``NAME.v``, which are not copied.

    Parameters
    ----------
    tree
        Parameters by name, as `bayesfed.trees.parameters` returns them. Points taken from
        ``dict(net.named_parameters())`` require gradients: retract them under `torch.no_grad`. A
        layer that is the whole network has the name "".
    layers
        Names of the layers of fixed rank, as `fixed_rank_layers` returns them: another layer may
        have parameters of these names. Default: every NAME counts.

    Raises
    ------
    ArgumentError
        If three leaves of these names are not a point.
    """
    at = {}
    for leaf in tree:
        name, _, last = leaf.rpartition(".")
        parts = [tree.get(leaf_of(name, part)) for part in ("u", "s", "v")]
        if last != "u" or (layers is not None and name not in layers):
            continue
        u, s, v = parts
        if s is None or v is None or u is None:
            continue
        try:
            at[name] = FixedRank(u, s, v)
        except ArgumentError as error:
            raise ArgumentError(f"points, layer {name!r}: {error}") from None
    return at


def with_points(tree: Mapping[str, Tensor], points: Mapping[str, FixedRank]) -> Tree:
    """Return the tree with these points in place of its own; ranks may differ, and all other leaves
    are the same tensors.

    Parameters
    ----------
    tree
        Parameters of a network of fixed rank, by name.
    points
        New points by layer.

    Raises
    ------
    ArgumentError
        If the tree has no such layer, or one of another shape.
    """
    changed = dict(tree)
    for name, point in points.items():
        u, v = (tree.get(leaf_of(name, side)) for side in "uv")
        shape = None if u is None or v is None else (len(u), len(v))
        if point.shape != shape:
            raise ArgumentError(
                f"with_points, layer {name!r}",
                f"a point of shape {shape}, of any rank" if shape else "a layer of the tree",
                point.shape,
                "the tree of a network made by fixed_rank",
            )
        changed |= {leaf_of(name, leaf): getattr(point, leaf) for leaf in ("u", "s", "v")}
    return changed


def probes(points: Mapping[str, FixedRank]) -> Tree:
    """Return ``NAME.up`` ``(M, R)`` and ``NAME.vp`` ``(N, R)`` for every point: zeros that require
    gradients, for one call of the network.
    """
    zeros = {}
    for name, point in points.items():
        zeros[leaf_of(name, "up")] = torch.zeros_like(point.u, requires_grad=True)
        zeros[leaf_of(name, "vp")] = torch.zeros_like(point.v, requires_grad=True)
    return zeros


def tangents(
    points: Mapping[str, FixedRank], gradients: Mapping[str, Tensor]
) -> dict[str, Tangent]:
    """Return the Riemannian gradient of each layer, from the gradients of its probes.

    Parameters
    ----------
    points
        Points at which the network was called, by layer.
    gradients
        ``G V`` and ``G^T U``: the gradients of the result of `probes`, by its names.

    Raises
    ------
    ArgumentError
        If a probe has no gradient.

    References
    ----------
    Equation (47) of FedRLR.
    """
    riemannian = {}
    for name, point in points.items():
        up, vp = (gradients.get(leaf_of(name, leaf)) for leaf in ("up", "vp"))
        if up is None or vp is None:
            raise ArgumentError(
                f"tangents, layer {name!r}",
                "gradients of probes",
                "none",
                "dict(zip(probes, torch.autograd.grad(loss, list(probes.values()))))",
            )
        riemannian[name] = project(point, up, vp)
    return riemannian

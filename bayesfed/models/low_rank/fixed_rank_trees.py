"""Riemannian descent on flat trees: the points of a network of fixed rank, their probes, and the
Riemannian gradients.

A network made by `fixed_rank` has leaves ``NAME.u``, ``NAME.s``, ``NAME.v`` for each layer NAME of
fixed rank, beside ordinary ones. One step::

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
from torch import Tensor

from bayesfed.errors import ArgumentError
from bayesfed.geometry import FixedRank, Tangent, project
from bayesfed.trees import Tree, leaf_of


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
            expected = f"a point of shape {shape}, of any rank" if shape else "a layer of the tree"
            hint = "the tree of a network made by fixed_rank"
            raise ArgumentError(f"with_points, layer {name!r}", expected, point.shape, hint)
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
            hint = "torch.autograd.grad(loss, list(probes.values()))"
            raise ArgumentError(f"tangents, layer {name!r}", "gradients of probes", "none", hint)
        riemannian[name] = project(point, up, vp)
    return riemannian

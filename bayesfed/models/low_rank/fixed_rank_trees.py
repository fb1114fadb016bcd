"""Riemannian descent over flat trees: the points of a network of fixed rank, their probes, and the gradients that come back.

A network made by `fixed_rank` has leaves ``NAME.u``, ``NAME.s``, ``NAME.v`` for each layer NAME of fixed rank, beside ordinary ones. One step::

    tree = parameters(net)
    at = points(tree)
    probe = probes(at)
    loss(functional_call(net, {**tree, **probe}, (inputs,)), targets).backward()
    step = {name: -rate * gradient for name, gradient in tangents(at, probe).items()}
    tree = with_points(tree, {name: metric_retraction(point, step[name]) for name, point in at.items()})

Leaves that `parameters` returns do not require gradients, so backward computes those of the probes and nothing else; for biases and dense layers
let their leaves require gradients, and step them as ever. A point may change its rank: the network runs at any.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from bayesfed.errors import ArgumentError, complain
from bayesfed.geometry import FixedRank, Tangent, project
from bayesfed.trees import Tree, leaf_of


def points(tree: Mapping[str, Tensor]) -> dict[str, FixedRank]:
    """Return the points of a tree by layer: every NAME with leaves ``NAME.u``, ``NAME.s`` and ``NAME.v``, which are not copied.

    Parameters
    ----------
    tree
        As `bayesfed.trees.parameters` returns it. Of ``dict(net.named_parameters())``, which require gradients, the points do too: retract those
        under `torch.no_grad`. A layer that is the whole network is called "".

    Raises
    ------
    ArgumentError
        If three leaves of these names are no point.
    """
    found = {}
    for leaf in tree:
        name = leaf.rpartition(".")[0]
        if leaf != leaf_of(name, "u") or leaf_of(name, "s") not in tree or leaf_of(name, "v") not in tree:
            continue
        try:
            found[name] = FixedRank(tree[leaf], tree[leaf_of(name, "s")], tree[leaf_of(name, "v")])
        except ArgumentError as error:
            raise ArgumentError(f"points, layer {name!r}: {error}") from None
    return found


def with_points(tree: Mapping[str, Tensor], points: Mapping[str, FixedRank]) -> Tree:
    """Return the tree with these points in the place of its own; ranks may differ, and other leaves are the same tensors.

    Raises
    ------
    ArgumentError
        If the tree has no such layer, or one of another shape.
    """
    changed = dict(tree)
    for name, point in points.items():
        for leaf in ("u", "s", "v"):
            if leaf_of(name, leaf) not in tree:
                hint = "the tree of a network made by fixed_rank"
                raise ArgumentError(
                    complain(f"with_points, layer {name!r}", expected=f"leaf {leaf_of(name, leaf)!r}", actual="no such leaf", hint=hint)
                )
        shape = len(tree[leaf_of(name, "u")]), len(tree[leaf_of(name, "v")])
        if point.shape != shape:
            raise ArgumentError(complain(f"with_points, layer {name!r}", expected=f"a point of shape {shape}", actual=point.shape, hint="any rank"))
        changed |= {leaf_of(name, "u"): point.u, leaf_of(name, "s"): point.s, leaf_of(name, "v"): point.v}
    return changed


def probes(points: Mapping[str, FixedRank]) -> Tree:
    """Return ``NAME.up`` ``(M, R)`` and ``NAME.vp`` ``(N, R)`` for every point: zeros that require gradients, for one call of the network."""
    found = {}
    for name, point in points.items():
        found[leaf_of(name, "up")] = torch.zeros_like(point.u, requires_grad=True)
        found[leaf_of(name, "vp")] = torch.zeros_like(point.v, requires_grad=True)
    return found


def tangents(points: Mapping[str, FixedRank], probes: Mapping[str, Tensor]) -> dict[str, Tangent]:
    """Return the Riemannian gradient of each layer, from what backward left in the probes.

    Parameters
    ----------
    points
        Where the network was called.
    probes
        With ``G V`` and ``G^T U`` as their gradients.

    Raises
    ------
    ArgumentError
        If a point has no probe, or a probe no gradient.

    References
    ----------
    Equation (47) of FedRLR.
    """
    found = {}
    with torch.no_grad():
        for name, point in points.items():
            gradients = []
            for leaf in (leaf_of(name, "up"), leaf_of(name, "vp")):
                gradient = probes[leaf].grad if leaf in probes else None
                if gradient is None:
                    actual = "none" if leaf in probes else "no such probe"
                    hint = "functional_call(net, {**tree, **probes}, inputs), then backward"
                    raise ArgumentError(complain(f"tangents, {leaf!r}", expected="a gradient", actual=actual, hint=hint))
                gradients.append(gradient)
            found[name] = project(point, *gradients)
    return found

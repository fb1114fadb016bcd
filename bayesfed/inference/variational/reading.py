"""Reading a `Layout` from one run of a model and a guide at parameters that are all different."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

import pyro.distributions as dist
import torch
from pyro import poutine
from torch import Tensor

from bayesfed.data import Dataset
from bayesfed.errors import ArgumentError
from bayesfed.inference.variational.families import (
    ExponentFamily,
    Family,
    MultivariateNormalFamily,
    NormalFamily,
)
from bayesfed.inference.variational.layout import Block, Layout, base_of, is_factor
from bayesfed.inference.variational.program import Pair
from bayesfed.keys import Key, forked
from bayesfed.trees import Tree


def read_layout(
    pair: Pair, data: Dataset, key: Key, *, client_plate: str = "client", stay: tuple[str, ...] = ()
) -> Layout:
    """Return what every parameter means.

    Parameters
    ----------
    pair
        The model and guide, after their first run.
    data
        Rows to run them on once more; only names and shapes matter.
    key
        Names the random numbers of that run.
    client_plate
        Sites under a plate of this name, and the parameters of their draws, stay with the client.
    stay
        Patterns of the names of further parameters that stay.

    Raises
    ------
    ArgumentError
        If guide and model have different latent sites, or one draw mixes sites that stay with sites
        that travel.
    """
    probe = {
        name: leaf
        + 0.1
        * torch.rand(leaf.shape, dtype=leaf.dtype, generator=key.child("probe", name).generator())
        for name, leaf in pair.first.items()
    }
    with forked(key.child("run")), pair.held(probe), torch.no_grad():
        guide = poutine.trace(pair.guide).get_trace(data.inputs, data.targets)
        model = poutine.trace(poutine.replay(pair.model, trace=guide)).get_trace(
            data.inputs, data.targets
        )
    if not any(node["is_observed"] for _, node in _samples(model)):
        hint = "pyro.sample('y', ..., obs=targets), or pyro.factor"
        raise ArgumentError(
            "federated_svi, model", "a site that observes the targets", "none", hint
        )
    seen = {name: pair.constrained(name, leaf) for name, leaf in probe.items()}
    latent = {n: node for n, node in _samples(model) if not node["is_observed"]}
    drawn = dict(_samples(guide))
    _check_sites(latent, drawn)
    stays = {n for n, node in latent.items() if _is_under(node, client_plate)}
    blocks, points = list[Block](), set[str]()
    local = {name for name in probe if any(fnmatchcase(name, pattern) for pattern in stay)}
    for node_name, node in drawn.items():
        block = _block(node_name, node["fn"], seen)
        named = set() if block is None else block.names
        at_point = {
            name
            for name, value in seen.items()
            if isinstance(node["fn"], dist.Delta) and _same(value, node["fn"].v)
        }
        if node_name in stays or _is_under(node, client_plate):
            local |= named | at_point
        elif block is not None:
            if not named & local:
                blocks.append(block)
        else:
            points |= at_point
    points |= {name for name in probe if name.startswith("model.")}
    known = set().union(*(block.names for block in blocks))
    joint = [
        name
        for name, node in drawn.items()
        if _is_joint(node) and not _is_under(node, client_plate)
    ]
    if stays and joint:
        raise ArgumentError(
            "federated_svi",
            f"a guide that draws {sorted(stays)} apart",
            f"one joint draw {joint}",
            "AutoNormal",
        )
    return Layout(
        # Discrete sites without a draw in the guide are summed out, row by row.
        sites=tuple(n for n in latent if n not in stays and n in drawn),
        local_sites=tuple(sorted(stays)),
        observed=tuple(
            n for n, node in _samples(model) if node["is_observed"] and not is_factor(node["fn"])
        ),
        blocks=tuple(blocks),
        points=tuple(sorted(points - local - known)),
        opaque=tuple(sorted(probe.keys() - known - points - local)),
        local=tuple(sorted(local)),
    )


def _samples(trace: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, node in trace.nodes.items():
        # `pyro.deterministic` is recorded as an observation, which it is not.
        if (
            node["type"] == "sample"
            and type(node["fn"]).__name__ != "_Subsample"
            and not node["infer"].get("_deterministic")
        ):
            yield name, node


def _is_under(node: Mapping[str, Any], plate: str) -> bool:
    return any(frame.name == plate for frame in node["cond_indep_stack"])


def _is_joint(node: Mapping[str, Any]) -> bool:
    return bool(node["infer"].get("is_auxiliary")) and not node["name"].endswith("_unconstrained")


def _check_sites(latent: Mapping[str, dict[str, Any]], drawn: Mapping[str, dict[str, Any]]) -> None:
    missing = sorted(
        n for n, node in latent.items() if n not in drawn and not node["fn"].has_enumerate_support
    )
    extra = sorted(
        n for n, node in drawn.items() if n not in latent and not node["infer"].get("is_auxiliary")
    )
    if missing or extra:
        raise ArgumentError(
            "federated_svi, guide",
            f"draws of the latent sites {sorted(latent)}",
            f"missing {missing}, unknown {extra}",
            "AutoNormal(model)",
        )


def _block(node: str, fn: Any, seen: Tree) -> Block | None:
    name, base = node.removesuffix("_unconstrained"), base_of(fn)

    def find(value: Tensor) -> tuple[str, ...]:
        return tuple(n for n, leaf in seen.items() if _same(leaf, value))[:1]

    wanted: dict[str, tuple[str, ...]]
    match base:
        case dist.Normal():
            family: Family = NormalFamily()
            wanted = {"loc": find(base.loc), "scale": find(base.scale)}
        case dist.MultivariateNormal():
            family = MultivariateNormalFamily()
            wanted = {
                "loc": find(base.loc),
                "scale_tril": find(base.scale_tril) or _split(base.scale_tril, seen),
            }
        case dist.Gamma() | dist.Beta() | dist.Dirichlet():
            family = ExponentFamily(type(base).__name__.lower())
            wanted = {leaf: find(getattr(base, leaf)) for leaf in family.leaves}
        case _:
            return None
    names = [n for of_leaf in wanted.values() for n in of_leaf]
    # A parameter with two roles would have two values after a fusion. One that several draws share
    # has no natural parameter of its own.
    apart = len(set(names)) == len(names) and fn.shape() == base.shape()
    return Block(name, node, family, wanted) if all(wanted.values()) and apart else None


def _split(tril: Tensor, seen: Tree) -> tuple[str, ...]:
    for scale, values in seen.items():
        for unit, matrix in seen.items():
            if (
                matrix.shape == tril.shape
                and values.shape == tril.shape[:1]
                and _same(values[:, None] * matrix, tril)
            ):
                return scale, unit
    return ()


def _same(left: Tensor, right: Tensor) -> bool:
    return left.shape == right.shape and torch.equal(left, right)

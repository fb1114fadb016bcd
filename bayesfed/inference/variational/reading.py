"""Reading a `Layout` from one run of a model and a guide at parameters that are all different."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.nn import PyroModule
from torch import Tensor

from bayesfed.data import Dataset
from bayesfed.errors import ArgumentError
from bayesfed.errors.plurals import plural
from bayesfed.inference.variational.families import (
    ExponentFamily,
    Family,
    MultivariateNormalFamily,
    NormalFamily,
)
from bayesfed.inference.variational.layout import Block, Layout, base_of, is_factor
from bayesfed.inference.variational.program import Pair
from bayesfed.inference.variational.splitting import near, others, split_terms, twice_of
from bayesfed.inference.variational.terms import Node, samples, total_of, traced
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
        If guide and model have different latent sites or shapes of them, one draw mixes sites that
        stay with sites that travel, draws of the guide never vary, those of shared latents depend
        on rows, latents of rows have parameters, or as `split_terms`.
    """
    probe = {
        name: leaf
        + 0.1
        * torch.rand(leaf.shape, dtype=leaf.dtype, generator=key.child("probe", name).generator())
        for name, leaf in pair.first.items()
    }
    with pair.held(probe), torch.no_grad():
        with forked(key.child("alone")):
            alone = poutine.trace(pair.model).get_trace(data.inputs, data.targets)
        with forked(key.child("run")):
            guide = poutine.trace(pair.guide).get_trace(data.inputs, data.targets)
            _check_shapes(alone, guide)
            model = poutine.trace(poutine.replay(pair.model, trace=guide)).get_trace(
                data.inputs, data.targets
            )
        values = {name: node["value"] for name, node in samples(guide)}
        latent = {name: node for name, node in samples(model) if not node["is_observed"]}
        stays = {name for name, node in latent.items() if _is_under(node, client_plate)}
        split = split_terms(pair.model, values, data, key.child("terms"), stays)
        if by_row := [name for name in split.by_row if name in values]:
            _check_amortised(pair, data, by_row, values)
        shared = {
            name: node
            for name, node in samples(guide)
            if name.removesuffix("_unconstrained") not in {*split.by_row, *stays}
            and not _is_under(node, client_plate)
        }
        _check_shared(pair, others(data, key.child("others")), key, shared, values)
    seen = {name: pair.constrained(name, leaf) for name, leaf in probe.items()}
    drawn = dict(samples(guide))
    _check_sites(latent, drawn)
    _check_draws(pair, data, key, probe, values)
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
        sites=tuple(n for n in latent if n not in {*stays, *split.by_row} and n in drawn),
        local_sites=tuple(sorted(stays)),
        observed=tuple(
            n for n, node in samples(model) if n in split.rows and not is_factor(node["fn"])
        ),
        split=split,
        blocks=tuple(blocks),
        points=tuple(sorted(points - local - known)),
        opaque=tuple(sorted(probe.keys() - known - points - local)),
        local=tuple(sorted(local)),
    )


def _check_amortised(pair: Pair, data: Dataset, by_row: Sequence[str], values: Tree) -> None:
    """Raise `ArgumentError` unless the guide has a draw for each row, however many there are."""
    double = twice_of(data)
    try:
        wide: Any = poutine.trace(pair.guide).get_trace(double.inputs, double.targets)
        if all(wide.nodes[name]["value"].shape != values[name].shape for name in by_row):
            return
    except Exception as problem:
        cause: Exception | None = problem
    else:
        cause = None
    name, guide = by_row[0], type(pair.guide).__name__
    expected = (
        f"no latents under the plate of rows in {guide}, whose parameters have the example's "
        f"{plural(len(data), 'row')}"
    )
    hint = "an amortised guide, enumeration, or a plate named client"
    if isinstance(pair.model, PyroModule) and name in pair.model._pyro_samples:
        hint = f"w = self.{name} before the plate, if it is one value for all rows; or {hint}"
    raise ArgumentError(f"site {name}", expected, "one for each row", hint) from cause


def _check_shapes(model: Any, guide: Any) -> None:
    """Raise `ArgumentError` where a draw of the guide has not the shape of the model's."""
    drawn = dict(samples(guide))
    for name, node in samples(model):
        if name in drawn and node["value"].shape != drawn[name]["value"].shape:
            expected = f"a draw of the model's shape {tuple(node['value'].shape)}"
            actual = tuple(drawn[name]["value"].shape)
            hint = "AutoNormal, which is made of the model"
            raise ArgumentError(f"site {name!r}, guide", expected, actual, hint)


def _check_shared(
    pair: Pair, other: Dataset, key: Key, shared: Mapping[str, Node], values: Tree
) -> None:
    """Raise `ArgumentError` if a shared draw of the guide has another density on other rows."""
    try:
        with forked(key.child("run")):
            nodes = dict(samples(traced(pair.guide, values, other)))
        found = {name: (total_of(shared[name]), total_of(nodes[name])) for name in shared}
    except Exception:
        # Rows of other values are nobody's, and a guide need not take them.
        return
    for name, (one, two) in found.items():
        if not near(float(one), float(two)):
            expected, hint = (
                "one distribution for all rows",
                "pyro.param in place of figures of rows",
            )
            raise ArgumentError(f"site {name!r}, guide", expected, "another for other rows", hint)


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


def _check_draws(pair: Pair, data: Dataset, key: Key, probe: Tree, values: Tree) -> None:
    """Raise `ArgumentError` if no draw of the guide is another one: then it is a point."""
    for number in range(8):
        with forked(key.child("draws", number)), pair.held(probe), torch.no_grad():
            trace = poutine.trace(pair.guide).get_trace(data.inputs, data.targets)
        if any(not _same(node["value"], values[name]) for name, node in samples(trace)):
            return
    actual = f"{type(pair.guide).__name__}, a point whose draws never vary"
    hint = "AutoNormal, or AutoMultivariateNormal"
    raise ArgumentError("federated_svi, guide", "a guide with a distribution", actual, hint)


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

"""Whose each term of a model's log density is: the rows', or the prior's.

Nothing goes by a name or a class. The model is traced at the same latent values on some rows, on
other ones and on all of them twice. A term that stays is the prior's, one that doubles is the
rows'; a term that does neither belongs to nobody, and clients would count it wrongly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any

import torch
from pyro import poutine
from torch import Tensor

from bayesfed.data import Dataset
from bayesfed.data.dataset import unchecked
from bayesfed.errors import ArgumentError
from bayesfed.inference.variational.terms import (
    Node,
    Split,
    deterministic,
    samples,
    total_of,
    traced,
)
from bayesfed.keys import Key, forked
from bayesfed.trees import Tree

Group = Mapping[str, Node]
Groups = dict[str, dict[str, Node]]
# Relative differences of sums of log densities that are rounding.
ROUNDING = 2e-5


def split_terms(
    model: Callable[..., Any],
    values: Mapping[str, Tensor],
    data: Dataset,
    key: Key,
    local: Collection[str] = (),
) -> Split:
    """Return whose the log density of each site is.

    Parameters
    ----------
    model
        The model; parameters that it reads must be held.
    values
        Values of latent sites by name.
    data
        Some rows.
    key
        Names the draws of sites without a value, and values of other rows.
    local
        Latent sites of single clients, which may depend on rows as they like.

    Raises
    ------
    ArgumentError
        If a term neither stays nor doubles, a plate over rows is subsampled or of one size, the
        prior of a latent site depends on the rows, or no site observes them.
    """
    runs, other = _Runs(model, values, key), _others(data, key.child("rows"))
    first, (twice, repeated) = runs(data), runs.twice(data)
    changed = runs.tried(other)
    again = runs.tried(twice_of(other)) if changed else {}
    once_more = runs(data, "again")
    rows, prior, by_row = list[str](), list[str](), list[str]()
    for name, group in first.items():
        double, grown = twice.get(name, {}), changed.get(name, {})
        observed = all(node["is_observed"] for node in group.values())
        if not double or name in local:
            continue
        check_scales(group, double, len(data))
        before, grows = _density(group), _shapes(group) != _shapes(double)
        # False of what a model draws without a site: its densities cannot be compared.
        alike = _near(before, _density(once_more.get(name, {})))
        after = _density(double) if repeated else math.nan
        moved = _density(grown)
        if alike and not grows and _near(before, after) and _near(before, moved):
            prior += group if observed else ()
            continue
        if not observed and not grows:
            expected, hint = "a prior that no rows enter", "constants in place of figures of rows"
            raise ArgumentError(f"site {name!r}", expected, "one that changes with them", hint)
        if not alike and not grows:
            expected, hint = "the same density at the same values", "a plate of rows, or no dropout"
            raise ArgumentError(f"site {name!r}", expected, "another one each time", hint)
        if alike:
            check_pairs(group, double)
            _check_sum(name, before, after, len(data))
            _check_sum(name, moved, _density(again.get(name, {})), len(data))
        (rows if observed else by_row).extend(group)
    if not rows:
        hint = "pyro.sample('y', ..., obs=targets), or pyro.factor of the rows"
        expected = "a site that observes the targets"
        raise ArgumentError("federated_svi, model", expected, "none that rows enter", hint)
    return Split(tuple(rows), tuple(prior), tuple(by_row), tuple(runs.derived))


class _Runs:
    """Runs of a model at the same values; latents without one are drawn once and kept."""

    def __init__(self, model: Callable[..., Any], values: Mapping[str, Tensor], key: Key) -> None:
        self.model, self.values, self.key = model, dict(values), key
        self.seen, self.derived = set[str](), Tree()

    def __call__(self, data: Dataset, *name: str) -> Groups:
        exact = torch.backends.cudnn.flags(allow_tf32=False)
        with forked(self.key.child("run", *name)), torch.no_grad(), exact:
            trace = traced(self.model, self.values, data)
        groups: Groups = {}
        # Those that differ between runs depend on rows, or on draws without a site.
        self.derived = {
            name: value
            for name, value in deterministic(trace).items()
            if name not in self.seen or _same(value, self.derived.get(name))
        }
        self.seen |= self.derived.keys()
        for site, node in samples(trace):
            # The turns of a plate that is a loop have a site each.
            loop = next(
                (frame.name for frame in node["cond_indep_stack"] if not frame.vectorized), ""
            )
            group = f"{loop}, {'observed' if node['is_observed'] else 'latent'}" if loop else site
            groups.setdefault(group, {})[site] = node
            if not node["is_observed"]:
                self.values.setdefault(site, node["value"])
        return groups

    def tried(self, data: Dataset) -> Groups:
        """Return the sites; none where the model does not take the rows, which nobody has."""
        with suppress(Exception):
            return self(data)
        return {}

    def twice(self, data: Dataset) -> tuple[Groups, bool]:
        """Return the sites on all rows twice, and whether they have the same values: a process over
        rows may take none twice. A plate that does not grow is named.
        """
        double = twice_of(data)
        try:
            return self(double), True
        except Exception as problem:
            if groups := self.tried(_others(double, self.key)):
                return groups, False
            with suppress(Exception), forked(self.key), torch.no_grad(), poutine.trace() as tracer:
                traced(self.model, self.values, double)
            nodes: Mapping[str, Any] = tracer.trace.nodes
            for name, node in nodes.items():
                if type(node["fn"]).__name__ == "_Subsample" and node["fn"].size == len(data):
                    raise _plate(name, len(double), len(data)) from problem
            problem.add_note(f"federated_svi ran the model on {len(double)} rows")
            raise


def check_scales(group: Group, double: Group, count: int) -> None:
    """Raise `ArgumentError` unless every row counts alike, however many there are."""
    for name in group.keys() & double.keys():
        node, wide = group[name], double[name]
        for one, other in zip(node["cond_indep_stack"], wide["cond_indep_stack"], strict=False):
            grows = one.size == count or (one.size, one.full_size) != (other.size, other.full_size)
            if grows and one.full_size not in (None, one.size):
                found = one.size if one.full_size == count else one.full_size
                raise _plate(one.name, count, found)
        scales = [float(torch.as_tensor(of["scale"]).mean()) for of in (node, wide)]
        if not _near(*scales):
            actual = f"{scales[0]:g} for {count} rows and {scales[1]:g} for {2 * count}"
            hint = "no scale by numbers of rows: clients and batches are weighed outside the model"
            expected = "one for any number of rows"
            raise ArgumentError(f"site {name!r}, scale", expected, actual, hint)


def check_pairs(group: Group, double: Group) -> None:
    """Raise `ArgumentError` where each row has a density with each other one."""
    for name in group.keys() & double.keys():
        try:
            shapes = [
                torch.broadcast_shapes(node["fn"].shape(), node["value"].shape)
                for node in (group[name], double[name])
            ]
        except RuntimeError:
            # A value that the site cannot have, which is refused where rows are looked at.
            continue
        before, after = map(math.prod, shapes)
        if after >= 4 * before > 0:
            expected = "values of the shape that their distribution has"
            actual = f"{tuple(group[name]['value'].shape)} for {tuple(group[name]['fn'].shape())}"
            hint = "obs=targets.squeeze(-1), or mean.squeeze(-1)"
            raise ArgumentError(f"site {name!r}", expected, actual, hint)


def _check_sum(name: str, before: float, after: float, count: int) -> None:
    """Raise `ArgumentError` unless a term of rows is a sum over them."""
    if not _near(2 * before, after):
        expected = "a sum over rows, which doubles with them"
        actual = f"{before:.6g} for {count} rows and {after:.6g} for the same rows twice"
        hint = "sums instead of means, and a term without rows in a factor of its own"
        raise ArgumentError(f"site {name!r}", expected, actual, hint)


def _plate(name: str, rows: int, found: int) -> ArgumentError:
    hint = f"pyro.plate({name!r}, len(inputs)); Training(batch_size=...) draws and weighs batches"
    return ArgumentError(f"plate {name}", f"one of the rows, size {rows}", f"size {found}", hint)


def twice_of(data: Dataset) -> Dataset:
    """Return all rows twice."""
    return data[torch.arange(2 * len(data)) % len(data)]


def _others(data: Dataset, key: Key) -> Dataset:
    """Return rows of other values."""
    generator = key.generator()

    def moved(leaf: Tensor) -> Tensor:
        if not leaf.is_floating_point():
            return leaf
        return leaf + torch.randn(leaf.shape, generator=generator).to(leaf)

    return unchecked(moved(data.inputs), moved(data.targets))


def _shapes(group: Group) -> list[tuple[int, ...]]:
    return [tuple(node["fn"].shape()) for node in group.values()]


def _density(group: Group) -> float:
    """Return the sum of log densities, scales included; NaN where it is not known: of a value that
    a site cannot have or of another type, or to two digits.
    """
    try:
        totals = [total_of(node) for node in group.values()]
    except (ValueError, RuntimeError):
        return math.nan
    known = totals and all(torch.finfo(total.dtype).eps < ROUNDING for total in totals)
    return float(sum(totals)) if known else math.nan


def _same(value: Tensor, other: Tensor | None) -> bool:
    return other is not None and value.shape == other.shape and torch.allclose(value, other)


def _near(left: float, right: float) -> bool:
    """Say whether two numbers are equal to rounding; what is not known counts as equal."""
    if not (math.isfinite(left) and math.isfinite(right)):
        return True
    return abs(left - right) <= ROUNDING * max(1.0, abs(left), abs(right))

"""Whose each term of a model's log density is: the rows', or the prior's.

Nothing goes by a name or a class. The model is traced at the same latent values on some rows, on
other ones, on half of them, and on all and that half again. A term that stays is the prior's, one
that adds up is the rows'; a term that does neither belongs to nobody, and clients would count it
wrongly.
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
from bayesfed.errors.plurals import plural
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
        If a term neither stays nor adds up, a plate over rows is subsampled or of one size, the
        prior of a latent site depends on the rows, or no site observes them.
    """
    # Twice as many others, since the parts of one row are alike.
    runs, other = _Runs(model, values, key), others(twice_of(data), key.child("rows"))
    first, (more, repeated) = runs(data), runs.more(data)
    changed = runs.tried(other)
    again = runs.tried(more_of(other)) if changed else {}
    halves = [runs.tried(half_of(part)) for part in (data, other)]
    once_more = runs(data, "again")
    for run in (more, changed, *halves, runs.tried(_mapped(data, torch.neg))):
        for name in sorted(first.keys() ^ run.keys()) if run else ():
            nodes = {**run, **first}[name].values()
            if name not in local and not all(node["is_observed"] for node in nodes):
                raise _prior_of_rows(name)
    rows, prior, by_row = list[str](), list[str](), list[str]()
    for name, group in first.items():
        wide, grown = more.get(name, {}), changed.get(name, {})
        observed = all(node["is_observed"] for node in group.values())
        if not wide or name in local:
            continue
        check_scales(group, wide, len(data))
        before, grows = _density(group), _shapes(group) != _shapes(wide)
        # False of what a model draws without a site: its densities cannot be compared.
        alike = near(before, _density(once_more.get(name, {})))
        after = _density(wide) if repeated else math.nan
        moved = _density(grown)
        if alike and not grows and near(before, after) and near(before, moved):
            prior += group if observed else ()
            continue
        if not observed and not grows:
            raise _prior_of_rows(name)
        if not alike and not grows:
            expected, hint = "the same density at the same values", "a plate of rows, or no dropout"
            raise ArgumentError(f"site {name!r}", expected, "another one each time", hint)
        if alike:
            check_pairs(group, wide)
            parts = [_density(half.get(name, {})) for half in halves]
            _check_sum(name, before, parts[0], after)
            _check_sum(name, moved, parts[1], _density(again.get(name, {})))
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

    def more(self, data: Dataset) -> tuple[Groups, bool]:
        """Return the sites on `more_of` the rows, and whether they have the same values: a process
        over rows may take none twice. A plate that does not grow is named.
        """
        wide = more_of(data)
        try:
            return self(wide), True
        except Exception as problem:
            if groups := self.tried(others(wide, self.key)):
                return groups, False
            with suppress(Exception), forked(self.key), torch.no_grad(), poutine.trace() as tracer:
                traced(self.model, self.values, wide)
            nodes: Mapping[str, Any] = tracer.trace.nodes
            for name, node in nodes.items():
                if type(node["fn"]).__name__ == "_Subsample" and node["fn"].size == len(data):
                    raise _plate(name, len(wide), len(data)) from problem
            problem.add_note(f"federated_svi ran the model on {plural(len(wide), 'row')}")
            raise


def check_scales(group: Group, wide: Group, count: int) -> None:
    """Raise `ArgumentError` unless every row counts alike, however many there are."""
    for name in group.keys() & wide.keys():
        node, more = group[name], wide[name]
        for one, other in zip(node["cond_indep_stack"], more["cond_indep_stack"], strict=False):
            grows = one.size == count or (one.size, one.full_size) != (other.size, other.full_size)
            if grows and one.full_size not in (None, one.size):
                found = one.size if one.full_size == count else one.full_size
                raise _plate(one.name, count, found)
        scales = [float(torch.as_tensor(of["scale"]).mean()) for of in (node, more)]
        if not near(*scales):
            actual = f"{scales[0]:g} for {plural(count, 'row')} and {scales[1]:g} for more"
            hint = "no scale by numbers of rows: clients and batches are weighed outside the model"
            expected = "one for any number of rows"
            raise ArgumentError(f"site {name!r}, scale", expected, actual, hint)


def check_pairs(group: Group, wide: Group) -> None:
    """Raise `ArgumentError` where each row has a density with each other one."""
    for name in group.keys() & wide.keys():
        try:
            shapes = [
                torch.broadcast_shapes(node["fn"].shape(), node["value"].shape)
                for node in (group[name], wide[name])
            ]
        except RuntimeError:
            # A value that the site cannot have, which is refused where rows are looked at.
            continue
        before, after = map(math.prod, shapes)
        # Of 1.5 to 2 times as many rows, `more_of`.
        if 4 * after >= 9 * before > 0:
            expected = "values of the shape that their distribution has"
            actual = f"{tuple(group[name]['value'].shape)} for {tuple(group[name]['fn'].shape())}"
            hint = "obs=targets.squeeze(-1), or mean.squeeze(-1)"
            raise ArgumentError(f"site {name!r}", expected, actual, hint)


def _check_sum(name: str, before: float, half: float, after: float) -> None:
    """Raise `ArgumentError` unless a term of rows is a sum over them."""
    if not near(before + half, after):
        expected = "a log density that is the sum over rows"
        actual = f"{before:.6g} for some, {half:.6g} for others and {after:.6g} for both"
        hint = (
            "sums instead of means, figures of all rows as constants, and a term without rows in a "
            "factor of its own"
        )
        raise ArgumentError(f"site {name!r}", expected, actual, hint)


def _prior_of_rows(name: str) -> ArgumentError:
    expected, hint = "a prior that no rows enter", "constants in place of figures of rows"
    return ArgumentError(f"site {name!r}", expected, "one that changes with them", hint)


def _plate(name: str, rows: int, found: int) -> ArgumentError:
    hint = f"pyro.plate({name!r}, len(inputs)); Training(batch_size=...) draws and weighs batches"
    return ArgumentError(f"plate {name}", f"one of the rows, size {rows}", f"size {found}", hint)


def twice_of(data: Dataset) -> Dataset:
    """Return all rows twice."""
    return data[torch.arange(2 * len(data)) % len(data)]


def half_of(data: Dataset) -> Dataset:
    """Return the first half of the rows, at least one."""
    return data[: (len(data) + 1) // 2]


def more_of(data: Dataset) -> Dataset:
    """Return all rows and `half_of` them again, as values for each row are repeated."""
    return data[torch.arange(len(data) + len(half_of(data))) % len(data)]


def others(data: Dataset, key: Key) -> Dataset:
    """Return rows of other values."""
    generator = key.generator()
    return _mapped(data, lambda leaf: leaf + torch.randn(leaf.shape, generator=generator).to(leaf))


def _mapped(data: Dataset, change: Callable[[Tensor], Tensor]) -> Dataset:
    inputs, targets = (
        change(leaf) if leaf.is_floating_point() else leaf for leaf in (data.inputs, data.targets)
    )
    return unchecked(inputs, targets)


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


def near(left: float, right: float) -> bool:
    """Say whether two numbers are equal to rounding; what is not known counts as equal."""
    if not (math.isfinite(left) and math.isfinite(right)):
        return True
    return abs(left - right) <= ROUNDING * max(1.0, abs(left), abs(right))

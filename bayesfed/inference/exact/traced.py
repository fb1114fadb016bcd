"""A Pyro model at given unconstrained values: no site is drawn, so that priors may be improper.

The log joint density is split by looking: a site whose density is the same for other rows is the
prior's, also an observed one or a `pyro.factor`; all others are the rows'. Every party looks at the
same made-up rows, so that all agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyro
import torch
from pyro import poutine
from pyro.poutine.messenger import Messenger
from torch import Tensor

from bayesfed.data import Dataset
from bayesfed.errors import PosteriorError
from bayesfed.inference.exact.form import Form
from bayesfed.inference.exact.placed import At, Level, Slot, Values
from bayesfed.inference.exact.refusals import check_observed, depends, in_64_bits, no_sum
from bayesfed.inference.variational.program import Runs, quiet_store
from bayesfed.inference.variational.splitting import check_pairs, check_scales, half_of, more_of
from bayesfed.inference.variational.terms import as_raised, samples
from bayesfed.trees import Tree


class Doubled(Messenger):
    """Make doubles of all values that are drawn, as those at given points are."""

    def _pyro_post_sample(self, msg: Any) -> None:
        if torch.is_tensor(msg["value"]) and msg["value"].is_floating_point():
            msg["value"] = msg["value"].double()


@contextmanager
def doubled() -> Iterator[None]:
    """Work in double precision inside the block, without checks of values, which `vmap` cannot
    make, and without a trace in the parameter store.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with pyro.validation_enabled(False), quiet_store():
            yield
    finally:
        torch.set_default_dtype(before)


@dataclass(frozen=True)
class Traced:
    """A model whose sites are known.

    Parameters
    ----------
    model
        ``model(inputs, targets=None)``.
    plate
        Name of the plate of a client's own latents.
    slots
        The shared latent sites.
    own
        Names of a client's own latent sites.
    prior
        Names of the sites whose density depends neither on rows nor on own values.
    observed
        Names of those that rows enter, own sites left out.
    others
        Names of those that own values enter, and no rows, own sites left out.
    rows
        A made-up row.
    """

    model: Runs
    plate: str
    slots: Mapping[str, Slot]
    own: frozenset[str]
    prior: frozenset[str]
    observed: tuple[str, ...]
    others: tuple[str, ...]
    rows: Dataset

    @property
    def size(self) -> int:
        """Number d of unconstrained values."""
        return max(slot.end for slot in self.slots.values())

    def run(self, data: Dataset, point: Tensor, own: Values | None = None) -> Run:
        """Return the run at shared and own values, by default zeros."""
        return _run(self.model, self.plate, data, point, self.own, own)

    def values(self, point: Tensor) -> Tree:
        """Return the values of all shared sites at a point."""
        return self.run(self.rows, point).values(self.slots)

    def log_prior(self, point: Tensor) -> Tensor:
        """Return the log density of the prior."""
        found = self.run(self.rows, point).densities
        # In the order of the trace: that of a set is another one in every process.
        return torch.stack([found[name] for name in found if name in self.prior]).sum()

    def log_rows(self, data: Dataset, point: Tensor) -> Tensor:
        """Return the log density of rows where no site has own latents."""
        found = self.run(data, point).densities
        return torch.stack([found[name] for name in self.observed]).sum()

    def terms(self, data: Dataset, point: Tensor, own: Tensor) -> Tensor:
        """Return all terms of the log density of rows and own values, ``(E,)``."""
        run = self.run(data, point, own)
        names = (*self.observed, *self.others, *run.own)
        found = [run.nodes[name]["log_prob"] for name in names]
        found += [run.jacobians[name] for name in run.own]
        return torch.cat([leaf.reshape(-1) for leaf in found])

    def check(self, data: Dataset, starts: Iterable[Tensor] = ()) -> None:
        """Check a client's rows, at the first point where all densities are finite; starts are
        points beside those that every model is looked at.

        Raises
        ------
        ArgumentError, PosteriorError
            If the sites are others for these rows, their prior depends on them, a value cannot be
            observed, or the log density of the rows is no sum over them, with the cause if it is
            known.
        """
        own = Level(0.2)
        # Ordered, so that their first half is unlike the other.
        data = data[data.targets.reshape(len(data), -1).sum(1).argsort()]
        for point in (*looked(self.size), *starts):
            found = self.run(data, point, own)
            if all(leaf.isfinite() for leaf in found.densities.values()):
                break
        half, more = (self.run(part, point, own) for part in (half_of(data), more_of(data)))
        known = {*self.prior, *self.observed, *self.others}
        for run in (found, half, more):
            wrong = {name for name, _ in run.slots.items() ^ self.slots.items()}
            if wrong := wrong or known ^ (run.densities.keys() - run.own.keys()):
                raise depends(min(wrong), self.plate)
        check_observed(found.nodes, self.run(data, -point, own).nodes)
        made = self.run(self.rows, point, own).densities
        for name in self.prior:
            if not torch.allclose(found.densities[name], made[name], 1e-6, 1e-9, equal_nan=True):
                raise depends(name, self.plate)
        for name in self.observed:
            total = found.densities[name] + half.densities[name]
            if not torch.allclose(total, more.densities[name], 1e-6, equal_nan=True):
                before, after = ({name: run.nodes[name]} for run in (found, more))
                check_scales(before, after, len(data))
                check_pairs(before, after)
                again = self.run(data, point, own).densities[name]
                raise no_sum(name, drawn=bool(again != found.densities[name]))


class Run(NamedTuple):
    """A run of a model: its shared and own latent sites, log densities with Jacobians, Jacobians
    term by term, and the nodes of its trace.
    """

    slots: dict[str, Slot]
    own: dict[str, Slot]
    densities: Tree
    jacobians: Tree
    nodes: Mapping[str, Any]

    def values(self, names: Iterable[str]) -> Tree:
        """Return the values of sites."""
        return {name: self.nodes[name]["value"] for name in names}


def looked(size: int) -> list[Tensor]:
    """Return points at which a model is looked at, until all its densities are finite at one."""
    first = torch.linspace(-0.3, 0.4, size)
    above = first.abs() + 0.5
    return [first, -first, above, -above]


def traced(model: Runs, form: Form, plate: str) -> Traced:
    """Look at a model: which sites it has, which of them are a client's own (under its plate, or as
    many as there are rows), and which of them rows enter.

    Raises
    ------
    PosteriorError
        If a latent site is discrete, a shared one depends on rows, there is none, no term depends
        on rows, or the model has parameters that are no sites.
    """
    rows = [form.rows(count) for count in (1, 2)]
    with doubled():
        try:
            shapes = [_run(model, plate, part).slots for part in rows]
        except (ValueError, ZeroDivisionError) as problem:
            # Pyro's, of a plate of a subsample, and of one of as many rows as there are but one.
            lag = str(problem) == "size cannot be zero"
            if not lag and not str(problem).startswith("subsample_size does not match"):
                raise
            hint = "a column with the lag" if lag else "pyro.plate('rows', len(inputs))"
            expected, actual = "a model of any number of rows", str(problem).partition(". ")[0]
            raise PosteriorError("federated_svi, model", expected, actual, hint) from problem
        grown = frozenset(
            name
            for name, slot in shapes[0].items()
            if name in shapes[1] and slot.shape != shapes[1][name].shape
        )
        same = dict[str, list[bool]]()
        for point in looked(max((s.end for s in shapes[0].values()), default=0)):
            one, two, moved = (
                _run(model, plate, part, point, grown, Level(own))
                for part, own in zip((*rows, rows[0]), (0.2, 0.2, 0.3), strict=True)
            )
            for name, value in one.densities.items():
                if value.isfinite():
                    same.setdefault(name, [_same(name, one, other) for other in (two, moved)])
            if len(same) == len(one.densities):
                break
    for name, node in one.nodes.items():
        if node["type"] == "param" and node["value"].requires_grad:
            expected, hint = "a model all of whose unknowns are sites", "pyro.sample, or a guide"
            raise PosteriorError(f"parameter {name!r}", expected, "one without a prior", hint)
    still, fixed = (frozenset(name for name in same if same[name][place]) for place in (0, 1))
    for name in one.slots:
        if name not in still & fixed:
            raise depends(name, plate)
    observed = tuple(name for name in one.densities if name not in still and name not in one.own)
    others = tuple(name for name in one.densities if name in still - fixed - one.own.keys())
    if not one.slots or not observed:
        expected = "shared latent sites, and terms that rows enter"
        hint = "obs=targets, of all rows in one site"
        raise PosteriorError("federated_svi, model", expected, [*one.densities], hint)
    prior = (still & fixed) - one.own.keys()
    return Traced(model, plate, one.slots, frozenset(one.own), prior, observed, others, rows[0])


def _same(name: str, one: Run, other: Run) -> bool:
    """Return whether a site has the same density in two runs."""
    return (
        name in other.densities
        and one.nodes[name]["log_prob"].shape == other.nodes[name]["log_prob"].shape
        and torch.allclose(one.densities[name], other.densities[name], rtol=1e-9, atol=1e-12)
    )


def _run(
    model: Runs,
    plate: str,
    data: Dataset,
    point: Tensor | None = None,
    names: frozenset[str] = frozenset(),
    own: Values | None = None,
) -> Run:
    zeros = Level(0.0)
    at = At(zeros if point is None else point, plate, names, zeros if own is None else own)
    inputs, targets = (
        leaf.double() if leaf.is_floating_point() else leaf for leaf in (data.inputs, data.targets)
    )
    with as_raised(), in_64_bits():
        trace = poutine.trace(at(model)).get_trace(inputs, targets)
        trace.compute_log_prob()
    densities = {
        name: node["log_prob_sum"] + (at.jacobians[name].sum() if name in at.jacobians else 0.0)
        for name, node in samples(trace)
    }
    return Run(at.slots[False], at.slots[True], densities, at.jacobians, trace.nodes)

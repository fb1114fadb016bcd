"""A Pyro model at given unconstrained values: no site is drawn, so that priors may be improper.

The log joint density is split by looking: a site whose density is the same for other rows is the
prior's, also an observed one or a `pyro.factor`; all others are the rows'. Every party looks at the
same made-up rows, so that all agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyro
import torch
from pyro import poutine
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.distributions import biject_to

from bayesfed.data import Dataset
from bayesfed.errors import DataError, PosteriorError
from bayesfed.inference.variational.program import Runs, quiet_store
from bayesfed.inference.variational.splitting import twice_of
from bayesfed.inference.variational.terms import as_raised, samples
from bayesfed.trees import Tree

# Most axes of a row, and the types of rows by their number.
AXES = 6
TYPES = (torch.float64, torch.int64, torch.bool, torch.uint8, torch.int32)


class Slot(NamedTuple):
    """Where a site is in the vector of all values: begin, end, unconstrained shape."""

    begin: int
    end: int
    shape: tuple[int, ...]


class At(Messenger):
    """Give every latent site its part of a vector of unconstrained values, in the order of sites.

    Parameters
    ----------
    point
        The values, ``(d,)``; None for zeros.
    plate
        Name of the plate of a client's own latents, which have no place here.
    """

    def __init__(self, point: Tensor | None, plate: str) -> None:
        super().__init__()
        self.point, self.plate = point, plate
        self.slots: dict[str, Slot] = {}
        self.jacobians: Tree = {}

    def _pyro_sample(self, msg: Any) -> None:
        name, fn = msg["name"], msg["fn"]
        if msg["is_observed"] or msg["value"] is not None or type(fn).__name__ == "_Subsample":
            return
        if any(frame.name == self.plate for frame in msg["cond_indep_stack"]):
            expected, hint = "latents that all sites share", "a class of guide, AutoNormal"
            raise PosteriorError(f"site {name!r}", expected, f"one under {self.plate!r}", hint)
        try:
            transform = biject_to(fn.support)
            shape = tuple(transform.inverse_shape(fn.shape()))
        except NotImplementedError as problem:
            expected, hint = "latents with a density on numbers", "summing it out in the model"
            raise PosteriorError(f"site {name!r}", expected, type(fn).__name__, hint) from problem
        begin = max((slot.end for slot in self.slots.values()), default=0)
        self.slots[name] = slot = Slot(begin, begin + torch.Size(shape).numel(), shape)
        free = torch.zeros(shape)
        if self.point is not None and slot.end <= len(self.point):
            free = self.point[slot.begin : slot.end].reshape(shape)
        msg["value"] = transform(free)
        self.jacobians[name] = transform.log_abs_det_jacobian(free, msg["value"]).sum()


class Doubled(Messenger):
    """Make doubles of all values that are drawn, as those at given points are."""

    def _pyro_post_sample(self, msg: Any) -> None:
        if torch.is_tensor(msg["value"]) and msg["value"].is_floating_point():
            msg["value"] = msg["value"].double()


@dataclass(frozen=True)
class Form:
    """Shape and type of a row's input and target, as numbers that can be added over sites.

    Parameters
    ----------
    numbers
        For inputs and then targets: the type, the number of axes, their lengths, zeros.
    """

    numbers: tuple[int, ...]

    @classmethod
    def of(cls, data: Dataset) -> Form:
        """Return the form of a site's rows."""
        numbers = list[int]()
        for leaf in (data.inputs, data.targets):
            kind = torch.float64 if leaf.is_floating_point() else leaf.dtype
            if kind not in TYPES or leaf.ndim > AXES:
                expected = f"rows of numbers with fewer than {AXES} axes"
                raise DataError("federated_svi", expected, f"{leaf.dtype}", "float32 or int64")
            axes = leaf.shape[1:]
            numbers += [TYPES.index(kind), len(axes), *axes, *[0] * (AXES - len(axes))]
        return cls(tuple(numbers))

    @classmethod
    def read(cls, numbers: Tensor) -> Form:
        """Return the form that numbers say."""
        return cls(tuple(int(number) for number in numbers))

    @property
    def words(self) -> str:
        """What an input and a target are."""
        one = self.rows(1)
        told = (f"{tuple(leaf.shape[1:])} of {leaf.dtype}" for leaf in (one.inputs, one.targets))
        return "inputs {}, targets {}".format(*told)

    def rows(self, count: int) -> Dataset:
        """Return so many made-up rows: fractions between .5 and 1.5, whole numbers 0."""
        leaves = list[Tensor]()
        for part in (self.numbers[: AXES + 2], self.numbers[AXES + 2 :]):
            shape = (count, *part[2 : 2 + part[1]])
            size, kind = torch.Size(shape).numel(), TYPES[part[0]]
            leaf = torch.zeros(shape, dtype=kind)
            if kind.is_floating_point:
                leaf = (torch.arange(1, size + 1, dtype=kind) * 0.618 % 1 + 0.5).reshape(shape)
            leaves.append(leaf)
        return Dataset(leaves[0], leaves[1])


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
        The latent sites.
    prior
        Names of the sites whose density does not depend on rows.
    observed
        Names of the others.
    rows
        A made-up row.
    """

    model: Runs
    plate: str
    slots: Mapping[str, Slot]
    prior: frozenset[str]
    observed: tuple[str, ...]
    rows: Dataset

    @property
    def size(self) -> int:
        """Number d of unconstrained values."""
        return max(slot.end for slot in self.slots.values())

    def densities(self, data: Dataset, point: Tensor) -> Tree:
        """Return the log density of every site at a point, with Jacobians."""
        return _run(self.model, self.plate, data, point).densities

    def values(self, point: Tensor) -> Tree:
        """Return the values of all latent sites at a point."""
        nodes = _run(self.model, self.plate, self.rows, point).nodes
        return {name: nodes[name]["value"] for name in self.slots}

    def log_prior(self, point: Tensor) -> Tensor:
        """Return the log density of the prior."""
        found = self.densities(self.rows, point)
        # In the order of the trace: that of a set is another one in every process.
        return torch.stack([found[name] for name in found if name in self.prior]).sum()

    def log_rows(self, data: Dataset, point: Tensor) -> Tensor:
        """Return the log density of rows."""
        found = self.densities(data, point)
        return torch.stack([found[name] for name in self.observed]).sum()

    def check(self, data: Dataset) -> None:
        """Check a client's rows.

        Raises
        ------
        PosteriorError
            If the sites are others for these rows, their prior depends on them, or the log density
            of the rows is no sum over them.
        """
        point = torch.linspace(-0.3, 0.4, self.size)
        found = _run(self.model, self.plate, data, point)
        if found.slots != self.slots:
            wrong = sorted(set(found.slots.items()) ^ set(self.slots.items()))[0][0]
            raise _depends(wrong)
        made = self.densities(self.rows, point)
        twice = self.densities(twice_of(data), point)
        for name in self.prior:
            if not torch.allclose(found.densities[name], made[name], rtol=1e-6, atol=1e-9):
                raise _depends(name)
        for name in self.observed:
            if not torch.allclose(2 * found.densities[name], twice[name], 1e-6, equal_nan=True):
                expected, hint = "a sum over rows, which doubles with them", "sums, not means"
                raise PosteriorError(f"site {name!r}", expected, "another", hint)


class Run(NamedTuple):
    """A run of a model: its latent sites, log densities, and the nodes of its trace."""

    slots: dict[str, Slot]
    densities: Tree
    nodes: Mapping[str, Any]


def traced(model: Runs, form: Form, plate: str) -> Traced:
    """Look at a model: which sites it has, and which of them rows enter.

    Raises
    ------
    PosteriorError
        If a latent site is discrete, depends on rows or is under the client's plate, there is none,
        no term depends on rows, or the model has parameters that are no sites.
    """
    with doubled():
        size = max((s.end for s in _run(model, plate, form.rows(1)).slots.values()), default=0)
        point = torch.linspace(-0.3, 0.4, size)
        one, two = (_run(model, plate, form.rows(count), point) for count in (1, 2))
    for name, node in one.nodes.items():
        if node["type"] == "param" and node["value"].requires_grad:
            expected, hint = "a model all of whose unknowns are sites", "pyro.sample, or a guide"
            raise PosteriorError(f"parameter {name!r}", expected, "one without a prior", hint)
    prior = frozenset(
        name
        for name, value in one.densities.items()
        if name in two.densities
        and one.nodes[name]["log_prob"].shape == two.nodes[name]["log_prob"].shape
        and torch.allclose(value, two.densities[name], rtol=1e-9, atol=1e-12)
    )
    for name in one.slots:
        if name not in prior:
            raise _depends(name)
    observed = tuple(name for name in one.densities if name not in prior)
    if not size or not observed:
        expected, hint = "latent sites, and terms that rows enter", "obs=targets"
        raise PosteriorError("federated_svi, model", expected, [*one.densities], hint)
    return Traced(model, plate, one.slots, prior, observed, form.rows(1))


def _run(model: Runs, plate: str, data: Dataset, point: Tensor | None = None) -> Run:
    at = At(point, plate)
    inputs, targets = (
        leaf.double() if leaf.is_floating_point() else leaf for leaf in (data.inputs, data.targets)
    )
    with as_raised():
        trace = poutine.trace(at(model)).get_trace(inputs, targets)
    trace.compute_log_prob()
    densities = {
        name: node["log_prob_sum"] + at.jacobians.get(name, 0.0) for name, node in samples(trace)
    }
    return Run(at.slots, densities, trace.nodes)


def _depends(name: str) -> PosteriorError:
    expected, hint = (
        "a prior that is the same for all rows",
        "constants in place of figures of rows",
    )
    return PosteriorError(f"site {name!r}", expected, "another", hint)

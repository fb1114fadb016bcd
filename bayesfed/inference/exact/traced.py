"""A Pyro model at given unconstrained values: no site is drawn, so that priors may be improper.

The log joint density is split by looking: a site whose density is the same for other rows is the
prior's, also an observed one or a `pyro.factor`; all others are the rows'. Every party looks at the
same made-up rows, so that all agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
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
        Values of the shared sites, ``(d,)``; None for zeros.
    own
        Values of the sites under the client's plate; None for zeros.
    plate
        Name of that plate.
    """

    def __init__(self, point: Tensor | None, own: Tensor | None, plate: str) -> None:
        super().__init__()
        self.points, self.plate = (point, own), plate
        self.slots: tuple[dict[str, Slot], dict[str, Slot]] = ({}, {})
        self.jacobians: Tree = {}

    def _pyro_sample(self, msg: Any) -> None:
        name, fn = msg["name"], msg["fn"]
        if msg["is_observed"] or msg["value"] is not None or type(fn).__name__ == "_Subsample":
            return
        try:
            transform = biject_to(fn.support)
            shape = tuple(transform.inverse_shape(fn.shape()))
        except NotImplementedError as problem:
            raise PosteriorError(
                f"site {name!r}",
                "latent sites with a density on numbers",
                type(fn).__name__,
                "summing the discrete site out in the model",
            ) from problem
        kind = any(frame.name == self.plate for frame in msg["cond_indep_stack"])
        slots, point = self.slots[kind], self.points[kind]
        begin = max((slot.end for slot in slots.values()), default=0)
        slots[name] = slot = Slot(begin, begin + torch.Size(shape).numel(), shape)
        free = torch.zeros(shape) if point is None else point[slot.begin : slot.end].reshape(shape)
        msg["value"] = transform(free)
        self.jacobians[name] = transform.log_abs_det_jacobian(free, msg["value"]).sum()


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
    slots, own
        Shared latent sites, and those of one client.
    prior
        Names of the sites whose density does not depend on rows.
    observed
        Names of the others that are no latent sites.
    rows
        A made-up row.
    """

    model: Runs
    plate: str
    slots: Mapping[str, Slot]
    own: Mapping[str, Slot]
    prior: frozenset[str]
    observed: tuple[str, ...]
    rows: Dataset

    @property
    def size(self) -> int:
        """Number d of shared unconstrained values."""
        return max((slot.end for slot in self.slots.values()), default=0)

    @property
    def own_size(self) -> int:
        """Number of a client's own unconstrained values."""
        return max((slot.end for slot in self.own.values()), default=0)

    def densities(self, data: Dataset, point: Tensor | None, own: Tensor | None = None) -> Tree:
        """Return the log density of every site, and under ``=NAME`` the values of latent ones."""
        at, trace = _traced(self.model, self.plate, data, point, own)
        return _densities(at, trace) | {
            f"={name}": trace.nodes[name]["value"] for slots in at.slots for name in slots
        }

    def log_prior(self, data: Dataset, point: Tensor) -> Tensor:
        """Return the log density of the prior, with the Jacobian: the same for all rows."""
        found = self.densities(data, point)
        return sum((found[name] for name in self.prior), torch.zeros(()))

    def log_rows(self, data: Dataset, point: Tensor, own: Tensor | None = None) -> Tensor:
        """Return the log density of the rows, and of the client's own latents, given the shared."""
        found = self.densities(data, point, own)
        rows = [value for name, value in found.items() if name[0] != "=" and name not in self.prior]
        return sum(rows, torch.zeros(()))

    def at(self, data: Dataset) -> Traced:
        """Return the model for the rows of a client, whose own latents may have other shapes.

        Raises
        ------
        PosteriorError
            If the shared sites are others for these rows, their density depends on them, or that of
        the rows is no sum over them.
        """
        point = torch.linspace(-0.3, 0.4, self.size)
        at, trace = _traced(self.model, self.plate, data, point, None)
        found = _densities(at, trace)
        made = self.densities(self.rows, point)
        if at.slots[0] != dict(self.slots):
            wrong = sorted(set(at.slots[0].items()) ^ set(self.slots.items()))[0][0]
            hint = f"pyro.plate({self.plate!r}, ...) around what each client has for itself"
            raise PosteriorError(f"site {wrong!r}", "the same shape for all rows", "another", hint)
        for name in self.prior:
            if not torch.allclose(found[name], made[name], rtol=1e-6, atol=1e-9):
                raise _depends(name)
        double = data[torch.arange(2 * len(data)) % len(data)]
        twice = _densities(*_traced(self.model, self.plate, double, point, None))
        for name in self.observed:
            if not torch.allclose(2 * found[name], twice[name], rtol=1e-6, equal_nan=True):
                expected, hint = "a sum over rows, which doubles with them", "sums instead of means"
                raise PosteriorError(f"site {name!r}", expected, "another", hint)
        return replace(self, own=at.slots[1])


def traced(model: Runs, form: Form, plate: str) -> Traced:
    """Look at a model: which sites it has, and whose they are.

    Raises
    ------
    PosteriorError
        If a latent site is discrete or depends on rows, there is none, or the model has parameters
        that are no sites.
    """
    with doubled():
        one = _traced(model, plate, form.rows(1), None, None)
        size = max((slot.end for slot in one[0].slots[0].values()), default=0)
        point = torch.linspace(-0.3, 0.4, size)
        looks = [_traced(model, plate, form.rows(count), point, None) for count in (1, 2)]
        (at, trace), (_, other) = looks
        if free := [
            name
            for name, node in trace.nodes.items()
            if node["type"] == "param" and node["value"].requires_grad
        ]:
            raise PosteriorError(
                f"parameter {free[0]!r}",
                "a model all of whose unknowns are sites",
                "a parameter without a prior",
                "pyro.sample in its place, or a guide",
            )
        if not size:
            raise PosteriorError("federated_svi", "a latent site", "none", "pyro.sample")
        before, after = (_densities(*look) for look in looks)
        prior = frozenset(
            name
            for name, value in before.items()
            if name in after
            and name not in at.slots[1]
            and trace.nodes[name]["log_prob"].shape == other.nodes[name]["log_prob"].shape
            and torch.allclose(value, after[name], rtol=1e-9, atol=1e-12)
        )
        for name in at.slots[0]:
            if name not in prior:
                raise _depends(name)
        rows = [name for name in before if name not in prior and name not in at.slots[1]]
        return Traced(model, plate, *at.slots, prior, tuple(rows), form.rows(1))


def _traced(
    model: Runs, plate: str, data: Dataset, point: Tensor | None, own: Tensor | None
) -> tuple[At, Any]:
    at = At(point, own, plate)
    inputs, targets = (
        leaf.double() if leaf.is_floating_point() else leaf for leaf in (data.inputs, data.targets)
    )
    trace = poutine.trace(at(model)).get_trace(inputs, targets)
    trace.compute_log_prob()
    return at, trace


def _densities(at: At, trace: Any) -> Tree:
    return {
        name: node["log_prob_sum"] + at.jacobians.get(name, 0.0)
        for name, node in trace.nodes.items()
        if "log_prob_sum" in node and type(node["fn"]).__name__ != "_Subsample"
    }


def _depends(name: str) -> PosteriorError:
    hint = "a plate of the client's own latents around it, or a guide"
    return PosteriorError(
        f"site {name!r}", "a prior that is the same for all rows", "another", hint
    )

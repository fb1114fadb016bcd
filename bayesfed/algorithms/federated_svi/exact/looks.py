"""`Looks`: what every party finds out of a model by itself, once for each form of rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeVar, cast

import torch
from torch import Tensor

from bayesfed.data import Dataset
from bayesfed.federated import Algorithm, Phase
from bayesfed.federated.core import MODEL, of, owned
from bayesfed.inference.exact.form import Form
from bayesfed.inference.exact.traced import Traced, doubled, traced
from bayesfed.inference.variational import FittedGuide, Runs
from bayesfed.trees import Tree, under

# Prefix of the leaves of a fit in state and message.
FIT = "fit/"


class Fits(Protocol):
    """What makes a fit of independent Gaussians."""

    def __call__(self, *, example: Dataset) -> Algorithm:
        """Return the fit."""


class Fitting(NamedTuple):
    """A fit of independent Gaussians, and the type of the rows that the model takes then."""

    algorithm: Algorithm
    dtype: torch.dtype

    @property
    def phase(self) -> Phase:
        """Its phase."""
        return self.algorithm.phases[0]

    @property
    def initial(self) -> Tree:
        """Its first leaves in our state."""
        return of(FIT[:-1], owned(self.algorithm.initial, MODEL))

    def posterior(self, state: Tree) -> FittedGuide:
        """Return the posterior of our state."""
        made = self.algorithm.posterior
        return cast(FittedGuide, made and made(of(MODEL, under(state, FIT))))

    def gaussian(self, state: Tree, made: Traced) -> tuple[Tensor, Tensor]:
        """Return means and sds of the unconstrained values of all sites, ``(d,)`` each."""
        found = self.posterior(state)
        mean, sd = torch.zeros(2, made.size, dtype=torch.float64)
        for block in found.layout.blocks:
            slot, moments = made.slots[block.name], block.moments(found.pair, found.parameters)
            if moments:
                mean[slot.begin : slot.end] = moments.mean.detach().flatten()
                sd[slot.begin : slot.end] = moments.sd.detach().flatten()
        return mean, sd


@dataclass(frozen=True)
class Looks:
    """A model, and what was found out of it.

    Parameters
    ----------
    model
        ``model(inputs, targets=None)``.
    plate
        Name of the plate of a site's own latents.
    make
        What makes the fit of a model with many values.
    there
        Rows of every site of the pool, by its name, as the server knows before the first round.
    """

    model: Runs
    plate: str
    make: Fits = field(repr=False, compare=False)
    there: dict[str, int] = field(default_factory=dict, repr=False, compare=False)
    traces: dict[Form, Traced] = field(default_factory=dict, repr=False, compare=False)
    fits: dict[Form, Fitting] = field(default_factory=dict, repr=False, compare=False)

    def forget(self) -> None:
        """Forget all: a run begins, and what the model uses may have changed."""
        self.traces.clear()
        self.fits.clear()

    def at(self, numbers: Tensor) -> Traced:
        """Return the model's sites; numbers are those of the form of rows."""
        return _once(self.traces, numbers, lambda form: traced(self.model, form, self.plate))

    def fit(self, numbers: Tensor) -> Fitting:
        """Return the fit of a model with many sites."""
        return _once(self.fits, numbers, self._fit)

    def check(self, data: Dataset) -> None:
        """Check that the model can be used with rows; errors are those of `Traced.check`."""
        found = traced(self.model, Form.of(data), self.plate)
        with doubled():
            found.check(data)

    def _fit(self, form: Form) -> Fitting:
        rows, usual = form.rows(2), torch.get_default_dtype()
        try:
            return Fitting(self.make(example=in_type(rows, usual)), usual)
        except RuntimeError:
            # A model whose constants have 64 bits.
            return Fitting(self.make(example=rows), torch.float64)


def in_type(data: Dataset, dtype: torch.dtype) -> Dataset:
    """Return rows whose fractions have a type."""
    inputs, targets = (
        leaf.to(dtype) if leaf.is_floating_point() else leaf for leaf in (data.inputs, data.targets)
    )
    return Dataset(inputs, targets)


Found = TypeVar("Found")


def _once(found: dict[Form, Found], numbers: Tensor, make: Callable[[Form], Found]) -> Found:
    form = Form.read(numbers)
    if form not in found:
        found[form] = make(form)
    return found[form]

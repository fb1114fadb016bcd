"""Latent sites at given unconstrained values: `Slot`, where a site is among them, and `At`, which
gives every site its own.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.distributions import biject_to

from bayesfed.errors import PosteriorError
from bayesfed.trees import Tree


class Slot(NamedTuple):
    """Where a site is in the vector of all values: begin, end, unconstrained shape."""

    begin: int
    end: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Level:
    """One value for every coordinate of a vector whose length is not known yet. It is no tensor, so
    that nothing can be computed of all its coordinates.

    Parameters
    ----------
    value
        The value.
    """

    value: float

    def __len__(self) -> int:
        """Return a length that no model reaches."""
        return sys.maxsize

    def __getitem__(self, part: slice) -> Tensor:
        """Return the coordinates of a part, in float64."""
        return torch.full((part.stop - part.start,), self.value, dtype=torch.float64)


Values = Tensor | Level
"""Unconstrained values of sites, one after the other."""


class At(Messenger):
    """Give every latent site its part of a vector of unconstrained values, in the order of sites.

    Parameters
    ----------
    point
        The values of the shared sites, ``(d,)`` or more.
    plate
        Name of the plate of a client's own latents.
    names
        Sites that are a client's own without that plate.
    own
        The values of a client's own sites, ``(m,)`` or more.
    """

    def __init__(self, point: Values, plate: str, names: frozenset[str], own: Values) -> None:
        super().__init__()
        self.plate, self.names = plate, names
        self.values: dict[bool, Values] = {False: point, True: own}
        self.slots: dict[bool, dict[str, Slot]] = {False: {}, True: {}}
        self.jacobians: Tree = {}

    def _pyro_sample(self, msg: Any) -> None:
        name, fn = msg["name"], msg["fn"]
        if msg["is_observed"] or msg["value"] is not None or type(fn).__name__ == "_Subsample":
            return
        try:
            transform = biject_to(fn.support)
            shape = tuple(transform.inverse_shape(fn.shape()))
        except NotImplementedError as problem:
            expected, hint = "latents with a density on numbers", "summing it out in the model"
            raise PosteriorError(f"site {name!r}", expected, type(fn).__name__, hint) from problem
        frames = msg["cond_indep_stack"]
        own = name in self.names or any(frame.name == self.plate for frame in frames)
        slots, values = self.slots[own], self.values[own]
        begin = max((slot.end for slot in slots.values()), default=0)
        slots[name] = slot = Slot(begin, begin + torch.Size(shape).numel(), shape)
        # A vector that is too short is one of other rows, which is said afterwards.
        free = torch.zeros(shape)
        if slot.end <= len(values):
            free = values[slot.begin : slot.end].reshape(shape)
        msg["value"] = transform(free)
        self.jacobians[name] = transform.log_abs_det_jacobian(free, msg["value"])

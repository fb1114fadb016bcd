"""Edge lists arranged for message passing, once per model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bayesfed.models.random_fields.ising import Ising
from bayesfed.models.random_fields.kept import kept


@dataclass(frozen=True)
class Wiring:
    """Directed edges of a pairwise model: edge e runs left to right, edge E + e right to left.

    Parameters
    ----------
    source, target
        ``(2 E,)``, variables at the ends.
    half
        ``(2 E,)``, half the coupling, float64.
    field
        ``(n,)``, fields of the model with agreement tables, float64.
    groups
        Directed edges by the colour of their source.
    """

    source: Tensor
    target: Tensor
    half: Tensor
    field: Tensor
    groups: tuple[Tensor, ...]

    @staticmethod
    @kept
    def of(model: Ising) -> Wiring:
        """Return the wiring of a model."""
        (left, right), half = model.edges, model.coupling.double() / 2
        source, target = torch.cat([left, right]), torch.cat([right, left])
        colour = model.colours[source]
        groups = tuple((colour == number).nonzero(as_tuple=True)[0] for number in colour.unique())
        return Wiring(source, target, torch.cat([half, half]), model.symmetric_field(), groups)

    def reverse(self, edges: Tensor) -> Tensor:
        """Return the edges that run the other way."""
        count = len(self.source) // 2
        return torch.where(edges < count, edges + count, edges - count)

    def incoming(self, messages: Tensor) -> Tensor:
        """Return the sum of the messages ``(B, 2 E)`` that each variable receives, ``(B, n)``."""
        return messages.new_zeros(len(messages), len(self.field)).index_add_(
            1, self.target, messages
        )


def placed(model: Ising, device: torch.device) -> Ising:
    """Return the model with its tensors on a device, the same object every time."""
    return model if model.field.device == device else _moved(model, device)


@kept
def _moved(model: Ising, device: torch.device) -> Ising:
    field, edges, coupling, colours = (
        values.to(device) for values in (model.field, model.edges, model.coupling, model.colours)
    )
    return Ising(field, edges, coupling, model.shape, colours)

"""A layer of one's own, which the how-to prints."""
# mypy: allow-untyped-defs

from dataclasses import dataclass
from typing import ClassVar

import torch

from bayesfed.federated import Layer, Sent, Traits


@dataclass(frozen=True)
class Logged(Layer):
    """Count a client's turns at the client, and rounds at the server."""

    owner: str = "log"
    traits: ClassVar[Traits] = Traits(silent=True, blind=True)

    def start(self, moment):
        return {"rounds": torch.zeros(())}

    def send(self, visit, fit):
        turns = visit.memory.get("turns", torch.zeros(()))
        return Sent(fit, memory={"turns": turns + 1})

    def step(self, own, moment, total, inner):
        model, figures = inner(total)
        return {"rounds": own["rounds"] + 1}, model, figures

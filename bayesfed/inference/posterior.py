"""A declared model's posterior after a run: what can be drawn, predicted and scored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from pyro import poutine
from torch import Tensor
from torch.func import functional_call

from bayesfed.keys import Key, forked
from bayesfed.models.belief import Belief, guide
from bayesfed.models.declared import Declared
from bayesfed.trees import Tree, to


@dataclass(frozen=True)
class DeclaredPosterior:
    """``q(w) q(s) q(rho | s)`` of every site, with the points beside it.

    Draws come from the whole guide. Predictions use the transmitted model: an entry with q(s) <= 1/2
    is zero, as it was in training.
    """

    declared: Declared
    belief: Belief
    points: Tree

    def draw(self, key: Key) -> Tree:
        """Return one draw of every site: ``SITE.w``, ``SITE.s``, ``SITE.rho``, each ``(M, N)``."""
        with forked(key):
            trace = poutine.trace(guide).get_trace(self.belief)
        values: dict[str, Any] = {name: node["value"] for name, node in trace.nodes.items() if node["type"] == "sample"}
        return values

    def predict(self, draw: Tree, inputs: Tensor) -> Tensor:
        """Return the network's outputs at one draw."""
        weights = {name: torch.where(site.active, draw[f"{name}.w"], 0.0).view(self.declared.sites[name].shape) for name, site in self.belief.items()}
        with torch.no_grad():
            output: Tensor = functional_call(self.declared.net, to({**self.points, **weights}, inputs.device), (inputs,))
        return output

    def log_likelihood(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return each row's log likelihood at temperature 1, ``(B,)``."""
        return self.declared.likelihood.pointwise(outputs, targets)

    def respond(self, outputs: Tensor, key: Key) -> Tensor:
        """Draw targets given outputs."""
        with forked(key):
            return self.declared.likelihood.observe(outputs, None, 1.0)

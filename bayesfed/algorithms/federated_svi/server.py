"""`Fuse`: the server of federated SVI; what the sum of the clients' answers does to the posterior."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from bayesfed.algorithms.federated_svi.local import kind_of
from bayesfed.errors import UpdateError
from bayesfed.federated.aggregation.servers import summed
from bayesfed.federated.core.protocols import Info
from bayesfed.federated.core.update import Reducer
from bayesfed.federated.training.schedules import Schedule, constant
from bayesfed.inference.variational.fusion import Fused, Fusion, SummedGradients
from bayesfed.trees import Tree, zip_map

FIRST, SECOND, COUNT = "adam/first/", "adam/second/", "adam/steps"


@dataclass(frozen=True)
class Fuse:
    """The server of every rule: a weighted mean, a sum of changes, or a step of Adam on summed gradients, its rate times ``schedule(round)``."""

    fused: Fused
    fusion: Fusion
    schedule: Schedule = constant

    def initial(self) -> Tree:
        """Return the state before round 0."""
        state = self.fusion.initial(self.fused)
        if isinstance(self.fusion, SummedGradients):
            zeros = {f"{prefix}{name}": torch.zeros_like(leaf) for prefix in (FIRST, SECOND) for name, leaf in state.items()}
            return {**state, **zeros, COUNT: torch.zeros(())}
        return state

    def publish(self, state: Tree, round: int, version: int | None) -> Tree:
        """Publish the posterior."""
        return {name: leaf for name, leaf in state.items() if not name.startswith("adam/")}

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Fuse.

        Raises
        ------
        UpdateError
            If the fused natural parameters belong to no distribution; the state is as it was.
        """
        total = summed(reducer, kind_of(self.fusion))
        if isinstance(self.fusion, SummedGradients):
            return self._descend(state, total.total, self.fusion.learning_rate * self.schedule(round)), {}
        if self.fusion.adds:
            state = zip_map(torch.add, state, total.total)
        elif total.weight:
            state = total.mean()
        try:
            self.fusion.parameters(state, self.fused)
        except ValueError as problem:
            raise UpdateError(str(problem)) from problem
        return state, {}

    def _descend(self, state: Tree, gradients: Tree, rate: float) -> Tree:
        steps = state[COUNT] + 1
        first = {name: torch.lerp(leaf, state[f"{FIRST}{name}"], 0.9) for name, leaf in gradients.items()}
        second = {name: torch.lerp(leaf.square(), state[f"{SECOND}{name}"], 0.999) for name, leaf in gradients.items()}
        size = rate * torch.sqrt(1 - 0.999**steps) / (1 - 0.9**steps)
        moved: dict[str, Any] = {name: state[name] - size * first[name] / (second[name].sqrt() + 1e-8) for name in gradients}
        moments = {f"{FIRST}{name}": leaf for name, leaf in first.items()} | {f"{SECOND}{name}": leaf for name, leaf in second.items()}
        return {**moved, **moments, COUNT: steps}

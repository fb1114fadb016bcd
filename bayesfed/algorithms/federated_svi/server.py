"""`Fuse`: the server of federated SVI, which applies the fusion rule to the sum of the clients'
payloads.
"""

from __future__ import annotations

from dataclasses import dataclass

from bayesfed.algorithms.federated_svi.moves import moves
from bayesfed.errors import UpdateError
from bayesfed.federated import Reducer, constant
from bayesfed.federated.aggregation.servers import summed
from bayesfed.federated.core import Info
from bayesfed.federated.training.optimisers import Schedule
from bayesfed.inference.variational import Fused, Fusion
from bayesfed.trees import Tree


@dataclass(frozen=True)
class Fuse:
    """The server of every fusion rule.

    Parameters
    ----------
    fused
        The model and guide, and what the guide's parameters mean.
    fusion
        The rule; its `step` makes the next state.
    schedule
        Factor on the rule's learning rate, by round.
    """

    fused: Fused
    fusion: Fusion
    schedule: Schedule = constant

    @property
    def averages(self) -> bool:
        """Whether a step is a mean, leaf by leaf, of parameters that may take any value."""
        return self.fusion.kind == "value"

    @property
    def stale(self) -> str | None:
        """How old answers are taken (`FedBuff`): changes of factors as they were sent, parameters
        as changes of the state they were begun with.
        """
        return (
            "as sent"
            if self.fusion.kind == "natural" and self.fusion.adds
            else "rebased"
            if self.averages
            else None
        )

    def initial(self) -> Tree:
        """Return the state before round 0."""
        return self.fusion.initial(self.fused)

    def publish(self, state: Tree, round: int, version: int | None) -> Tree:
        """Publish what the rule lets clients have of the state."""
        return self.fusion.publish(state)

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Apply the rule.

        Raises
        ------
        UpdateError
            If the clients sent another kind than the rule's, or the next state belongs to no
            distribution.
        """
        before, answers = state, summed(reducer, self.fusion.kind)
        state = self.fusion.step(state, answers, self.schedule(round), self.fused)
        try:
            after = self.fusion.parameters(self.fusion.publish(state), self.fused)
        except ValueError as problem:
            raise UpdateError(str(problem)) from problem
        return state, moves(
            self.fused, self.fusion.parameters(self.fusion.publish(before), self.fused), after
        )

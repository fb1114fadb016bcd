"""`equal_weights`: clients weigh alike, and nobody gains influence by claiming many rows."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from bayesfed.algorithms.registry import ALGORITHM
from bayesfed.errors.checks import checked
from bayesfed.federated import Algorithm, Assignment, Layer, Skip, Traits, layered
from bayesfed.federated.aggregation.changes import VECTORS
from bayesfed.federated.core import Turn
from bayesfed.trees import Tree


@checked(algorithm=ALGORITHM)
def equal_weights(algorithm: Algorithm) -> Algorithm:
    """Give every client with a weight above zero the weight 1, so that nobody gains influence by
    claiming many rows.

    Raises
    ------
    ArgumentError
        If clients send something other than changes or values.
    """
    where = f"equal_weights, {algorithm.name!r}"
    return layered(algorithm, EqualWeights(), where=where, one_phase=False)


@dataclass(frozen=True)
class EqualWeights(Layer):
    """Positive weights are 1."""

    owner: str = "weights"
    traits: ClassVar[Traits] = Traits(takes=VECTORS)

    def plan(self, own: Tree, turn: Turn, assignment: Assignment) -> Assignment | Skip:
        """Weigh the client. Invalid weights are left for the link to refuse."""
        positive = 0 < assignment.weight < math.inf
        return replace(assignment, weight=1.0) if positive else assignment

"""Changes to every phase of a method: equal weights, and checks of the link and the reducer that
wrappers need.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from bayesfed.algorithms.registry import ALGORITHM
from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import checked
from bayesfed.federated.aggregation.changes import VECTORS
from bayesfed.federated.core.algorithm import Algorithm, Assign, Phase
from bayesfed.federated.core.protocols import Assignment, Link, Profile, Skip
from bayesfed.federated.core.sums import Sum
from bayesfed.federated.links.over_the_air import OverTheAir
from bayesfed.keys import Key
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
    return each_phase(
        algorithm,
        "equal_weights",
        lambda phase: replace(phase, assign=equally_weighted(phase.assign)),
    )


def each_phase(algorithm: Algorithm, where: str, changed: Callable[[Phase], Phase]) -> Algorithm:
    """Apply a function to every phase of a method whose clients send changes or values.

    Raises
    ------
    ArgumentError
        If the clients of a phase send anything else.
    """
    for phase in algorithm.phases:
        if phase.local.kind not in VECTORS:
            actual = f"{phase.local.kind!r} in {algorithm.name!r}, phase {phase.name!r}"
            raise ArgumentError(
                where, "clients that send 'delta' or 'value'", actual, "fed_avg, fed_paq, fed_lora"
            )
    return replace(algorithm, phases=tuple(changed(phase) for phase in algorithm.phases))


def check_digital(phase: Phase, where: str) -> None:
    """Check that updates of a phase arrive one by one and that its server takes their sum; raise
    `ArgumentError` otherwise.
    """
    link: Link | None = phase.link
    while link is not None:
        if isinstance(link, OverTheAir):
            hint = "Digital(): what the channel adds cannot be taken apart"
            raise ArgumentError(where, "updates that arrive one by one", "OverTheAir", hint)
        link = getattr(link, "link", None)
    if phase.reducer is not Sum:
        actual = getattr(phase.reducer, "__name__", "another reducer")
        raise ArgumentError(
            where, "a method whose server takes a sum", actual, "fed_avg, fed_paq, fed_lora"
        )


def equally_weighted(assign: Assign) -> Assign:
    """Return a plan that replaces positive weights by 1."""

    def plan(state: Tree, round: int, profile: Profile, key: Key) -> Assignment | Skip:
        planned = assign(state, round, profile, key)
        # Invalid weights are left for the link to refuse.
        return (
            planned
            if isinstance(planned, Skip) or not 0 < planned.weight < math.inf
            else replace(planned, weight=1.0)
        )

    return plan

"""Changes to every phase of a method: equal weights, and what a wrapper needs of a phase's link and reducer."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from bayesfed.errors import ArgumentError, complain
from bayesfed.federated.aggregation.changes import VECTORS
from bayesfed.federated.core.algorithm import Algorithm, Assign, Phase
from bayesfed.federated.core.protocols import Assignment, Link, Profile, Skip
from bayesfed.federated.core.update import Sum
from bayesfed.federated.links.over_the_air import OverTheAir
from bayesfed.keys import Key
from bayesfed.trees import Tree


def equal_weights(algorithm: Algorithm) -> Algorithm:
    """Let every client that has a weight weigh 1: nobody is heard more for the rows that it says it has.

    Raises
    ------
    ArgumentError
        If clients send something other than changes or values, whose weights mean something else.
    """
    return each_phase(algorithm, "equal_weights", lambda phase: replace(phase, assign=alike(phase.assign)))


def each_phase(algorithm: Algorithm, where: str, changed: Callable[[Phase], Phase]) -> Algorithm:
    """Change every phase of a method whose clients send changes or values.

    Raises
    ------
    ArgumentError
        If one sends anything else.
    """
    for phase in algorithm.phases:
        if phase.local.kind not in VECTORS:
            actual = f"{phase.local.kind!r} in {algorithm.name!r}, phase {phase.name!r}"
            raise ArgumentError(complain(where, expected="clients that send 'delta' or 'value'", actual=actual, hint="fed_avg, fed_paq, fed_lora"))
    return replace(algorithm, phases=tuple(changed(phase) for phase in algorithm.phases))


def check_digital(phase: Phase, where: str) -> None:
    """Raise `ArgumentError` unless a phase's server is given a sum of updates that arrive one by one."""
    link: Link | None = phase.link
    while link is not None:
        if isinstance(link, OverTheAir):
            hint = "Digital(): what the channel adds cannot be taken apart"
            raise ArgumentError(complain(where, expected="updates that arrive one by one", actual="OverTheAir", hint=hint))
        link = getattr(link, "link", None)
    if phase.reducer is not Sum:
        actual = getattr(phase.reducer, "__name__", "another reducer")
        raise ArgumentError(complain(where, expected="a method whose server takes a sum", actual=actual, hint="fed_avg, fed_paq, fed_lora"))


def alike(assign: Assign) -> Assign:
    """Return an assignment's plan with weights of 1 and 0."""

    def plan(state: Tree, round: int, profile: Profile, key: Key) -> Assignment | Skip:
        found = assign(state, round, profile, key)
        # Weights that cannot be are left for the link to refuse.
        return found if isinstance(found, Skip) or not 0 < found.weight < math.inf else replace(found, weight=1.0)

    return plan

"""A client's change as one vector: its norm, and shortening it; and clients that weigh alike, which rules about single clients need.

A payload of kind "delta" is a change; of kind "value" it is measured from where the round began, the server's state. Norms are Euclidean, over
all leaves together, in double precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from bayesfed.errors import ArgumentError, UpdateError, complain
from bayesfed.federated.air import OverTheAir
from bayesfed.federated.protocols import Algorithm, Assign, Assignment, Link, Phase, Profile, Skip
from bayesfed.federated.update import Kind, Sum, Update
from bayesfed.federated.views import number_of
from bayesfed.keys import Key
from bayesfed.trees import Tree

# Kinds whose sums are of vectors that may be measured, sorted and shortened one by one.
VECTORS: tuple[Kind, ...] = ("delta", "value")


def change(update: Update, state: Tree) -> Tree:
    """Return a client's change, in double precision: its payload, less the state where it sends values.

    Raises
    ------
    UpdateError
        If its weight is not a number above 0, or values have other names or shapes than the state.
    """
    weight = number_of(update.weight)
    if not weight > 0:
        raise UpdateError(complain("a client's change", expected="a weight above 0", actual=weight, hint="a client with data"))
    own = {name: leaf.double() / weight for name, leaf in update.total.items()}
    if update.kind == "delta":
        return own
    if strange := [name for name, leaf in own.items() if name not in state or state[name].shape != leaf.shape]:
        raise UpdateError(complain("a client's change", expected="values of the state's leaves", actual=strange, hint="a method that sends changes"))
    return {name: leaf - state[name].double() for name, leaf in own.items()}


def norm(tree: Tree) -> float:
    """Return the Euclidean norm of all leaves together."""
    return math.sqrt(math.fsum(float(leaf.double().square().sum()) for leaf in tree.values()))


def shortened(update: Update, state: Tree, longest: float) -> Update:
    """Return an update whose change is at most `longest`: the update itself where it is, to the bit.

    Raises
    ------
    UpdateError
        As `change` does.
    """
    moved = change(update, state)
    if (length := norm(moved)) <= longest:
        return update
    # A little less, so that rounding to the leaves' own precision never leaves it longer.
    share, weight = (longest / length) * (1 - 1e-6), number_of(update.weight)
    kept = {name: share * leaf + (state[name].double() if update.kind == "value" else 0.0) for name, leaf in moved.items()}
    return replace(update, total={name: (weight * leaf).to(update.total[name].dtype) for name, leaf in kept.items()})


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

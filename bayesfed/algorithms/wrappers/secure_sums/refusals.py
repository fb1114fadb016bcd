"""What cannot be had under secure sums is refused when a method is wrapped: whatever needs to see
updates apart.
"""

from __future__ import annotations

import math
from dataclasses import replace

from bayesfed.algorithms.wrappers.secure_sums.fixed_point import Leaves
from bayesfed.compress import Cast
from bayesfed.errors import ArgumentError
from bayesfed.federated import Algorithm, Assignment, Digital, Phase, Profile, Skip, Sum
from bayesfed.federated.core import seams
from bayesfed.federated.core.layering import only_phase
from bayesfed.federated.links.digital import USUAL_NORM
from bayesfed.keys import Key
from bayesfed.trees import Tree

# What error messages propose: methods of one phase that send plain floats.
PLAIN = "fed_avg, fed_prox, fed_lora"


def check_method(algorithm: Algorithm, where: str) -> tuple[Phase, ...]:
    """Return the phases of a method whose server needs sums alone: one that trains, and any that
    ask.

    Raises
    ------
    ArgumentError
        If several phases train, a link checks norms or adds, the server needs updates apart,
        or clients hold what the server sends changes of.
    """
    first, *others = algorithm.phases
    training = (first, *(phase for phase in others if not seams.asks(phase.local)))
    only_phase(replace(algorithm, phases=training), where, PLAIN)
    for phase in algorithm.phases:
        _check_phase(phase, where)
    return algorithm.phases


def _check_phase(phase: Phase, where: str) -> None:
    if type(phase.link) is not Digital:
        raise ArgumentError(
            where,
            "the link Digital()",
            type(phase.link).__name__,
            "Digital(): late clients drop out, nothing else is known of a single update, and no "
            "channel adds by itself",
        )
    if phase.link.max_norm is not None and phase.link.max_norm < USUAL_NORM:
        raise ArgumentError(
            where,
            "no check of norms",
            f"Digital(max_norm={phase.link.max_norm:g})",
            "Digital(): the server sees no single norm; largest bounds entries, private(..., "
            "at_client=True) norms, at the client",
        )
    bounds = [layer for layer in phase.layers if layer.traits.bounds]
    if any(layer is not phase.layers[0] or layer.client_bound == math.inf for layer in bounds):
        # Whatever changes a payload after it was clipped, the server cannot undo.
        raise ArgumentError(
            where,
            "a private method whose clients clip last",
            "one that does not",
            "private(..., at_client=True), as the last step before secure",
        )
    each = next((layer for layer in phase.layers if layer.traits.needs == "each"), None)
    if phase.reducer is not Sum or each:
        raise ArgumentError(
            where,
            "a method whose server takes a sum",
            f"{each.owner!r}, which needs every update" if each else "another reducer",
            f"{PLAIN}, without robust(...); evaluate_clients(..., worst=False), whose worst decile "
            "is of single scores",
        )
    if any(layer.traits.holds for layer in phase.layers):
        raise ArgumentError(
            where,
            "clients that hold nothing",
            "clients that are sent changes",
            "a method that sends whole values, such as fed_avg",
        )


PLANNED, HINT = "a plan for a client", "profile=Profile('client-000', 100), of one of the run"


def first_plan(phase: Phase, profile: Profile | None, where: str, state: Tree) -> Assignment:
    """Return the plan of a client in the first round, from which the leaves of all updates are
    known.

    Raises
    ------
    ArgumentError
        If the method has none for such a client.
    """
    planned = example_plan(phase, profile, where, state, 0)
    if isinstance(planned, Skip):
        raise ArgumentError(where, PLANNED, f"left out: {planned.reason}", HINT)
    return planned


def example_plan(
    phase: Phase, profile: Profile | None, where: str, state: Tree, round: int
) -> Assignment | Skip:
    """Return the plan of a client in any round.

    Raises
    ------
    ArgumentError
        If the method cannot make one for such a client.
    """
    key = Key(0, phase.name, round, "example", "assign")
    try:
        return phase.assign(state, round, profile or Profile("example", 1), key)
    except Exception as problem:
        raise ArgumentError(where, PLANNED, problem, HINT) from problem


def check_plan(planned: Assignment, where: str) -> tuple[Leaves, bool]:
    """Return names and shapes of an update, and whether clients cover leading entries only.

    Raises
    ------
    ArgumentError
        If the up-link has a codec, or the view is none that a client can lift by itself.
    """
    if type(planned.up) is not Cast:
        raise ArgumentError(
            where,
            "no codec on the up-link",
            type(planned.up).__name__,
            "plain floats up, such as fed_avg(net) without a codec: masks are added to "
            "numbers, and masked numbers cannot be shortened",
        )
    leaves = seams.leaves_of(planned.view)
    if leaves is None:
        raise ArgumentError(
            where,
            "clients that send whole leaves, or leading slices of them",
            f"the view {type(planned.view).__name__}",
            f"{PLAIN}, hetero_fl",
        )
    shapes, leading = leaves
    return tuple((name, tuple(shapes[name])) for name in sorted(shapes)), leading

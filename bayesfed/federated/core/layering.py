"""`layered`: a method with one more layer around it, and which layers make sense around which core,
in which order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from bayesfed.errors import ArgumentError
from bayesfed.federated.core import seams
from bayesfed.federated.core.algorithm import (
    Algorithm,
    Conditions,
    Personal,
    Phase,
    Posterior,
    Predictor,
)
from bayesfed.federated.core.layers import Layer, Moment
from bayesfed.federated.core.owners import Scope, of
from bayesfed.federated.core.settings import with_settings
from bayesfed.trees import Tree

Served = TypeVar("Served")
# What error messages propose.
METHODS, SUMMED = "fed_avg, fed_paq, fed_lora", "a method whose server takes a sum"


def only_phase(algorithm: Algorithm, where: str, hint: str = METHODS) -> Phase:
    """Return the phase of a method of one phase; refuse others."""
    if len(algorithm.phases) != 1:
        names = [phase.name for phase in algorithm.phases]
        raise ArgumentError(where, "a method of one phase", names, hint)
    return algorithm.phases[0]


def layered(
    algorithm: Algorithm,
    layer: Layer | Callable[[int], Layer],
    *,
    where: str = "",
    one_phase: bool = True,
    inside: bool = False,
) -> Algorithm:
    """Return a method with a layer around it, outside of those that it has.

    Parameters
    ----------
    algorithm
        The method.
    layer
        The layer; or a function from the number of a phase to its layer, all of one owner.
    where
        What is being made, for error messages.
    one_phase
        Whether the method must have one phase.
    inside
        Whether the layer is within the others, next to the core.

    Raises
    ------
    ArgumentError
        If the layer does not suit the method or its layers, or the method has several phases and
        must not.

    Examples
    --------
    >>> algorithm = layered(fed_avg(net), Logged("log"))
    """
    where = where or f"layered, {algorithm.name!r}"
    if one_phase:
        only_phase(algorithm, where)
    phases = []
    for number, phase in enumerate(algorithm.phases):
        one = layer(number) if callable(layer) else layer
        if one.owner in [layer.owner for layer in phase.layers]:
            raise ArgumentError(
                where,
                f"a method without {one.owner!r}",
                f"one with {one.owner!r}",
                f"one {one.owner!r}",
            )
        around = (*phase.layers, one) if inside else (one, *phase.layers)
        phases.append(replace(phase, layers=around))
        check_order(phases[-1], where)
    new, scope = phases[0].layers[-1 if inside else 0], phases[0].scope
    initial = dict(algorithm.initial)
    # Phases of one method share the layer's leaves; members of an ensemble have their own.
    for phase in {phase.within: phase for phase in reversed(phases)}.values():
        begun = beginning(phase, algorithm.initial)
        initial |= of(phase.within, of(new.owner, new.start(begun)))
    made = replace(algorithm, phases=tuple(phases), initial=initial)
    return made if type(new).predict is Layer.predict else _predicted(made, new, scope)


def beginning(phase: Phase, state: Tree) -> Moment:
    """Return the moment before round 0."""
    core, _ = phase.scope.parted(state)
    return Moment(0, core, partial(seams.published, phase.server))


def _predicted(algorithm: Algorithm, layer: Layer, scope: Scope) -> Algorithm:
    """Return a method whose model is the one that a layer makes of its state."""

    def counting(served: Callable[[Tree], Served]) -> Callable[[Tree], Served]:
        def predict(state: Tree) -> Served:
            core, owns = scope.parted(state)
            return served(scope.joined(state, layer.predict(owns[layer.owner], core), owns))

        return predict

    return replace(
        algorithm,
        predictor=counting(algorithm.predictor),
        sizes={name: counting(size) for name, size in algorithm.sizes.items()},
    )


def of_core(
    name: str,
    initial: Tree,
    phases: Sequence[Phase],
    predictor: Callable[[Tree], Predictor],
    posterior: Callable[[Tree], Posterior] | None = None,
    *,
    sizes: Mapping[str, Callable[[Tree], Predictor]] | None = None,
    personal: Callable[[Tree, Tree], Personal] | None = None,
    unfinished: Callable[[Tree, int], str] | None = None,
    checks: Sequence[Callable[[Conditions], None]] = (),
) -> Algorithm:
    """Return a method, given its core's leaves before round 0, and functions that know no others.

    Parameters
    ----------
    name, phases, checks
        As in `Algorithm`; all phases work on the same leaves.
    initial, predictor, posterior, sizes, personal, unfinished
        As in `Algorithm`, on the core's leaves of a state, and of a memory, alone.
    """
    phase, parted = phases[0], phases[0].scope.parted

    def known(served: Callable[..., Served]) -> Callable[..., Served]:
        @with_settings(parted=parted, served=served)
        def of_cores(*trees: Tree) -> Served:
            return served(*(parted(tree)[0] for tree in trees))

        return of_cores

    def lack(state: Tree, rounds: int) -> str:
        return unfinished(parted(state)[0], rounds) if unfinished else ""

    state = of(phase.within, of(phase.owner, initial))
    for layer in phase.layers:
        state |= of(phase.within, of(layer.owner, layer.start(beginning(phase, state))))
    return Algorithm(
        name,
        state,
        tuple(phases),
        known(predictor),
        known(posterior) if posterior else None,
        sizes={size: known(served) for size, served in (sizes or {}).items()},
        checks=tuple(checks),
        personal=known(personal) if personal else None,
        unfinished=lack if unfinished else None,
    )


def check_order(phase: Phase, where: str = "") -> None:
    """Check the layers of a phase.

    Parameters
    ----------
    phase
        The phase.
    where
        What is being made, for the message.

    Raises
    ------
    ArgumentError
        If a layer does not suit the core, or two layers do not suit each other in their order.
    """
    kind, inside, link = phase.local.kind, list[Layer](), phase.link
    for layer in reversed(phase.layers):
        begin = where or f"phase {phase.name!r}, layer {layer.owner!r}"
        traits = layer.traits
        link = layer.link(link)
        if traits.takes and kind not in traits.takes:
            raise ArgumentError(
                begin,
                f"clients that send {' or '.join(map(repr, traits.takes))}",
                f"{kind!r} in phase {phase.name!r}",
                METHODS,
            )
        if traits.apart and not seams.one_by_one(link):
            raise ArgumentError(
                begin,
                "updates that arrive one by one",
                type(link).__name__,
                "Digital(): what the channel adds cannot be taken apart",
            )
        each = next((one for one in inside if one.traits.needs == "each"), None)
        if traits.needs and (not seams.adds(phase) or each):
            actual = f"{each.owner!r}, which needs every update" if each else "another reducer"
            raise ArgumentError(begin, SUMMED, actual, METHODS)
        noisy = next((one for one in inside if one.traits.noises == "sum"), None)
        if noisy and (traits.noises == "sum" or traits.needs == "each"):
            raise ArgumentError(
                begin,
                f"a method without {noisy.owner!r}",
                f"one with {noisy.owner!r}",
                "one of the two: the reported epsilon would not hold",
            )
        bound = next((one for one in inside if one.traits.bounds), None)
        if bound and type(layer).admit is not Layer.admit:
            hint = f"{bound.owner!r} as the outermost layer"
            expected = f"single updates that nothing changes after {bound.owner!r}"
            raise ArgumentError(begin, expected, f"{layer.owner!r} around it, which does", hint)
        sent = next((one for one in inside if one.traits.noises == "sent"), None)
        hooks = type(layer).receive, type(layer).send
        if sent and hooks != (Layer.receive, Layer.send) and not traits.blind:
            expected, hint = "clients that send nothing beside their noise", f"{sent.owner!r} last"
            raise ArgumentError(begin, expected, f"{layer.owner!r} around {sent.owner!r}", hint)
        holding = next((one for one in inside if one.traits.holds), None)
        if traits.averages and holding:
            raise ArgumentError(
                begin,
                "clients that are sent the model whole",
                f"{holding.owner!r}, which sends changes of it",
                METHODS,
            )
        if traits.averages and not seams.averages(phase.server):
            raise ArgumentError(
                begin, "a server that averages, leaf by leaf", type(phase.server).__name__, METHODS
            )
        kind = traits.gives.get(kind, kind)
        inside.append(layer)

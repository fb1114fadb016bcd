"""`layered`: a method with one more layer around it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from bayesfed.errors import ArgumentError
from bayesfed.federated.core.algorithm import Algorithm, Personal, Phase, Posterior, Predictor
from bayesfed.federated.core.layers import Layer, Moment
from bayesfed.federated.core.orders import check_order
from bayesfed.federated.core.owners import Scope, of
from bayesfed.federated.core.seams import published
from bayesfed.trees import Tree

Served = TypeVar("Served")


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
    if one_phase and len(algorithm.phases) != 1:
        names = [phase.name for phase in algorithm.phases]
        hint = "fed_avg, fed_paq, fed_lora"
        raise ArgumentError(where, "a method of one phase", names, hint)
    phases = []
    for number, phase in enumerate(algorithm.phases):
        one = layer(number) if callable(layer) else layer
        if one.owner in [layer.owner for layer in phase.layers]:
            expected, actual = f"a method without {one.owner!r}", f"one with {one.owner!r}"
            raise ArgumentError(where, expected, actual, f"one {one.owner!r}")
        around = (*phase.layers, one) if inside else (one, *phase.layers)
        phases.append(replace(phase, layers=around))
        check_order(phases[-1], where)
    new, scope = phases[0].layers[-1 if inside else 0], phases[0].scope
    own = of(phases[0].within, of(new.owner, new.start(beginning(phases[0], algorithm.initial))))
    made = replace(algorithm, phases=tuple(phases), initial=algorithm.initial | own)
    return made if type(new).predict is Layer.predict else _predicted(made, new, scope)


def beginning(phase: Phase, state: Tree) -> Moment:
    """Return the moment before round 0."""
    core, _ = phase.scope.parted(state)
    return Moment(0, core, partial(published, phase.server))


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
) -> Algorithm:
    """Return a method, given its core's leaves before round 0, and functions that know no others.

    Parameters
    ----------
    name, phases
        As in `Algorithm`; all phases work on the same leaves.
    initial, predictor, posterior, sizes, personal
        As in `Algorithm`, on the core's leaves of a state, and of a memory, alone.
    """
    phase, parted = phases[0], phases[0].scope.parted

    def known(served: Callable[[Tree], Served]) -> Callable[[Tree], Served]:
        return lambda state: served(parted(state)[0])

    def own(state: Tree, memory: Tree) -> Personal:
        if personal is None:
            raise ArgumentError(name, "personal models", "none", "personalised(algorithm)")
        return personal(parted(state)[0], parted(memory)[0])

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
        personal=own if personal else None,
    )

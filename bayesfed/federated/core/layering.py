"""`layered`: a method with one more layer around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from bayesfed.errors import ArgumentError
from bayesfed.federated.core.algorithm import Algorithm
from bayesfed.federated.core.layers import Layer
from bayesfed.federated.core.orders import check_order
from bayesfed.federated.core.owners import Scope, of
from bayesfed.trees import Tree

Served = TypeVar("Served")


def layered(
    algorithm: Algorithm,
    layer: Layer | Callable[[int], Layer],
    *,
    where: str = "",
    one_phase: bool = True,
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

    Raises
    ------
    ArgumentError
        If the layer does not suit the method or its layers, or the method has several phases and must not.

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
        made = layer if isinstance(layer, Layer) else layer(number)
        phases.append(replace(phase, layers=(made, *phase.layers)))
        check_order(phases[-1], where)
    outermost, scope = phases[0].layers[0], phases[0].scope
    core, _ = scope.parted(algorithm.initial)
    own = of(phases[0].within, of(outermost.owner, outermost.start(core)))
    made = replace(algorithm, phases=tuple(phases), initial=algorithm.initial | own)
    return made if type(outermost).predict is Layer.predict else _predicted(made, outermost, scope)


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

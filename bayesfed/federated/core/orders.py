"""Which layers make sense around which core, and in which order: sentences built from traits."""

from __future__ import annotations

from bayesfed.errors import ArgumentError
from bayesfed.federated.core import seams
from bayesfed.federated.core.algorithm import Phase
from bayesfed.federated.core.layers import Layer


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
            expected = f"clients that send {' or '.join(map(repr, traits.takes))}"
            _refuse(
                begin, expected, f"{kind!r} in phase {phase.name!r}", "fed_avg, fed_paq, fed_lora"
            )
        if traits.apart and not seams.one_by_one(link):
            hint = "Digital(): what the channel adds cannot be taken apart"
            _refuse(begin, "updates that arrive one by one", type(link).__name__, hint)
        each = next((one for one in inside if one.traits.needs == "each"), None)
        if traits.needs and (not seams.adds(phase) or each):
            actual = f"{each.owner!r}, which needs every update" if each else "another reducer"
            _refuse(
                begin, "a method whose server takes a sum", actual, "fed_avg, fed_paq, fed_lora"
            )
        noisy = next((one for one in inside if one.traits.noises), None)
        if noisy and (traits.noises or traits.needs == "each"):
            hint = "one of the two: the reported epsilon would not hold"
            _refuse(begin, f"a method without {noisy.owner!r}", f"one with {noisy.owner!r}", hint)
        bound = next((one for one in inside if one.traits.bounds), None)
        if bound and type(layer).admit is not Layer.admit:
            hint = f"{bound.owner!r} as the outermost layer"
            expected = f"single updates that nothing changes after {bound.owner!r}"
            _refuse(begin, expected, f"{layer.owner!r} around it, which does", hint)
        if type(layer).sends is not Layer.sends and not seams.adds(phase):
            _refuse(
                begin, "a method whose server takes a sum", "another reducer", "fed_avg, fed_lora"
            )
        holding = next((one for one in inside if one.traits.holds), None)
        if traits.averages and holding:
            expected, hint = "clients that are sent the model whole", "fed_avg, fed_paq, fed_lora"
            _refuse(begin, expected, f"{holding.owner!r}, which sends changes of it", hint)
        if traits.averages and not seams.averages(phase.server):
            actual, hint = (
                type(phase.server).__name__,
                "fed_avg, fed_prox, fed_paq, fed_lora, hetero_fl",
            )
            _refuse(begin, "a server that averages, leaf by leaf", actual, hint)
        kind = traits.gives.get(kind, kind)
        inside.append(layer)


def _refuse(where: str, expected: str, actual: str, hint: str) -> None:
    raise ArgumentError(where, expected, actual, hint)

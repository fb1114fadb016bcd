"""What a network costs: parameters and multiply-accumulates layer by layer, and the traffic and work of a whole training.

One multiply-accumulate (MAC) is half a floating-point operation of `torch.utils.flop_counter`, which sees the operations themselves: products of
matrices, convolutions and attention, whichever module runs them, so factorised layers count as what they are. As usual, zeros of the padding
count as inputs, sparse products as dense ones, and biases, norms, activations, poolings and embeddings as nothing.

References
----------
FedHM, section 4.3 ("Communication and Computation Cost").
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from bayesfed.errors import ArgumentError, complain
from bayesfed.keys import Key, forked
from bayesfed.models.modules import evaluating

_aten = torch.ops.aten


class Cost(NamedTuple):
    """One row of a table of costs, as ``table(Cost._fields, rows)`` takes it.

    Parameters
    ----------
    layer
        The module's name in the network, "" for the network itself.
    kind
        Its class.
    parameters
        Entries of the parameters it holds itself, not in a submodule; tied ones count where they come first.
    macs
        MACs of one forward of one example, of the operations it runs itself, not in a submodule.
    """

    layer: str
    kind: str
    parameters: int
    macs: int


def costs(net: nn.Module, example: Tensor) -> list[Cost]:
    """Count parameters and multiply-accumulates, one row a module that has any, in the order of `nn.Module.named_modules`.

    Parameters add up to the network's. With `bayesfed.inspect.tables`: ``table(Cost._fields, [*rows, total_cost(rows)])``.

    Parameters
    ----------
    net
        Any module. It is run once, in evaluation mode and without gradients, and left as it was; whatever it draws leaves torch's global
        generator alone.
    example
        ``(B, ...)``, inputs as the network gets them. MACs are divided by B and rounded up; with B = 1 they are of one example alone,
        with more an operation that runs once a batch (a product of two factors, say) is shared. Batch norm that sees one value a
        channel needs more.

    Raises
    ------
    ArgumentError
        If `example` has no example.
    """
    if not example.ndim or not len(example):
        raise ArgumentError(complain("costs.example", expected="a batch (B, ...), B > 0", actual=tuple(example.shape), hint="example[None]"))
    flops = _flops(net, example)
    rows, seen = list[Cost](), set[int]()
    for name, module in net.named_modules():
        own = {id(leaf): leaf.numel() for leaf in module.parameters(recurse=False) if id(leaf) not in seen}
        seen |= own.keys()
        macs = -(-flops.get(id(module), 0) // (2 * len(example)))
        if own or macs:
            rows.append(Cost(name, type(module).__name__, sum(own.values()), macs))
    return rows


def total_cost(rows: Iterable[Cost]) -> Cost:
    """Add rows up into one that is named "total"."""
    listed = list(rows)
    return Cost("total", "", sum(row.parameters for row in listed), sum(row.macs for row in listed))


def communication_bytes(participants: int, parameters: int, rounds: int, *, bytes_each: int = 4) -> int:
    """Return the bytes of a training, down and up: ``2 x participants x parameters x rounds x bytes_each``.

    Uncoded, with every participant getting and sending a whole model; what recipes really send is in a run's ledger.

    Parameters
    ----------
    participants
        Clients of one round, all with a model of as many `parameters`; add up the results where they differ.
    bytes_each
        Of one parameter, 4 in single precision.

    Raises
    ------
    ArgumentError
        If a number is negative.

    References
    ----------
    FedHM, section 4.3, which counts parameters rather than bytes.
    """
    return _product("communication_bytes", participants=participants, parameters=parameters, rounds=rounds, bytes_each=bytes_each) * 2


def computation_macs(macs: int, epochs: int, samples: int, rounds: int) -> int:
    """Return the multiply-accumulates of a training: ``macs x epochs x samples x rounds``.

    Of forwards only, as the paper counts; a backward takes about twice as many again.

    Parameters
    ----------
    macs
        Of one example: ``total_cost(costs(net, example)).macs``.
    epochs
        Of one client in one round.
    samples
        Of one client, or those of all participants together.

    Raises
    ------
    ArgumentError
        If a number is negative.

    References
    ----------
    FedHM, section 4.3.
    """
    return _product("computation_macs", macs=macs, epochs=epochs, samples=samples, rounds=rounds)


def _product(where: str, **factors: int) -> int:
    for name, value in factors.items():
        if value < 0:
            raise ArgumentError(complain(f"{where}.{name}", expected="a number from 0 up", actual=value, hint="0"))
    return prod(factors.values())


def _flops(net: nn.Module, example: Tensor) -> dict[int, int]:
    """Return the operations that each module ran itself, by its id: what was counted while it ran, less what its submodules did."""
    found: dict[int, int] = {}
    counter = FlopCounterMode(display=False, custom_mapping=_UNCOUNTED)
    started: list[int] = []
    children = [0]

    def enter(module: nn.Module, given: object) -> None:
        started.append(counter.get_total_flops())
        children.append(0)

    def leave(module: nn.Module, given: object, output: object) -> None:
        inside = counter.get_total_flops() - started.pop()
        found[id(module)] = found.get(id(module), 0) + inside - children.pop()
        children[-1] += inside

    with ExitStack() as stack:
        for module in net.modules():
            stack.callback(module.register_forward_pre_hook(enter).remove)
            stack.callback(module.register_forward_hook(leave).remove)
        stack.enter_context(_unfused(net))
        stack.enter_context(forked(Key(0, "costs")))
        stack.enter_context(torch.no_grad())
        stack.enter_context(counter)
        net(example)
    return found


@contextmanager
def _unfused(net: nn.Module) -> Iterator[None]:
    # Fused attention layers are one operation that no counter sees into.
    fused = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        with evaluating(net):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)


def _vector(matrix: tuple[int, ...], vector: tuple[int, ...], *rest: Any, **named: Any) -> int:
    return 2 * prod(matrix)


def _added_vector(added: tuple[int, ...], matrix: tuple[int, ...], *rest: Any, **named: Any) -> int:
    return 2 * prod(matrix)


def _attention(query: tuple[int, ...], key: tuple[int, ...], value: tuple[int, ...], *rest: Any, **named: Any) -> int:
    return int(sdpa_flop_count(query, key, value))


def _recurrent(inputs: tuple[int, ...], from_inputs: tuple[int, ...], from_state: tuple[int, ...], *rest: Any, **named: Any) -> int:
    # (time, batch, features); the state's part runs once a time and sequence too.
    return 2 * prod(inputs[:-1]) * (prod(from_inputs) + prod(from_state))


# Forms that torch's own counter leaves out and whose work would go missing: products with a vector, and what a CPU runs for attention and LSTMs.
_UNCOUNTED: dict[Any, Callable[..., int]] = {
    _aten.mv: _vector,
    _aten.dot: _vector,
    _aten.addmv: _added_vector,
    _aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    _aten.mkldnn_rnn_layer: _recurrent,
}

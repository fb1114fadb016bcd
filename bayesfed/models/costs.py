"""What a network costs: parameters and multiply-accumulates layer by layer, and the traffic and
work of a whole training.

One multiply-accumulate (MAC) is two floating-point operations as counted by
`torch.utils.flop_counter`. It counts the operations themselves (matrix products, convolutions and
attention), whichever module runs them, so factorised layers are counted at their own cost. As
usual, zeros of the padding count as inputs, sparse products as dense ones, and biases, norms,
activations, pooling and embeddings count nothing.

References
----------
FedHM, section 4.3 ("Communication and Computation Cost").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import checked
from bayesfed.keys import Key, forked
from bayesfed.models.modules import evaluating

_aten = torch.ops.aten
Shape = tuple[int, ...]


class Cost(NamedTuple):
    """One row of a table of costs, as ``table(Cost._fields, rows)`` takes it.

    Parameters
    ----------
    layer
        The module's name in the network, "" for the network itself.
    kind
        The module's class.
    parameters
        Number of entries of the parameters that the module holds itself, not in a submodule. Tied
        parameters count where they first occur.
    macs
        MACs of one forward pass of one example, for the operations that the module runs itself, not
        in a submodule.
    """

    layer: str
    kind: str
    parameters: int
    macs: int


@checked()
def costs(net: nn.Module, example: Tensor) -> list[Cost]:
    """Count parameters and multiply-accumulates: one row for each module that has any, in the order
    of `nn.Module.named_modules`.

    The rows' parameters add up to those of the network. To print them with
    `bayesfed.inspect.tables`: ``table(Cost._fields, [*rows, total_cost(rows)])``.

    Parameters
    ----------
    net
        Any module. It is run once, in evaluation mode and without gradients, and left as it was.
        Random draws inside it do not change torch's global generator.
    example
        ``(B, ...)``, inputs as the network takes them. MACs are divided by B and rounded up. With
        B = 1 they are those of one example; with a larger B, an operation that runs once per batch
        (a product of two factors, say) is shared among the examples. Batch norm that sees one value
        per channel needs B > 1.

    Raises
    ------
    ArgumentError
        If `example` is empty.
    """
    if not example.ndim or not len(example):
        raise ArgumentError(
            "costs.example", "a batch (B, ...), B > 0", tuple(example.shape), "data.inputs[:1]"
        )
    flops = _flops(net, example)
    rows, seen = list[Cost](), set[int]()
    for name, module in net.named_modules():
        own = {
            id(leaf): leaf.numel()
            for leaf in module.parameters(recurse=False)
            if id(leaf) not in seen
        }
        seen |= own.keys()
        macs = -(-flops.get(id(module), 0) // (2 * len(example)))
        if own or macs:
            rows.append(Cost(name, type(module).__name__, sum(own.values()), macs))
    return rows


@checked()
def total_cost(rows: Iterable[Cost]) -> Cost:
    """Return the sum of rows as one row named "total"."""
    listed = list(rows)
    return Cost("total", "", sum(row.parameters for row in listed), sum(row.macs for row in listed))


def _flops(net: nn.Module, example: Tensor) -> dict[int, int]:
    """Return the operations that each module ran itself, not in a submodule, by its id."""
    counter = FlopCounterMode(display=False, custom_mapping=_UNCOUNTED)
    own, inside, credited = Counter[int](), [id(net)], 0

    def credit() -> None:
        """Credit what was counted since the last call to the module that runs."""
        nonlocal credited
        total = counter.get_total_flops()
        own[inside[-1]] += total - credited
        credited = total

    def enter(module: nn.Module, given: object) -> None:
        credit()
        inside.append(id(module))

    def leave(module: nn.Module, given: object, output: object) -> None:
        credit()
        inside.pop()

    with ExitStack() as stack:
        for module in net.modules():
            stack.callback(module.register_forward_pre_hook(enter).remove)
            stack.callback(module.register_forward_hook(leave).remove)
        stack.enter_context(_unfused(net))
        stack.enter_context(forked(Key(0, "costs")))
        stack.enter_context(torch.no_grad())
        stack.enter_context(counter)
        net(example)
    return own


@contextmanager
def _unfused(net: nn.Module) -> Iterator[None]:
    # A fused attention layer is one operation whose parts no counter sees.
    fused = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        with evaluating(net):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)


def _vector(matrix: Shape, vector: Shape, *rest: Any, **named: Any) -> int:
    return 2 * prod(matrix)


def _attention(query: Shape, key: Shape, value: Shape, *rest: Any, **named: Any) -> int:
    return int(sdpa_flop_count(query, key, value))


def _recurrent(
    inputs: Shape, from_inputs: Shape, from_state: Shape, *rest: Any, **named: Any
) -> int:
    # (time, batch, features); the product with the state also runs once for each time step and
    # sequence.
    return 2 * prod(inputs[:-1]) * (prod(from_inputs) + prod(from_state))


# Operations that torch's own counter leaves out: products with a vector, and the CPU kernels for
# attention and LSTMs.
_UNCOUNTED: dict[Any, Callable[..., int]] = {
    _aten.mv: _vector,
    _aten.dot: _vector,
    _aten.addmv: lambda added, *product, **named: _vector(*product),
    _aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    _aten.mkldnn_rnn_layer: _recurrent,
}

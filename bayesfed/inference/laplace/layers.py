"""What a layer contributes to a network's Jacobian: its inputs, and the gradients of the network's
outputs by the layer's own outputs.

B rows, C outputs of the network, K columns, T positions (1 for a linear layer on vectors), O
outputs and I inputs of a layer. The Jacobian of a row by the weights of a layer is
``sum_t g_t a_t'``, a sum of outer products, so that ``(a, g)`` replaces ``(O, I)`` numbers by
``O + I``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bayesfed.errors import DataError
from bayesfed.models.calling import called, check_resolved
from bayesfed.models.modules import evaluating, last_linear, passing, tied
from bayesfed.trees import Tree, leaf_of


@dataclass(frozen=True)
class Layer:
    """A linear or convolution layer.

    Parameters
    ----------
    name
        Path of the layer in its network.
    outputs, inputs
        O, and I with one more for the bias: the layer's parameters are one matrix ``(O, I)``, the
        bias its last column.
    bias
        Whether the layer has a bias that counts.
    last
        Whether the network's outputs must be those of the layer.
    """

    name: str
    outputs: int
    inputs: int
    bias: bool
    last: bool = False

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the layer's parameters."""
        return tuple(
            leaf_of(self.name, leaf) for leaf in (("weight", "bias") if self.bias else ("weight",))
        )

    def split(self, matrix: Tensor, like: Mapping[str, Tensor]) -> Tree:
        """Return a matrix ``(O, I)`` as the layer's parameters, in the shapes and types of
        `like`.
        """
        weight, *bias = self.parameters
        parts = {weight: matrix[:, : self.inputs - self.bias]} | dict.fromkeys(bias, matrix[:, -1])
        return {name: part.reshape(like[name].shape).to(like[name]) for name, part in parts.items()}


def last_layer(net: nn.Module, where: str = "laplace", instead: str = "subset='all'") -> Layer:
    """Return a network's last linear layer; `where` and `instead` are for the error.

    Raises
    ------
    ArgumentError
        If the network has none, or its weight is computed from others.
    """
    name, module = last_linear(net, where, instead)
    check_resolved(where, net, name)
    return _layer(name, module, last=True)


def all_layers(net: nn.Module) -> list[Layer] | None:
    """Return the layers that hold all trained parameters of a network; None if any is held by a
    layer of another kind, or by several layers.

    A frozen bias is no part of its layer.
    """
    layers = [
        _layer(name, one)
        for name, one in net.named_modules()
        if type(one) in (nn.Linear, nn.Conv2d)
        and getattr(one, "groups", 1) == 1
        and getattr(one, "padding_mode", "zeros") == "zeros"
        and isinstance(one.weight, nn.Parameter)
        and one.weight.requires_grad
    ]
    trained = [
        name for name, value in net.named_parameters(remove_duplicate=False) if value.requires_grad
    ]
    known = sorted(name for layer in layers for name in layer.parameters)
    return layers if tied(net).isdisjoint(trained) and sorted(trained) == known else None


def _layer(name: str, module: nn.Module, *, last: bool = False) -> Layer:
    shape, bias = module.get_parameter("weight").shape, module.bias is not None
    if bias and not last:
        bias = module.get_parameter("bias").requires_grad
    return Layer(name, shape[0], shape[1:].numel() + bias, bias, last)


@dataclass(frozen=True)
class Seen:
    """What a layer contributes to the Jacobian.

    Parameters
    ----------
    inputs
        ``(B, T, I)``, with a last column of ones for the bias.
    gradients
        ``(K, B, T, O)``: gradients of K linear combinations of the network's outputs.
    last
        Whether the outputs are those of the layer. Their gradients are then unit vectors, which
        are left out.
    """

    inputs: Tensor
    gradients: Tensor
    last: bool = False

    def products(self) -> Tensor:
        """Return the Jacobian by the layer's matrix, ``(K, B, O, I)``."""
        return torch.einsum("kbto,bti->kboi", self.gradients, self.inputs)


Columns = Callable[[Tensor], Tensor]
"""``outputs (B, C) -> (B, C, K)``: the linear combinations of outputs whose gradients are wanted.
"""


def seen(
    net: nn.Module, parameters: Tree, layers: Sequence[Layer], inputs: Tensor, columns: Columns
) -> tuple[Tensor, dict[str, Seen]]:
    """Run rows through a network in evaluation mode; return its outputs ``(B, C)``, and what each
    layer contributes, in double precision. A layer that is to be the last is the only one.

    Parameters
    ----------
    net, parameters
        Network and its parameters; where these lack one, the network's own is used.
    layers
        The layers.
    inputs
        ``(B, ...)``.
    columns
        Linear combinations of the outputs.

    Raises
    ------
    DataError
        If a layer is not used exactly once, the outputs are not ``(B, C)``, or are not those of a
        layer that is to be the last.
    """
    wanted = {name for layer in layers for name in layer.parameters}
    own = {name: leaf.detach() for name, leaf in net.named_parameters()} | parameters
    placed = {
        name: leaf.to(inputs.device).detach().requires_grad_(name in wanted)
        for name, leaf in own.items()
        if leaf.is_floating_point()
    }
    names = [layer.name for layer in layers]
    with passing(net, names) as passed, evaluating(net), torch.enable_grad():
        outputs = called(net, placed, inputs, "laplace")
    if outputs.ndim != 2 or any(len(times) != 1 for times in passed.values()):
        odd = {name: len(times) for name, times in passed.items() if len(times) != 1}
        actual = f"outputs {tuple(outputs.shape)}, layers used otherwise: {odd}"
        expected, hint = "outputs (B, C), every layer used once", "another structure, subset='last'"
        raise DataError("laplace", expected, actual, hint)
    for layer in layers:
        if layer.last and not torch.equal(outputs, passed[layer.name][0][1]):
            expected = f"outputs of the last linear layer {layer.name!r}"
            raise DataError("laplace", expected, "others", "subset='all'")
    if layers[0].last:
        (given, _), module = passed[layers[0].name][0], net.get_submodule(layers[0].name)
        rows = _inputs(module, given, layers[0].bias).double()
        return outputs.detach(), {layers[0].name: Seen(rows, rows.new_empty(0), last=True)}
    combinations, ends = columns(outputs.detach()), [passed[layer.name][0][1] for layer in layers]
    gradients = [
        torch.autograd.grad((outputs * combinations[:, :, column]).sum(), ends, retain_graph=True)
        for column in range(combinations.shape[2])
    ]
    result = {}
    for place, layer in enumerate(layers):
        module, given = net.get_submodule(layer.name), passed[layer.name][0][0]
        stacked = torch.stack([_positions(module, one[place]) for one in gradients]).double()
        result[layer.name] = Seen(_inputs(module, given, layer.bias).double(), stacked)
    return outputs.detach(), result


def _inputs(module: nn.Module, given: Tensor, bias: bool) -> Tensor:
    rows = _positions(module, given)
    if isinstance(module, nn.Conv2d):
        padded = nn.functional.pad(given, module._reversed_padding_repeated_twice)
        size, spread = module.kernel_size, module.dilation
        rows = nn.functional.unfold(padded, size, spread, stride=module.stride).transpose(1, 2)
    return torch.cat([rows, rows.new_ones(*rows.shape[:2], 1)], 2) if bias else rows


def _positions(module: nn.Module, values: Tensor) -> Tensor:
    """Return inputs or outputs of a layer as ``(B, T, ...)``."""
    if isinstance(module, nn.Conv2d):
        return values.flatten(2).transpose(1, 2)
    return values.reshape(len(values), -1, values.shape[-1])


def jacobian(
    net: nn.Module, parameters: Tree, names: Sequence[str], inputs: Tensor, columns: Columns
) -> tuple[Tensor, Tensor]:
    """Return a network's outputs ``(B, C)``, and K gradients of each row by some parameters, flat
    and in the order of their names, ``(K, B, P)``.

    Any network will do; it takes ``B C P`` numbers of memory.

    Raises
    ------
    DataError
        If the outputs are not ``(B, C)``.
    """
    own = {name: leaf.detach() for name, leaf in net.named_parameters()} | {
        name: leaf.to(inputs.device) for name, leaf in parameters.items()
    }
    chosen = {name: own[name] for name in names}

    def outputs_of(given: Tree, row: Tensor) -> Tensor:
        return called(net, own | given, row[None])[0]

    with evaluating(net), torch.no_grad():
        outputs = called(net, own, inputs, "laplace")
        if outputs.ndim != 2:
            hint = "a network with a row of outputs each"
            raise DataError("laplace", "outputs (B, C)", tuple(outputs.shape), hint)
        by_name = torch.func.vmap(torch.func.jacrev(outputs_of), (None, 0))(chosen, inputs)
    # A scalar has an axis as well.
    each = [by_name[name].reshape(*outputs.shape, chosen[name].numel()) for name in names]
    flat = torch.cat(each, 2).double()
    return outputs, torch.einsum("bck,bcp->kbp", columns(outputs).double(), flat)

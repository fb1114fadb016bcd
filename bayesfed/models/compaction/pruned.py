"""Dropping units of a sparse network that do nothing, without changing its function.

Between two layers joined only by modules that treat every unit alike,

- a unit whose outgoing weights are all zero is a dead end and is dropped;
- a unit without incoming weights is the constant ``f(b)``, with f the activations in between. It is
  folded into the next bias and dropped.

One pass from the last layer to the first for the dead ends, then one from the first to the last for
the constants, reaches the fixed point: a unit that becomes constant by a fold has no active input,
so dropping it makes no new dead end.
"""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import TypeGuard, cast

import torch
from torch import Tensor, nn

from bayesfed.models.modules import ELEMENTWISE, is_plain

Step = tuple[str, nn.Module]
Layer = nn.Linear | nn.Conv2d


def is_layer(module: nn.Module) -> TypeGuard[Layer]:
    """Return whether a module is a linear layer or an ungrouped convolution that can be
    rewritten.
    """
    return is_plain(module, nn.Linear) or (
        is_plain(module, nn.Conv2d) and getattr(module, "groups", 0) == 1
    )


def resized(layer: Layer, weight: Tensor, bias: Tensor | None) -> Layer:
    """Return a layer with the same settings and other weights. It is made from a copy, since
    constructors draw random numbers.
    """
    twin = copy.deepcopy(layer)
    twin.weight = nn.Parameter(weight.contiguous(), requires_grad=False)
    twin.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
    if isinstance(twin, nn.Linear):
        twin.out_features, twin.in_features = weight.shape
    else:
        twin.out_channels, twin.in_channels = weight.shape[:2]
    return twin


def constants(layer: Layer) -> Tensor:
    """Return the output of every unit for zero inputs: its bias, or zeros."""
    return (
        layer.weight.new_zeros(len(layer.weight)).detach()
        if layer.bias is None
        else layer.bias.detach()
    )


def pruned(steps: list[Step]) -> list[Step]:
    """Drop dead ends, then fold constants, in the steps of a network without branches; its inputs
    and outputs are unchanged.
    """
    steps = list(steps)
    layers = [i for i, (_, module) in enumerate(steps) if is_layer(module)]
    pairs = [(i, j) for i, j in pairwise(layers) if _are_joined(steps, i, j)]
    for i, j in reversed(pairs):
        before, after = _layers(steps, i, j)
        _keep(steps, i, j, _by_unit(before, after).ne(0).any(2).any(0))
    for i, j in pairs:
        before, after = _layers(steps, i, j)
        value = constants(before).clone()
        for _, module in steps[i + 1 : j]:
            value = module(value) if is_plain(module, *ELEMENTWISE) else value
        folded = before.weight.flatten(1).eq(0).all(1) & (value.eq(0) | _spreads_constants(after))
        # Every layer needs at least one unit: if all could be folded, the first one stays.
        folded[0] &= not folded.all()
        # In double precision, rounded once, so that a fold adds no error of its own.
        bias = (_by_unit(before, after).double().sum(2)[:, folded] @ value[folded].double()).to(
            value
        )
        bias = bias if after.bias is None else bias + after.bias
        steps[j] = (
            steps[j][0],
            resized(after, after.weight, bias if after.bias is not None or bias.any() else None),
        )
        _keep(steps, i, j, ~folded)
    return steps


def _layers(steps: list[Step], i: int, j: int) -> tuple[Layer, Layer]:
    return cast(Layer, steps[i][1]), cast(Layer, steps[j][1])


def _by_unit(before: Layer, after: Layer) -> Tensor:
    """Return the later weights as ``(outputs, units of the earlier layer, weights for each unit)``;
    a flattened channel has many columns.
    """
    return after.weight.detach().reshape(len(after.weight), len(before.weight), -1)


def _keep(steps: list[Step], i: int, j: int, units: Tensor) -> None:
    if units.all():
        return
    before, after = _layers(steps, i, j)
    units = units if units.any() else torch.arange(len(units), device=units.device) == 0
    inputs = units.repeat_interleave(after.weight.shape[1] // len(units))
    steps[i] = (
        steps[i][0],
        resized(
            before,
            before.weight.detach()[units],
            None if before.bias is None else before.bias.detach()[units],
        ),
    )
    steps[j] = (steps[j][0], resized(after, after.weight.detach()[:, inputs], after.bias))


def _are_joined(steps: list[Step], i: int, j: int) -> bool:
    """Return whether the units of layer i reach only layer j, through activations, pooling and at
    most one flattening of pictures.
    """
    before, after = steps[i][1], steps[j][1]
    is_picture = isinstance(before, nn.Conv2d)
    for _, module in steps[i + 1 : j]:
        if (
            is_picture
            and is_plain(module, nn.Flatten)
            and module.start_dim == 1
            and module.end_dim == -1
        ):
            is_picture = False
        elif not (is_plain(module, *ELEMENTWISE) or (is_picture and _keeps_constants(module))):
            return False
    if isinstance(after, nn.Conv2d) or is_picture:
        return isinstance(after, nn.Conv2d) and is_picture
    return (
        isinstance(after, nn.Linear)
        and after.in_features % len(_layers(steps, i, j)[0].weight) == 0
    )


def _keeps_constants(module: nn.Module) -> bool:
    """Return whether pooling returns a constant channel as the same constant."""
    if is_plain(module, nn.AvgPool2d):
        return (
            module.padding in {0, (0, 0)}
            and not module.ceil_mode
            and module.divisor_override is None
        )
    if is_plain(module, nn.MaxPool2d, nn.AdaptiveMaxPool2d):
        return not module.return_indices
    return is_plain(module, nn.AdaptiveAvgPool2d)


def _spreads_constants(layer: Layer) -> bool:
    """Return whether a constant input channel adds the same number to every output; with zero
    padding the border would differ.
    """
    return (
        isinstance(layer, nn.Linear)
        or layer.padding_mode != "zeros"
        or layer.padding in {0, (0, 0), "valid"}
    )

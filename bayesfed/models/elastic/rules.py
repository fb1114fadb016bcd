"""Rules for each kind of operation: which axes it ties together, and which axes its result has.

There is one rule for each kind of operation, module or function. An operation without a rule may
still act on inputs, which have no hidden channels.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from bayesfed.errors.plurals import plural
from bayesfed.models.elastic.axes import Axes, Axis
from bayesfed.models.elastic.calls import COUNTED, Call, Value
from bayesfed.models.modules import ELEMENTWISE, SILENT

Rule = Callable[[Call], Axes]


def pointwise(call: Call) -> Axes:
    """Tie the axes of tensors that are combined entry by entry; an axis of length 1 that is
    broadcast is not tied.
    """
    axes: list[Axis | None] = []
    values = [one for one in (*call.args, *call.named.values()) if isinstance(one, Value)]
    for back, length in enumerate(reversed(call.shape), start=1):
        aligned = [
            one.axes[-back]
            for one in values
            if len(one.shape) >= back and one.shape[-back] == length
        ]
        for other in aligned[1:]:
            call.tie(aligned[0], other)
        axes.insert(0, aligned[0])
    return tuple(axes)


def linear(call: Call) -> Axes:
    """Tie the inputs to the weight's columns; the outputs are its rows."""
    inputs, weight, bias = _operands(call)
    call.tie(weight.axes[1], inputs.axes[-1])
    return (*inputs.axes[:-1], _rows(call, weight, bias))


def convolution(call: Call) -> Axes:
    """Tie the input channels to those of the filters; a depthwise convolution keeps its channels,
    and makes one or more of each.
    """
    inputs, weight, bias = _operands(call)
    channel = len(call.shape) - len(weight.shape) + 1
    before = inputs.axes[channel]
    groups = call.value(6, "groups") if call.module is None else getattr(call.module, "groups", 1)
    if groups not in (None, 1):
        made, taken = weight.shape[0], inputs.shape[channel]
        if call.module is None or groups != taken:
            expected = "a convolution of one group, or a depthwise nn.Conv"
            call.refuse(
                expected,
                f"{plural(groups, 'group')} over {plural(taken, 'channel')}, "
                "each with its own order",
                "groups=1",
            )
        root = call.root(before)
        call.tie(
            weight.axes[0],
            None if root is None else Axis(root.channels, root.inner * (made // taken)),
        )
    else:
        call.tie(weight.axes[1], before)
    rows = _rows(call, weight, bias)
    return tuple(rows if axis == channel else one for axis, one in enumerate(inputs.axes))


def normed(call: Call) -> Axes:
    """Tie scale, shift and statistics to the channels; the channels of a norm group stay
    together.
    """
    inputs: Value = call.args[0]
    axis = call.root(inputs.axes[1])
    for name in ("weight", "bias", "running_mean", "running_var"):
        if (leaf := call.leaf(name)) is not None:
            call.tie(leaf.axes[0], axis)
    if isinstance(call.module, nn.GroupNorm) and axis is not None:
        call.network.ties.join(
            axis, call.module.num_channels // call.module.num_groups, axis.inner, call.where
        )
    call.tie(call.network.norms.setdefault(call.path, axis), axis)
    return inputs.axes


def pooled(call: Call, spatial: int) -> Axes:
    """Keep the channels; the last axes, which are pooled, must not be hidden channels."""
    axes: Axes = call.args[0].axes
    call.check_not_hidden(axes[-spatial:], "pooling of pictures", "pooling over hidden channels")
    return axes


def averaged(call: Call) -> Axes:
    """Drop the axes that a mean or a sum is taken over, which must not be hidden channels."""
    axes: Axes = call.args[0].axes
    given, keeps = call.value(1, "dim"), call.value(2, "keepdim")
    dims = range(len(axes)) if given is None else (given,) if isinstance(given, int) else given
    over = {axis % len(axes) for axis in dims}
    call.check_not_hidden(
        tuple(axes[axis] for axis in over), "a mean over pictures", "one over hidden channels"
    )
    return tuple(
        None if axis in over else one for axis, one in enumerate(axes) if keeps or axis not in over
    )


def reshaped(call: Call) -> Axes:
    """Follow channels through a flattening, after which each has consecutive entries."""
    inputs: Value = call.args[0]
    axes: list[Axis | None] = [None] * len(call.shape)
    for before, after in _runs(inputs.shape, call.shape):
        held = [axis for axis in before if call.root(inputs.axes[axis]) is not None]
        if not held:
            continue
        long = [axis for axis in after if call.shape[axis] != 1] or after[:1]
        if (
            len(held) > 1
            or len(long) != 1
            or math.prod(inputs.shape[axis] for axis in before if axis < held[0]) != 1
        ):
            hint = "flattening of (B, C, H, W) from C on"
            call.refuse(
                "hidden channels one after the other",
                f"a reshape of {inputs.shape} to {call.shape}",
                hint,
            )
        root = call.root(inputs.axes[held[0]])
        rest = math.prod(inputs.shape[axis] for axis in before if axis > held[0])
        axes[long[0]] = None if root is None else Axis(root.channels, root.inner * rest)
    return tuple(axes)


def viewed(call: Call) -> Axes:
    """Follow a reshape that also works at other widths: lengths of hidden axes are -1 or computed,
    not constants.
    """
    axes = reshaped(call)
    target = call.value(1, "shape")
    lengths = call.args[1:] if isinstance(target, int) or target is COUNTED else target
    if isinstance(lengths, Sequence) and len(lengths) == len(axes):
        for length, axis in zip(lengths, axes, strict=True):
            if axis is not None and isinstance(length, int) and length != -1:
                call.refuse(
                    "a reshape that fits any width", f"the constant {length}", "-1, or nn.Flatten"
                )
    return axes


def _operands(call: Call) -> tuple[Value, Value, Value | None]:
    inputs = call.value(0, "input")
    if call.module is None:
        weight, bias = call.value(1, "weight"), call.value(2, "bias")
    else:
        weight, bias = call.leaf("weight"), call.leaf("bias")
    if not isinstance(weight, Value) or weight.leaf is None:
        call.refuse(
            "a parameter as weight", "a tensor that is worked out", "an nn.Linear or nn.Conv2d"
        )
    return inputs, weight, bias


def _rows(call: Call, weight: Value, bias: Value | None) -> Axis | None:
    """Return the outputs of a weight, tied to its bias."""
    call.network.made.add(str(weight.leaf))
    if bias is not None:
        call.tie(weight.axes[0], bias.axes[0])
    return weight.axes[0]


def _runs(before: tuple[int, ...], after: tuple[int, ...]) -> list[tuple[list[int], list[int]]]:
    """Split two shapes of the same size into the shortest pairs of consecutive axes with equal
    numbers of entries.
    """
    runs: list[tuple[list[int], list[int]]] = []
    start, stop = 0, 0
    while start < len(before) and stop < len(after):
        first, last = start + 1, stop + 1
        while (left := math.prod(before[start:first])) != (right := math.prod(after[stop:last])):
            first, last = (first + 1, last) if left < right else (first, last + 1)
        runs.append((list(range(start, first)), list(range(stop, last))))
        start, stop = first, last
    if runs:
        # All axes that are left have length 1.
        runs[-1][0].extend(range(start, len(before)))
        runs[-1][1].extend(range(stop, len(after)))
    return runs


_POINTWISE = (
    "relu relu_ relu6 tanh sigmoid gelu silu elu celu selu leaky_relu hardswish hardsigmoid "
    "hardtanh softplus mish dropout add add_ iadd sub isub mul mul_ imul div truediv neg abs "
    "square contiguous clone"
)
_POOLS = {
    "max_pool": "MaxPool",
    "avg_pool": "AvgPool",
    "adaptive_max_pool": "AdaptiveMaxPool",
    "adaptive_avg_pool": "AdaptiveAvgPool",
}

MODULES: dict[type[nn.Module], Rule] = {
    nn.Linear: linear,
    nn.GroupNorm: normed,
    nn.Flatten: reshaped,
    **dict.fromkeys((*ELEMENTWISE, *SILENT), pointwise),
}
# Methods of tensors, and functions of the same names in `torch`, `functional` and `operator`.
METHODS: dict[str, Rule] = {
    "linear": linear,
    "flatten": reshaped,
    "view": viewed,
    "reshape": viewed,
    "mean": averaged,
    "sum": averaged,
    **dict.fromkeys(_POINTWISE.split(), pointwise),
}
for _n in (1, 2, 3):
    MODULES[getattr(nn, f"Conv{_n}d")] = METHODS[f"conv{_n}d"] = convolution
    MODULES[getattr(nn, f"BatchNorm{_n}d")] = normed
    for _function, _module in _POOLS.items():
        MODULES[getattr(nn, f"{_module}{_n}d")] = METHODS[f"{_function}{_n}d"] = partial(
            pooled, spatial=_n
        )
FUNCTIONS: dict[Any, Rule] = {
    getattr(space, name): rule
    for space in (torch, functional, operator)
    for name, rule in METHODS.items()
    if hasattr(space, name)
}

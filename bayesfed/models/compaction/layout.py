"""How pictures lie in memory between convolutions, and in which order they are activated and
pooled; neither changes what is computed.

On a CPU, pooling and activations of a narrow convolutional network take as long as its products, so
dropping channels alone gains little. A ReLU commutes with max pooling, since it never falls: after
the pooling it has a quarter of the entries. It may overwrite what the step before it returned. And
with the channels of a pixel side by side ("channels last"), pooling and convolutions of few
channels are two to five times as fast in oneDNN's kernels.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import nn

from bayesfed.models.compaction.pruned import Step
from bayesfed.models.modules import ELEMENTWISE, is_plain


def pooled_first(steps: Sequence[Step]) -> list[Step]:
    """Return the steps with every ReLU after the max pooling that follows it."""
    ordered = list(steps)
    for place in range(len(ordered) - 1):
        (_, first), (_, second) = ordered[place : place + 2]
        if (
            is_plain(first, nn.ReLU, nn.ReLU6)
            and is_plain(second, nn.MaxPool2d)
            and not getattr(second, "return_indices", False)
        ):
            ordered[place : place + 2] = ordered[place + 1], ordered[place]
    return ordered


def overwriting(module: nn.Module) -> nn.Module:
    """Return a copy of an activation that overwrites its input, if it can; other modules are
    returned as they are.
    """
    if not (is_plain(module, *ELEMENTWISE) and hasattr(module, "inplace")):
        return module
    twin: Any = copy.copy(module)
    twin.inplace = True
    return cast(nn.Module, twin)


def channels_last(net: nn.Module) -> nn.Module:
    """Return a copy of a network whose convolutions return the channels of a pixel side by side."""
    # A convolution takes the layout of its weight where that of its input leaves it open, and
    # pooling and activations keep it.
    twin: Any = copy.deepcopy(net)
    return cast(nn.Module, twin.to(memory_format=torch.channels_last))

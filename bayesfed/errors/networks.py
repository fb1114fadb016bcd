"""What every network must be that a public function takes: parameters with shapes and finite
numbers.
"""

from __future__ import annotations

import math

from torch import nn
from torch.nn.parameter import is_lazy

from bayesfed.errors import ArgumentError


def is_network(value: object) -> bool:
    """Return whether a value is a network.

    Raises
    ------
    ArgumentError
        If it is one that cannot be trained yet; the message names the parameter.
    """
    if not isinstance(value, nn.Module):
        return False
    if any(isinstance(module, nn.DataParallel) for module in value.modules()):
        hint = "net.module, and data.to('cuda')"
        raise ArgumentError("network", "a network on one device", "nn.DataParallel", hint)
    for name, leaf in value.named_parameters():
        where = f"network, parameter {name!r}"
        if is_lazy(leaf):
            actual, hint = "one that the first rows will decide", "net(train.inputs[:2]), once"
            raise ArgumentError(where, "a shape", actual, hint)
        if leaf.is_meta:
            hint = "a network that is made without torch.device('meta')"
            raise ArgumentError(where, "numbers", "a shape on the device meta", hint)
        if leaf.is_floating_point() and leaf.numel():
            low, high = leaf.detach().aminmax()
            if not math.isfinite(low) or not math.isfinite(high):
                layer = f"net.get_submodule({name.rpartition('.')[0]!r})"
                hint = f"{layer}.reset_parameters(), or weights from before training diverged"
                raise ArgumentError(where, "finite numbers", "NaN or Inf", hint)
    return True

"""Evaluation mode for the length of a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(net: nn.Module) -> Iterator[None]:
    """Put a network in evaluation mode inside the block: dropout drops nothing, batch norm normalises by its running statistics.

    Every module's own mode is back when the block ends.
    """
    modes = [(module, module.training) for module in net.modules()]
    try:
        net.eval()
        yield
    finally:
        for module, mode in modes:
            # Not `train`: a module may have its own, which passes the mode on to its children.
            module.training = mode

"""Networks of digits (or of any rows) that draw random numbers without a dropout module to be seen,
and some that keep a state of their own.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from bayesfed.keys import Key, forked


class Drawing(nn.Module):
    """Two layers with something drawn between them."""

    def __init__(self, features: int = 64, classes: int = 10) -> None:
        super().__init__()
        self.enter = nn.Linear(features, 8)
        self.leave = nn.Linear(8, classes)

    def drawn(self, inner: Tensor) -> Tensor:
        """Return the inner layer's outputs with something drawn."""
        raise NotImplementedError

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits."""
        inner = torch.relu(self.enter(inputs.flatten(1)))
        found: Tensor = self.leave(self.drawn(inner) if self.training else inner)
        return found


class FunctionalDropout(Drawing):
    """Dropout by a function."""

    def drawn(self, inner: Tensor) -> Tensor:
        return functional.dropout(inner, 0.5, self.training)


class StochasticDepth(Drawing):
    """The inner layer is left out now and then."""

    def drawn(self, inner: Tensor) -> Tensor:
        return inner * 0.0 if float(torch.rand(())) < 0.3 else inner


class Noise(Drawing):
    """Gaussian noise."""

    def drawn(self, inner: Tensor) -> Tensor:
        return inner + 0.3 * torch.randn_like(inner)


class PythonsDepth(Drawing):
    """The inner layer is left out now and then, as Python draws."""

    def drawn(self, inner: Tensor) -> Tensor:
        return inner * 0.0 if random.random() < 0.3 else inner


class NumPysNoise(Drawing):
    """A random scale from NumPy, drawn only now and then."""

    def drawn(self, inner: Tensor) -> Tensor:
        return inner * float(np.random.uniform(0.5, 1.5))


GENERATORS = torch.Generator().manual_seed(7), np.random.default_rng(7), random.Random(7)


class OwnStreams(Drawing):
    """Three generators beside the global ones."""

    def drawn(self, inner: Tensor) -> Tensor:
        torchs, numpys, pythons = GENERATORS
        mask = torch.rand(inner.shape, generator=torchs) < 0.8
        return inner * mask * float(numpys.uniform(0.5, 1.5)) * pythons.uniform(0.5, 1.5)


class Recurrent(Drawing):
    """Dropout between two recurrent layers."""

    def __init__(self, features: int = 64, classes: int = 10) -> None:
        super().__init__(features, classes)
        self.body = nn.LSTM(2, 2, num_layers=2, dropout=0.5, batch_first=True)

    def drawn(self, inner: Tensor) -> Tensor:
        found: Tensor = self.body(inner.view(-1, 4, 2))[0]
        return inner + found.flatten(1)


class Attention(Drawing):
    """Dropout of attention."""

    def __init__(self, features: int = 64, classes: int = 10) -> None:
        super().__init__(features, classes)
        self.body = nn.MultiheadAttention(2, 1, dropout=0.5, batch_first=True)

    def drawn(self, inner: Tensor) -> Tensor:
        rows = inner.view(-1, 4, 2)
        found: Tensor = self.body(rows, rows, rows, need_weights=False)[0]
        return inner + found.flatten(1)


KINDS: dict[str, Callable[..., nn.Module]] = {
    kind.__name__: kind
    for kind in (
        FunctionalDropout,
        StochasticDepth,
        Noise,
        PythonsDepth,
        NumPysNoise,
        OwnStreams,
        Recurrent,
        Attention,
    )
}


def drawing_net(name: str, features: int = 64, classes: int = 10) -> nn.Module:
    """Return one of these networks, the same each time."""
    with forked(Key(0, "random networks", name)):
        return KINDS[name](features, classes)

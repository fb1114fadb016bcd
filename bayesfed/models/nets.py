"""Reference networks: plain `nn.Sequential`s, initialised from a key."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from bayesfed.keys import Key


def mlp(widths: Sequence[int], key: Key) -> nn.Sequential:
    """Build a ReLU perceptron on flattened inputs; ``mlp([784, 256, 256, 10], key)`` is the papers' network."""
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return _initialised(nn.Sequential(*layers[:-1]), key)


def cnn(image: tuple[int, int, int], classes: int, key: Key, *, channels: Sequence[int] = (16, 32), hidden: int = 64) -> nn.Sequential:
    """Build 3 x 3 convolutions with max pooling, then one hidden layer, for images of (channels, height, width)."""
    layers: list[nn.Module] = [nn.Unflatten(1, (image[0], image[1]))] if image[0] == 1 else []
    before, height, width = image
    for after in channels:
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        before, height, width = after, height // 2, width // 2
    layers += [nn.Flatten(), nn.Linear(before * height * width, hidden), nn.ReLU(), nn.Linear(hidden, classes)]
    return _initialised(nn.Sequential(*layers), key)


def _initialised(net: nn.Sequential, key: Key) -> nn.Sequential:
    generator = key.generator()
    for module in net.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            # He et al. (2015): sd sqrt(2 / fan_in), the scale that the priors are relative to.
            nn.init.normal_(module.weight, std=math.sqrt(2 / module.weight[0].numel()), generator=generator)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return net

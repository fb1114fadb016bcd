"""Parts common to the reference networks: initialisation from a key, the rule for widths, grey
images.
"""

from __future__ import annotations

import math
from typing import TypeVar

from torch import nn

from bayesfed.errors.checks import COUNT, POSITIVE, Role, check
from bayesfed.keys import Key

Net = TypeVar("Net", bound=nn.Module)
IMAGE = Role(
    lambda image: len(image) == 3 and all(COUNT.fits(size) for size in image),
    "whole numbers from 1: (channels, height, width)",
    "(1, 28, 28)",
)
# Images that three poolings leave something of.
LARGE = Role(lambda image: min(image[1:]) >= 8, "at least 8 x 8 pixels", "cnn, femnist_cnn")


def initialised(net: Net, key: Key) -> Net:
    """Draw the weights of all linear layers and 2-D convolutions from `key`, set their biases to
    zero, and return the same network.

    Weights are normal with sd ``sqrt(2 / fan_in)`` (He et al., 2015), the scale that the priors are
    relative to.
    """
    generator = key.generator()
    for module in net.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.normal_(
                module.weight, std=math.sqrt(2 / module.weight[0].numel()), generator=generator
            )
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return net


def slimmed(size: int, width: float, *, where: str) -> int:
    """Return `size` times `width`, rounded to the nearest integer (a half to the even one) and at
    least 1.

    HeteroFL's published code rounds up; FedHM's tables have the sizes that rounding to the nearest
    gives.

    Raises
    ------
    ArgumentError
        If `width` is not positive and finite.
    """
    check(f"{where}, width", width, POSITIVE)
    return max(1, round(size * width))


def as_images(image: tuple[int, int, int]) -> dict[str, nn.Module]:
    """Return a first step that brings grey images, ``(B, H, W)`` or ``(B, 1, H, W)``, to
    ``(B, 1, H, W)``; no step for other images.
    """
    return {"image": nn.Sequential(nn.Flatten(), nn.Unflatten(1, image))} if image[0] == 1 else {}

"""Residual networks for small images (He et al., 2016), at full width or slimmed as in HeteroFL.

They have the form used for CIFAR: a 3 x 3 stem of stride 1 without max pooling, four groups of
blocks of 64, 128, 256 and 512 channels, global average pooling, one linear layer. A block is two 3
x 3 convolutions beside a shortcut. The shortcut is a 1 x 1 convolution and a norm where the number
of channels or the size of the image changes, and the identity elsewhere. Convolutions have no
biases; the norms' shifts serve as such.

A network is an `nn.Sequential` of named steps. Parameters are named ``conv1.weight``,
``norm1.weight``, ``layer1.0.conv1.weight``, ``layer2.0.shortcut.0.weight`` (the convolution),
``layer2.0.shortcut.1.weight`` (its norm), ``fc.weight`` and so on, for every norm and width.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional

from bayesfed.errors.checks import checked
from bayesfed.keys import Key
from bayesfed.models.nets.building_blocks import IMAGE, as_images, initialised, slimmed
from bayesfed.models.nets.norms import Norm, norm_layer


class Block(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut:
    ``relu(norm2(conv2(relu(norm1(conv1(x))))) + shortcut(x))``.

    Parameters
    ----------
    before, after
        Channels in and out.
    stride
        Stride of the first convolution and of the shortcut.
    norm
        ``"batch"``, ``"static"`` or ``"group"``: see `bayesfed.models.nets.norms`.
    """

    def __init__(self, before: int, after: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.norm1 = norm_layer(after, norm, where="resnet")
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = norm_layer(after, norm, where="resnet")
        self.shortcut = nn.Sequential()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False),
                norm_layer(after, norm, where="resnet"),
            )

    def forward(self, inputs: Tensor) -> Tensor:
        """Map ``(B, before, H, W)`` to ``(B, after, ceil(H / stride), ceil(W / stride))``."""
        inner = functional.relu(self.norm1(self.conv1(inputs)))
        return functional.relu(self.norm2(self.conv2(inner)) + self.shortcut(inputs))


@checked(image=IMAGE)
def resnet18(
    image: tuple[int, int, int], classes: int, key: Key, *, width: float = 1.0, norm: Norm = "batch"
) -> nn.Sequential:
    """Build ResNet-18 (He et al., 2016) for small images: two blocks in each group.

    For three channels and ten classes it has 11 173 962 parameters at width 1, and 4 293 347, 2 797
    610 and 1 373 160 at HeteroFL's widths .62, .50 and .35. The number is the same for all three
    norms.

    Parameters
    ----------
    image
        (channels, height, width). Images of one channel are given as ``(B, height, width)`` or
        ``(B, 1, height, width)``.
    classes
        Number of outputs.
    key
        Random key of the initial weights.
    width
        Factor on every layer's channels, which are rounded to the nearest integer
        (`bayesfed.models.nets.building_blocks.slimmed`).
    norm
        ``"batch"`` (with running statistics, which most recipes refuse: see
        `bayesfed.federated.training.batch_norm`), ``"static"`` (without) or ``"group"``, with 4, 8,
        16 and 32 groups at width 1: see `bayesfed.models.nets.norms`.

    Raises
    ------
    ArgumentError
        If `width` is not positive or there is no such norm.
    """
    return _resnet((2, 2, 2, 2), image, classes, key, width, norm)


@checked(image=IMAGE)
def resnet34(
    image: tuple[int, int, int], classes: int, key: Key, *, width: float = 1.0, norm: Norm = "batch"
) -> nn.Sequential:
    """Build ResNet-34 (He et al., 2016) for small images: groups of 3, 4, 6 and 3 blocks.

    For three channels and 100 classes it has 21 328 292 parameters at width 1, and 8 769 303, 5 349
    636 and 3 423 974 at HeteroFL's widths .64, .50 and .40. For 200 classes: 21 379 592, then 8 802
    203, 5 375 336 and 3 444 574.

    Parameters
    ----------
    image, classes, key, width, norm
        As in `resnet18`.

    Raises
    ------
    ArgumentError
        If `width` is not positive or there is no such norm.
    """
    return _resnet((3, 4, 6, 3), image, classes, key, width, norm)


def _resnet(
    blocks: Sequence[int],
    image: tuple[int, int, int],
    classes: int,
    key: Key,
    width: float,
    norm: Norm,
) -> nn.Sequential:
    channels = [slimmed(size, width, where="resnet") for size in (64, 128, 256, 512)]
    before = channels[0]
    steps: OrderedDict[str, nn.Module] = OrderedDict(as_images(image))
    steps["conv1"] = nn.Conv2d(image[0], before, 3, padding=1, bias=False)
    steps["norm1"], steps["relu"] = norm_layer(before, norm, where="resnet"), nn.ReLU()
    for group, (number, after) in enumerate(zip(blocks, channels, strict=True), start=1):
        first = Block(before, after, 1 if group == 1 else 2, norm)
        steps[f"layer{group}"] = nn.Sequential(
            first, *(Block(after, after, 1, norm) for _ in range(number - 1))
        )
        before = after
    steps |= {
        "pool": nn.AdaptiveAvgPool2d(1),
        "flatten": nn.Flatten(),
        "fc": nn.Linear(before, classes),
    }
    return initialised(nn.Sequential(steps), key)

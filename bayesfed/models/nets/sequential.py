"""Reference networks that are a plain `nn.Sequential`, initialised from a key."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from bayesfed.errors.checks import COUNT, POSITIVE, Role, check, checked, number
from bayesfed.keys import Key
from bayesfed.models.nets.building_blocks import IMAGE, LARGE, initialised
from bayesfed.models.nets.norms import Norm, norm_layer

# Howard et al. (2017), table 1: output channels and stride of each depthwise-separable block.
_BLOCKS = (
    (64, 1),
    (128, 2),
    (128, 1),
    (256, 2),
    (256, 1),
    (512, 2),
    *5 * [(512, 1)],
    (1024, 2),
    (1024, 1),
)


@checked(
    widths=Role(
        lambda widths: (
            isinstance(widths, list | tuple)
            and len(widths) > 1
            and all(isinstance(width, int) and width > 0 for width in widths)
        ),
        "a list of two or more whole numbers from 1",
        "[64, 32, 10]",
    ),
    dropout=number("[0, 1)", "0.2"),
)
def mlp(widths: Sequence[int], key: Key, *, dropout: float = 0.0) -> nn.Sequential:
    """Build a ReLU perceptron on flattened inputs ``(B, ...)``; ``mlp([784, 256, 256, 10], key)``
    is the network of several of the papers.

    Parameters
    ----------
    widths
        Number of inputs (entries of one flattened row), units of every hidden layer, number of
        outputs.
    key
        Random key of the initial weights.
    dropout
        Probability of dropout after every hidden layer. With 0 there is none.

    Raises
    ------
    ArgumentError
        If there are fewer than two widths, one is below 1, or `dropout` is outside [0, 1).
    """
    return initialised(nn.Sequential(*_perceptron(widths, dropout)), key)


@checked(image=IMAGE, classes=COUNT, hidden=COUNT)
def cnn(
    image: tuple[int, int, int],
    classes: int,
    key: Key,
    *,
    channels: Sequence[int] = (16, 32),
    hidden: int = 64,
) -> nn.Sequential:
    """Build a small convolutional network: 3 x 3 convolutions with max pooling, then one hidden
    layer.

    Parameters
    ----------
    image
        (channels, height, width). Images of one channel are given as ``(B, height, width)``.
    classes
        Number of outputs, ``(B, classes)``.
    key
        Random key of the initial weights.
    channels
        Output channels of each convolution. The pooling after each halves height and width.
    hidden
        Units of the hidden layer.

    Raises
    ------
    ArgumentError
        If a number is below 1, or the image is too small for the poolings.

    Examples
    --------
    >>> net = cnn((1, 28, 28), 10, Key(0, "net"))
    """
    least = 2 ** len(channels)
    said = f"(channels, height, width), at least {least} pixels each way"
    check("cnn, image", image, Role(lambda image: min(image[1:]) >= least, said, "(1, 28, 28)"))
    layers, features = _convolved(image, [(after, True) for after in channels])
    return initialised(nn.Sequential(*layers, *_perceptron([features, hidden, classes])), key)


@checked(image=IMAGE)
def alexnet(
    image: tuple[int, int, int], classes: int, key: Key, *, width: int = 16, hidden: int = 128
) -> nn.Sequential:
    """Build a small AlexNet (Krizhevsky et al., 2012): five convolutions, two hidden layers, no
    normalisation.

    The 3 x 3 convolutions have 1, 3, 6, 4 and 4 times `width` channels, with max pooling after the
    first, second and fifth. With w for `width`, h for `hidden` and c channels of H x W pixels,
    there are ``9 (c w + 61 w^2) + 18 w`` parameters in the convolutions and ``(4 w (H // 8) (W
    // 8) + 1) h + (h + 1) h + (h + 1) classes`` after them: by default 232 634 for (1, 28, 28) and
    ten classes, 290 266 for (3, 32, 32).

    Parameters
    ----------
    image
        (channels, height, width), at least 8 pixels each way. Images of one channel are given as
        ``(B, height, width)``.
    classes
        Number of outputs.
    key
        Random key of the initial weights.
    width
        Channels of the first convolution; 64 gives the channels of the original.
    hidden
        Units of each of the two hidden layers.

    Raises
    ------
    ArgumentError
        If the image is too small for three poolings.
    """
    check("alexnet, image", image, LARGE)
    times = ((1, True), (3, True), (6, False), (4, False), (4, True))
    layers, features = _convolved(image, [(factor * width, pooled) for factor, pooled in times])
    widths = [features, hidden, hidden, classes]
    return initialised(nn.Sequential(*layers, *_perceptron(widths)), key)


@checked(image=IMAGE)
def mobilenet(
    image: tuple[int, int, int], classes: int, key: Key, *, width: float = 1.0, norm: Norm = "group"
) -> nn.Sequential:
    """Build MobileNetV1 (Howard et al., 2017) for images of about 32 x 32: depthwise-separable
    blocks, then global average pooling.

    The first convolution has stride 1 where ImageNet's has 2. By default group norm replaces batch
    norm, because a round may not change running statistics. Convolutions have no biases; the norms'
    shifts serve as such. For three channels and ten classes there are 3 217 226 parameters at width
    1, 823 722 at 1/2 and 215 642 at 1/4.

    Parameters
    ----------
    image
        (channels, height, width). Images of one channel are given as ``(B, height, width)``.
    classes
        Number of outputs.
    key
        Random key of the initial weights.
    width
        Factor on every layer's channels, which are rounded to multiples of 8.
    norm
        ``"group"``, in groups of 16 channels, or of 8 where 16 does not divide; ``"static"`` or
        ``"batch"``, see `bayesfed.models.nets.norms`.

    Raises
    ------
    ArgumentError
        If `width` is not positive or there is no such norm.
    """
    check("mobilenet, width", width, POSITIVE)
    before = _thinned(32, width)
    layers = [
        *_unflattened(image),
        *_normed(nn.Conv2d(image[0], before, 3, padding=1, bias=False), norm),
    ]
    for channels, stride in _BLOCKS:
        after = _thinned(channels, width)
        layers += _normed(
            nn.Conv2d(before, before, 3, stride, padding=1, groups=before, bias=False), norm
        )
        layers += _normed(nn.Conv2d(before, after, 1, bias=False), norm)
        before = after
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes)]
    return initialised(nn.Sequential(*layers), key)


def _convolved(
    image: tuple[int, int, int], sizes: Sequence[tuple[int, bool]]
) -> tuple[list[nn.Module], int]:
    """Return 3 x 3 convolutions of these channels, some of them followed by max pooling, and the
    number of features that they give.
    """
    layers = _unflattened(image)
    before, height, width = image
    for after, pooled in sizes:
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), *pooled * [nn.MaxPool2d(2)]]
        before = after
        height, width = (height // 2, width // 2) if pooled else (height, width)
    return layers, before * height * width


def _perceptron(widths: Sequence[int], dropout: float = 0.0) -> list[nn.Module]:
    """Return linear layers of these widths on flattened inputs, ReLU between them."""
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU(), *([nn.Dropout(dropout)] if dropout else [])]
    return layers[: -2 if dropout else -1]


def _unflattened(image: tuple[int, int, int]) -> list[nn.Module]:
    # Grey images are given as (B, H, W); convolutions need (B, 1, H, W).
    return [nn.Unflatten(1, (image[0], image[1]))] if image[0] == 1 else []


def _thinned(channels: int, width: float) -> int:
    return max(8, 8 * round(channels * width / 8))


def _normed(layer: nn.Conv2d, norm: Norm) -> list[nn.Module]:
    return [layer, norm_layer(layer.out_channels, norm, where="mobilenet"), nn.ReLU()]

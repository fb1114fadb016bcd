"""Two reference networks of stacked convolutions with a width factor: VGG-9, and the small CNN of
the first federated-learning papers.

Both are an `nn.Sequential` of named steps: parameters are named ``conv1.weight``, ``fc1.weight``
and so on, for every size of image.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import count

from torch import nn

from bayesfed.errors.checks import check, checked
from bayesfed.keys import Key
from bayesfed.models.nets.building_blocks import IMAGE, LARGE, as_images, initialised, slimmed
from bayesfed.models.nets.norms import Norm, norm_layer


@checked(image=IMAGE)
def vgg9(
    image: tuple[int, int, int],
    classes: int,
    key: Key,
    *,
    width: float = 1.0,
    norm: Norm | None = None,
) -> nn.Sequential:
    """Build VGG-9: six 3 x 3 convolutions, max pooling after every second, two hidden layers
    of 512.

    The convolutions have 32, 64, 128, 128, 256 and 256 channels (Wang et al., 2020, without their
    dropout). For (3, 32, 32) and ten classes there are 3 491 530 parameters, the 111.7 Mb that
    AnycostFL quotes at 32 bits each. With a norm there are 864 more, its scales; its shifts replace
    the convolutions' biases.

    Parameters
    ----------
    image
        (channels, height, width), at least 8 pixels each way. Images of one channel are given as
        ``(B, height, width)`` or ``(B, 1, height, width)``.
    classes
        Number of outputs.
    key
        Random key of the initial weights.
    width
        Factor on channels and hidden units, which are rounded to the nearest integer
        (`bayesfed.models.nets.building_blocks.slimmed`).
    norm
        Norm after each convolution: ``"batch"``, ``"static"`` or ``"group"``, see
        `bayesfed.models.nets.norms`. Default: none.

    Raises
    ------
    ArgumentError
        If the image is too small for three poolings, `width` is not positive, or there is no such
        norm.
    """
    check("vgg9, image", image, LARGE)
    steps, before = OrderedDict(as_images(image)), image[0]
    for number, size in enumerate((32, 64, 128, 128, 256, 256), start=1):
        after = slimmed(size, width, where="vgg9")
        steps[f"conv{number}"] = nn.Conv2d(before, after, 3, padding=1, bias=norm is None)
        if norm is not None:
            steps[f"norm{number}"] = norm_layer(after, norm, where="vgg9")
        steps[f"relu{number}"] = nn.ReLU()
        if number % 2 == 0:
            steps[f"pool{number // 2}"] = nn.MaxPool2d(2)
        before = after
    hidden = slimmed(512, width, where="vgg9")
    return _headed(
        steps, [before * (image[1] // 8) * (image[2] // 8), hidden, hidden, classes], key
    )


@checked()
def femnist_cnn(classes: int, key: Key, *, width: float = 1.0) -> nn.Sequential:
    """Build the CNN of McMahan et al. (2017) for grey images of 28 x 28: 5 x 5 convolutions of 32
    and 64 channels, 512 hidden units.

    Max pooling follows each convolution. There are 1 663 370 parameters with ten classes (53.2 Mb
    at 32 bits each), 1 690 046 with FEMNIST's 62. Images are given as ``(B, 28, 28)`` or
    ``(B, 1, 28, 28)``.

    Parameters
    ----------
    classes
        Number of outputs.
    key
        Random key of the initial weights.
    width
        Factor on channels and hidden units, which are rounded to the nearest integer
        (`bayesfed.models.nets.building_blocks.slimmed`).

    Raises
    ------
    ArgumentError
        If `width` is not positive.
    """
    sizes = [1, *(slimmed(size, width, where="femnist_cnn") for size in (32, 64, 512))]
    steps = OrderedDict(as_images((1, 28, 28)))
    for number in (1, 2):
        steps[f"conv{number}"] = nn.Conv2d(sizes[number - 1], sizes[number], 5, padding=2)
        steps[f"relu{number}"], steps[f"pool{number}"] = nn.ReLU(), nn.MaxPool2d(2)
    return _headed(steps, [49 * sizes[2], sizes[3], classes], key)


def _headed(steps: OrderedDict[str, nn.Module], widths: list[int], key: Key) -> nn.Sequential:
    # Hidden layers after the convolutions, ReLU between them.
    steps["flatten"] = nn.Flatten()
    for number, before, after in zip(count(1), widths, widths[1:], strict=False):
        steps[f"fc{number}"] = nn.Linear(before, after)
        if number < len(widths) - 1:
            steps[f"act{number}"] = nn.ReLU()
    return initialised(nn.Sequential(steps), key)

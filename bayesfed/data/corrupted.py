"""Images under corruptions of five severities, rows with other shares of classes, and inputs of no
class.

The corruptions are our own, in the spirit of ImageNet-C (Hendrycks and Dietterich, 2019). A
severity changes only the strength; labels stay.

==============  ==================================================  ===========================
corruption      what it does                                        severities 1 to 5
==============  ==================================================  ===========================
``noise``       adds Gaussian noise of this sd, then clips          .1, .2, .3, .4, .5
``blur``        smooths by a Gaussian of this sd, in pixels         .6, .9, 1.2, 1.6, 2
``rotation``    rotates by so many degrees, either way at random    10, 15, 20, 30, 45
``contrast``    draws values towards the mean of the image, to      .7, .5, .35, .25, .15
``occlusion``   sets a square to 0; of this share of the side       .2, .3, .4, .5, .6
==============  ==================================================  ===========================
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Generator, Tensor
from torch.nn import functional

from bayesfed.data.dataset import Dataset
from bayesfed.errors import ArgumentError, DataError
from bayesfed.errors.checks import checked, whole
from bayesfed.keys import Key

Corruption = Literal["noise", "blur", "rotation", "contrast", "occlusion"]
STRENGTHS: Mapping[Corruption, tuple[float, ...]] = {
    "noise": (0.1, 0.2, 0.3, 0.4, 0.5),
    "blur": (0.6, 0.9, 1.2, 1.6, 2.0),
    "rotation": (10.0, 15.0, 20.0, 30.0, 45.0),
    "contrast": (0.7, 0.5, 0.35, 0.25, 0.15),
    "occlusion": (0.2, 0.3, 0.4, 0.5, 0.6),
}


@checked(severity=whole(1, "3", 5))
def corrupted(
    data: Dataset, corruption: Corruption, severity: int = 3, *, key: Key | None = None
) -> Dataset:
    """Return images under a corruption, with their labels as they are.

    Parameters
    ----------
    data
        Images ``(N, H, W)`` or ``(N, C, H, W)`` of values from 0 to 1.
    corruption
        "noise", "blur", "rotation", "contrast" or "occlusion".
    severity
        From 1 to 5.
    key
        Key of noise, directions and places. Default: ``Key(0, "corrupted")``.

    Raises
    ------
    ArgumentError
        If there is no such corruption or severity.
    DataError
        If the rows are no images of values from 0 to 1.

    Examples
    --------
    >>> result.scores(corrupted(test, "blur", 3))
    """
    images, strength = _images("corrupted", data), STRENGTHS[corruption][severity - 1]
    if not len(data):
        return data
    noise = (key or Key(0, "corrupted")).child(corruption, severity).generator()
    changed = {
        "noise": _noise,
        "blur": _blur,
        "rotation": _rotated,
        "contrast": _contrast,
        "occlusion": _occluded,
    }[corruption](images, strength, noise)
    return Dataset(changed.reshape(data.inputs.shape), data.targets, data.classes, data.domains)


@checked()
def label_shifted(data: Dataset, shares: Tensor | list[float], key: Key) -> Dataset:
    """Return rows drawn without replacement such that the classes have other shares: as many rows
    as there are for it.

    Parameters
    ----------
    data
        Rows with class labels.
    shares
        ``(C,)``: share of each class, up to a factor.
    key
        Key of the draw.

    Raises
    ------
    ArgumentError
        If shares are negative or all zero, or a class that is wanted has no rows, or too few for
        one to be drawn.
    DataError
        If the targets are no labels of these classes.
    """
    wanted, labels = torch.as_tensor(shares, dtype=torch.float64), data.targets.cpu()
    if (
        labels.is_floating_point()
        or labels.ndim != 1
        or (len(data) and int(labels.max()) >= len(wanted))
    ):
        raise DataError(
            "label_shifted",
            f"labels 0 to {len(wanted) - 1}",
            f"{tuple(labels.shape)} of {labels.dtype}",
            "a share a class",
        )
    counts, asked = torch.bincount(labels, minlength=len(wanted)).double(), wanted > 0
    if ((wanted < 0).any() or (asked & (counts == 0)).any()) or not asked.any():
        raise ArgumentError(
            "label_shifted, shares",
            "numbers >= 0, not all 0",
            wanted.tolist(),
            "shares of classes that have rows",
        )
    # Rounded down, so that no class needs more rows than it has.
    size = float((counts[asked] / wanted[asked]).min())
    noise, parts = key.generator(), []
    for label, share in enumerate(wanted.tolist()):
        rows = (labels == label).nonzero()[:, 0]
        parts.append(
            rows[torch.randperm(len(rows), generator=noise)[: math.floor(share * size + 1e-9)]]
        )
        if share > 0 and not len(parts[-1]):
            raise ArgumentError(
                "label_shifted, shares",
                f"rows for a share of {share:g} of class {label}",
                f"classes of {counts.int().tolist()} rows",
                "more rows, or shares that differ less",
            )
    return data[torch.cat(parts).sort().values.to(data.targets.device)]


@checked()
def out_of_distribution(data: Dataset, key: Key) -> dict[str, Tensor]:
    """Return inputs of no class in the shape of the images: ``inverted``, ``flipped`` upside down,
    ``shuffled`` pixels and uniform ``noise``.

    Parameters
    ----------
    data
        Images ``(N, H, W)`` or ``(N, C, H, W)`` of values from 0 to 1.
    key
        Key of the draws.

    Raises
    ------
    DataError
        If the rows are no images of values from 0 to 1.
    """
    images, shape = _images("out_of_distribution", data), data.inputs.shape
    order = torch.randperm(images[0, 0].numel(), generator=key.child("order").generator())
    uniform = torch.rand(images.shape, generator=key.child("noise").generator())
    shuffled = images.flatten(2)[..., order].reshape(shape)
    return {
        "inverted": (1 - images).reshape(shape),
        "flipped": images.flip(-2).reshape(shape),
        "shuffled": shuffled,
        "noise": uniform.reshape(shape),
    }


def _images(where: str, data: Dataset) -> Tensor:
    """Return the images ``(N, C, H, W)``."""
    inputs = data.inputs
    if (
        inputs.ndim not in (3, 4)
        or not inputs.is_floating_point()
        or (len(data) and not 0 <= float(inputs.min()) <= float(inputs.max()) <= 1)
    ):
        actual = f"{inputs.dtype} of shape {tuple(inputs.shape)}" + (
            f", {float(inputs.min()):g} to {float(inputs.max()):g}" if len(data) else ""
        )
        raise DataError(
            where,
            "images (N, H, W) or (N, C, H, W) from 0 to 1",
            actual,
            "inputs.reshape(-1, H, W), and scaling to 0..1",
        )
    return inputs[:, None] if inputs.ndim == 3 else inputs


def _noise(images: Tensor, sd: float, noise: Generator) -> Tensor:
    return (images + sd * torch.randn(images.shape, generator=noise).to(images)).clamp(0, 1)


def _blur(images: Tensor, sd: float, noise: Generator) -> Tensor:
    half = math.ceil(3 * sd)
    kernel = torch.exp(
        -torch.arange(-half, half + 1, dtype=images.dtype, device=images.device).square()
        / (2 * sd**2)
    )
    kernel, channels = kernel / kernel.sum(), images.shape[1]
    for once, padding in ((kernel[:, None], (half, 0)), (kernel[None], (0, half))):
        weight = once.expand(channels, 1, -1, -1)
        images = functional.conv2d(images, weight, padding=padding, groups=channels)
    return images.clamp(0, 1)


def _rotated(images: Tensor, degrees: float, noise: Generator) -> Tensor:
    sign = 2.0 * torch.randint(2, (len(images),), generator=noise) - 1
    angle = (sign * math.radians(degrees)).to(images)
    # The grid is in shares of the sides, which differ where images are not square.
    ratio = images.shape[-2] / images.shape[-1]
    rows = (
        torch.stack([angle.cos(), -angle.sin() * ratio, 0 * angle], 1),
        torch.stack([angle.sin() / ratio, angle.cos(), 0 * angle], 1),
    )
    grid = functional.affine_grid(torch.stack(rows, 1), list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, align_corners=False).clamp(0, 1)


def _contrast(images: Tensor, factor: float, noise: Generator) -> Tensor:
    mean = images.mean((1, 2, 3), keepdim=True)
    return mean + factor * (images - mean)


def _occluded(images: Tensor, share: float, noise: Generator) -> Tensor:
    height, width = images.shape[-2:]
    tall, wide = max(1, round(share * height)), max(1, round(share * width))
    top, left = (
        torch.randint(length - side + 1, (len(images), 1), generator=noise)
        for length, side in ((height, tall), (width, wide))
    )
    down, across = torch.arange(height), torch.arange(width)
    inside = ((down >= top) & (down < top + tall))[:, :, None] & (
        (across >= left) & (across < left + wide)
    )[:, None]
    return images.masked_fill(inside[:, None].to(images.device), 0.0)

"""Shared by all leaf codecs: a leaf as a flat checked array and back, random rounding, float32
numbers and positions in a section.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesfed.compress.leaf import Integers, Mask, MaskCode, Reader, Writer
from bayesfed.errors import WireError
from bayesfed.trees import is_finite

Singles = NDArray[np.float32]
Reals = NDArray[np.float64]
LARGEST = float(np.finfo(np.float32).max)
SMALLEST = 2.0**-149
_PART = 1 << 15  # entries at a time, so that temporary arrays fit in the cache


def entries(leaf: Tensor, where: str) -> Singles:
    """Return the entries in row order as float32. The array may share the leaf's memory and must
    not be written to.

    Raises
    ------
    WireError
        If the leaf is not floating-point, or holds NaN, infinity or a number outside the range of
        float32.
    """
    if not leaf.is_floating_point():
        raise WireError(
            where,
            "a floating-point leaf",
            leaf.dtype,
            "Coded, which codes integers and masks losslessly",
        )
    flat = leaf.detach().cpu().reshape(-1).float()
    if not is_finite(flat):
        count = int((~torch.isfinite(flat)).sum())
        raise WireError(
            where, "finite float32 values", f"{count} NaN or Inf", "a smaller learning rate"
        )
    return np.asarray(flat.numpy(), np.float32)


def tensor(values: NDArray[Any], shape: tuple[int, ...]) -> Tensor:
    """Return a contiguous float32 tensor that owns its memory; values outside the range of float32
    are clipped.
    """
    return torch.from_numpy(np.clip(values, -LARGEST, LARGEST).astype(np.float32)).reshape(shape)


def parts(count: int) -> Iterator[slice]:
    """Yield slices of `count` entries, so small that arrays made from one fit in the cache."""
    return (slice(start, min(start + _PART, count)) for start in range(0, count, _PART))


def rounding(peak: float) -> float:
    """Return the largest error of rounding a number of magnitude `peak` to float32, half a unit in
    the last place.
    """
    return 2.0**-24 * peak + SMALLEST / 2


def peak(values: NDArray[Any]) -> float:
    """Return the largest magnitude; 0 of an empty array."""
    return max(float(values.max(initial=0.0)), -float(values.min(initial=0.0)))


def energy(values: NDArray[Any]) -> float:
    """Return the sum of squares in float64, without BLAS, whose sums depend on the number of
    threads.
    """
    return math.fsum(
        float(np.square(values[part], dtype=np.float64).sum()) for part in parts(len(values))
    )


def round_either_way(ratios: Reals, random: np.random.Generator) -> Integers:
    """Round each number up with the probability of its fraction and down otherwise, so that the
    mean over keys is the number itself.
    """
    down = np.floor(ratios)
    return np.asarray(down + (random.random(ratios.shape) < ratios - down), np.int64)


def grid_places(magnitudes: NDArray[Any], span: float | Reals, levels: int) -> Reals:
    """Return the positions of magnitudes on a grid from 0 to `span` in `levels` steps,
    ``levels * magnitudes / span``; 0 if the span is 0.
    """
    # By rounding, the largest magnitude may exceed the last point of the grid.
    wide = magnitudes.astype(np.float64)
    return np.minimum(wide * levels / span, float(levels)) if np.any(span) else np.zeros_like(wide)


def spread(places: Reals) -> Reals:
    """Return the variance of `round_either_way` in units of the grid step, ``f (1 - f)`` for the
    fraction f.
    """
    fractions = np.modf(places)[0]
    return np.asarray(fractions * (1 - fractions), np.float64)


def write_singles(values: NDArray[Any], out: Writer) -> None:
    """Append numbers as little-endian float32."""
    out.raw(np.asarray(values, "<f4").tobytes())


def read_singles(source: Reader, count: int, low: float = -LARGEST) -> Singles:
    """Read `count` finite float32 numbers of at least `low`; refuse others."""
    values = np.frombuffer(source.raw(4 * count), "<f4").astype(np.float32)
    if not ((values >= low) & (values <= LARGEST)).all():
        raise WireError(
            "section", f"numbers of at least {low:g}", "others or NaN", "sending it again"
        )
    return values


def check_range(values: Integers, low: int, high: int) -> Integers:
    """Refuse integers outside [low, high]."""
    if len(values) and not low <= values.min() <= values.max() <= high:
        raise WireError(
            "section",
            f"integers from {low} to {high}",
            f"{values.min()} to {values.max()}",
            "sending it again",
        )
    return values


def as_matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the shape in which the mask of a leaf is coded: first axis by all others; one row for
    vectors and scalars.
    """
    return (shape[0], math.prod(shape[1:])) if len(shape) > 1 else (1, math.prod(shape))


def write_positions(mask: Mask, shape: tuple[int, int], code: MaskCode, out: Writer) -> None:
    """Append the number of entries set in a flat mask and, unless it is none or all, the mask."""
    count = int(mask.sum())
    out.varint(count)
    if 0 < count < len(mask):
        code.write(mask.reshape(shape), out)


def read_positions(source: Reader, shape: tuple[int, int], code: MaskCode) -> Mask:
    """Read a flat mask; refuse one that does not set as many entries as stated."""
    total = math.prod(shape)
    count = source.varint(total)
    if count in {0, total}:
        return np.full(total, count > 0)
    mask = code.read(source, shape).reshape(-1)
    if (actual := int(mask.sum())) != count:
        raise WireError("mask", f"{count} entries set", actual, "sending it again")
    return mask


def largest(magnitudes: NDArray[Any], count: int) -> Mask:
    """Return the mask of the `count` largest numbers; of equal numbers the earlier ones."""
    if count >= len(magnitudes):
        return np.ones(len(magnitudes), np.bool_)
    threshold = np.partition(magnitudes, len(magnitudes) - count)[len(magnitudes) - count]
    mask = np.asarray(magnitudes > threshold, np.bool_)
    mask[np.flatnonzero(magnitudes == threshold)[: count - int(mask.sum())]] = True
    return mask


def share_of(share: float, total: int) -> int:
    """Return ``ceil(share * total)``, without the rounding error of the product: 0.1 of 30 is 3."""
    return min(total, math.ceil(share * total * (1 - 2.0**-50)))

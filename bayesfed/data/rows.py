"""Rows of a user's data as one data set: arrays, lists, tensors or images of one shape, with their
labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesfed.data.dataset import Dataset
from bayesfed.data.readers.labels import class_numbers, named_numbers, regression_targets
from bayesfed.errors import DataError, LocalText

# Pillow's modes with one byte per colour. 16-bit and floating-point images would be clipped to
# bytes, not scaled.
_GREY, _COLOUR = ("1", "L", "LA"), ("P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "LAB")


def as_inputs(rows: Iterable[object], scale: float | None, at: Callable[[int], str]) -> Tensor:
    """Return rows as inputs ``(N, ...)``, float32.

    Parameters
    ----------
    rows
        Arrays, lists, tensors or Pillow images, which become ``(rows, columns)`` if grey and
        ``(3, rows, columns)`` otherwise.
    scale
        Factor on the inputs. None: 1 / 255 for bytes (uint8), such as the pixels of images, and 1
        for all other types.
    at
        ``(number) -> where that row is``, for error messages.

    Raises
    ------
    DataError
        If there are no rows, a row holds anything but finite numbers, or rows differ in shape; the
        message names the row.
    """
    arrays: list[np.ndarray] = []
    for number, row in enumerate(rows):
        array = numbers_of(row, at(number))
        if arrays and array.shape != arrays[0].shape:
            raise DataError(
                at(number),
                LocalText(f"the shape of {at(0)}, {arrays[0].shape}"),
                array.shape,
                "resizing, cutting or padding to one shape",
            )
        arrays.append(scaled(array, scale))
    if not arrays:
        raise DataError("rows", "at least one", "none", "another source")
    return torch.from_numpy(np.stack(arrays))


def scaled(values: np.ndarray, scale: float | None) -> np.ndarray:
    """Return numbers as float32 times a factor; None is that of `as_inputs`."""
    factor = (1 / 255 if values.dtype == np.uint8 else 1.0) if scale is None else scale
    return values.astype(np.float32) * np.float32(factor)


def labelled(
    inputs: Tensor,
    labels: Sequence[object],
    classes: Sequence[str] | None,
    at: Callable[[int], str],
    *,
    regression: bool = False,
    names: Sequence[str] | None = None,
    domains: tuple[str, ...] = (),
) -> Dataset:
    """Return inputs with their targets: numbers for a regression, positions in `names` if these are
    given, or labels of any kind.

    Raises
    ------
    DataError
        As `regression_targets`, `named_numbers` and `class_numbers`.
    """
    if regression:
        return Dataset(inputs, regression_targets(labels, at), (), domains)
    found = (
        class_numbers(labels, classes, at)
        if names is None
        else named_numbers(labels, names, classes, at)
    )
    return Dataset(inputs, *found, domains)


def numbers_of(row: object, where: str) -> np.ndarray:
    """Return one row as an array.

    Raises
    ------
    DataError
        If the row is text, missing, ragged, not finite, or an image with more than a byte per
        colour.
    """
    if hasattr(row, "getbands") and hasattr(
        row, "convert"
    ):  # an image of Pillow, which need not be imported here
        return _pixels(row, where)
    try:
        array = np.asarray(row)
    except ValueError as problem:
        raise DataError(
            where, "numbers in one shape", problem, "cutting or padding rows"
        ) from problem
    if array.dtype.kind not in "biuf":
        raise DataError(
            where,
            "numbers",
            f"{row!r:.40}",
            "leaving it out; for texts, bf.data.tokenised(Texts(...), ...)",
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise DataError(where, "finite numbers", "NaN or Inf", "dropping or imputing such rows")
    return array


def check_mode(picture: Any, where: str) -> None:
    """Raise `DataError` if a Pillow image has more than a byte per colour."""
    if picture.mode not in (*_GREY, *_COLOUR):
        raise DataError(
            where,
            "a picture with a byte a colour",
            f"Pillow's mode {picture.mode}",
            "converting it to 8 bits",
        )


def _pixels(picture: Any, where: str) -> np.ndarray:
    check_mode(picture, where)
    if picture.mode in _GREY:
        return np.asarray(picture.convert("L"))
    return np.moveaxis(np.asarray(picture.convert("RGB")), -1, 0)

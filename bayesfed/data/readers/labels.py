"""Labels of a user's data as class numbers: labels become 0, 1, ... in a defined order, and their
names are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from bayesfed.errors import DataError
from bayesfed.errors.nearness import nearest


def class_numbers(
    labels: Sequence[object], classes: Sequence[str] | None, at: Callable[[int], str]
) -> tuple[Tensor, tuple[str, ...]]:
    """Return labels as class numbers ``(N,)`` from 0, and the names of the classes.

    Parameters
    ----------
    labels
        N values, texts or integers.
    classes
        Names of the classes in the order of their numbers. None: all labels that occur, integers by
        value and texts alphabetically.
    at
        ``(number) -> where that row is``, for error messages.

    Raises
    ------
    DataError
        If a label is missing, is not an integer or a text, or is not in `classes`; the message
        names the row.
    """
    texts = [_text(label, at(row)) for row, label in enumerate(labels)]
    names = tuple(_ordered(set(texts))) if classes is None else tuple(classes)
    numbers = {name: number for number, name in enumerate(names)}
    if strange := [row for row, text in enumerate(texts) if text not in numbers]:
        unknown = texts[strange[0]]
        raise DataError(
            at(strange[0]),
            f"a label among {', '.join(names[:10])}{', ...' if len(names) > 10 else ''}",
            repr(unknown),
            meant(unknown, names),
        )
    return torch.tensor([numbers[text] for text in texts]), names


def named_numbers(
    labels: Sequence[object],
    names: Sequence[str],
    classes: Sequence[str] | None,
    at: Callable[[int], str],
) -> tuple[Tensor, tuple[str, ...]]:
    """Return labels that are positions in `names` as positions in `classes`, if these are given,
    and the names that are used.

    Raises
    ------
    DataError
        If a label is not a position in `names`, or its name is not in `classes`.
    """
    for row, label in enumerate(labels):
        if not isinstance(label, int) or not 0 <= label < len(names):
            raise DataError(
                at(row),
                f"a label from 0 to {len(names) - 1}, as there are names",
                repr(label),
                "a part of the data that has labels",
            )
    if classes is None or tuple(classes) == tuple(names):
        return torch.tensor(labels), tuple(names)
    return class_numbers([names[label] for label in labels if isinstance(label, int)], classes, at)


def regression_targets(values: Sequence[object], at: Callable[[int], str]) -> Tensor:
    """Return targets ``(N,)`` as float32.

    Raises
    ------
    DataError
        If a value is not a finite number; the message names the row.
    """
    return torch.tensor(
        [_number(value, at(row)) for row, value in enumerate(values)], dtype=torch.float32
    )


def meant(name: str, names: Sequence[str]) -> str:
    """Return the nearest name, quoted, or a list of the names if none is like it."""
    near = nearest(name, names)
    return repr(near) if near else f"one of {', '.join(map(repr, list(names)[:20]))}"


def _text(label: object, where: str) -> str:
    """Return the name of a label; a number without a fraction is an integer, however it is
    written.
    """
    text = str(label).strip() if isinstance(label, str | int | float | np.generic) else ""
    if not text:
        raise DataError(
            where,
            "a label, an integer or a text",
            "none" if label is None or isinstance(label, str) else repr(label),
            "rows with one label each",
        )
    try:
        number = float(text)
    except ValueError:
        return text
    if not number.is_integer():
        raise DataError(
            where, "a label, an integer or a text", repr(label), "regression=True for numbers"
        )
    return text if _is_integer(text) else str(int(number))


def _is_integer(text: str) -> bool:
    try:
        int(text)
    except ValueError:
        return False
    return True


def _ordered(names: set[str]) -> list[str]:
    return sorted(names, key=int) if all(map(_is_integer, names)) else sorted(names)


def _number(value: object, where: str) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = float("nan")
    if not np.isfinite(number):
        raise DataError(where, "a finite number", repr(value), "leaving out rows without one")
    return number

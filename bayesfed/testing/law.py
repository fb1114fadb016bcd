"""Shared by all laws: the error, and comparisons that say what differs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from bayesfed.errors import BayesfedError


class LawError(BayesfedError, AssertionError):
    """An implementation breaks a law of its interface."""


def law(holds: bool, text: str) -> None:
    """Raise `LawError` with the text unless the law holds."""
    if not holds:
        raise LawError(text)


def same(
    left: Mapping[str, Tensor],
    right: Mapping[str, Tensor],
    what: str,
    *,
    tolerance: float = 0.0,
    bound: Callable[[str, Any], float | Tensor] | None = None,
) -> None:
    """Raise `LawError` unless two trees have the same names, shapes and values.

    Parameters
    ----------
    left, right
        The trees.
    what
        What is compared, for the message.
    tolerance
        Relative tolerance of values; 0 means bit for bit.
    bound
        Instead of `tolerance`: ``(name, left) -> largest absolute error`` of a floating-point leaf;
        other leaves must be equal.

    Raises
    ------
    LawError
        If the trees differ.
    """
    law(left.keys() == right.keys(), f"{what}: leaves {sorted(left)} against {sorted(right)}")
    for name, leaf in left.items():
        other = right[name]
        law(
            leaf.shape == other.shape,
            f"{what}: leaf {name!r} has shape {tuple(leaf.shape)} against {tuple(other.shape)}",
        )
        error = (leaf.double() - other.double()).abs()
        if bound and leaf.is_floating_point():
            close = bool((error <= bound(name, left)).all())
        elif tolerance:
            close = torch.allclose(leaf.double(), other.double(), rtol=tolerance, atol=1e-7)
        else:
            close = torch.equal(leaf, other)
        largest = float(error.max()) if leaf.numel() else 0.0
        law(close, f"{what}: leaf {name!r} differs by up to {largest:g}")


def refuses(call: Callable[[], object], error: type[Exception], what: str) -> None:
    """Raise `LawError` unless the call raises this class of error."""
    try:
        call()
    except error:
        return
    except Exception as other:
        raise LawError(
            f"{what}: raised {type(other).__name__} in place of {error.__name__}: {other}"
        ) from other
    raise LawError(f"{what}: was accepted")

"""`FlexibleMap`: which rho and L of `Flexible` a relative size beta buys; and `Budgeted`, whose
messages keep to a planned size by it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from bayesfed.compress.flexible import Flexible
from bayesfed.compress.quantisers.probabilistic import MANY
from bayesfed.compress.wire import Meta, unseal
from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import (
    NOT_NEGATIVE,
    POSITIVE,
    SHARE,
    check,
    checked,
    checked_class,
    whole,
)
from bayesfed.keys import Key
from bayesfed.trees import Tree, size

_ROLES = {"beta": POSITIVE, "share": SHARE, "levels": MANY, "error": NOT_NEGATIVE}


class Setting(NamedTuple):
    """One point of the map.

    Parameters
    ----------
    beta
        Size of the message relative to 32 bits an entry.
    share
        rho of `Flexible`.
    levels
        L of `Flexible`.
    error
        Expected relative squared error, ``E ||Q(u) - u||^2 / ||u||^2``.
    """

    beta: float
    share: float
    levels: int
    error: float


@dataclass(frozen=True)
class FlexibleMap:
    """The map from beta to (rho, L), piecewise linear and non-decreasing. Its points are tuples of
    numbers, which JSON can store.

    Parameters
    ----------
    settings
        Points in order of rising beta. Errors fall, rho and L do not.

    Raises
    ------
    ArgumentError
        If there are no points, a point is outside the ranges of `Flexible`, or the points are out
        of order.
    """

    settings: tuple[Setting, ...]

    def __post_init__(self) -> None:
        if not self.settings:
            raise ArgumentError("FlexibleMap", "one setting or more", "none", "fit_flexible")
        for setting in self.settings:
            for name, role in _ROLES.items():
                check(f"FlexibleMap, {name}", getattr(setting, name), role)
        for low, high in zip(self.settings, self.settings[1:], strict=False):
            if not (
                low.beta < high.beta
                and low.share <= high.share
                and low.levels <= high.levels
                and low.error > high.error
            ):
                raise ArgumentError(
                    "FlexibleMap",
                    "rising beta, falling error, rho and L that do not fall",
                    f"{low}, then {high}",
                    "fit_flexible",
                )

    @property
    def least(self) -> float:
        """The smallest beta of the map; below it the map is constant."""
        return self.settings[0].beta

    @property
    def most(self) -> float:
        """The largest beta of the map; above it the map is constant, and messages stay below their
        budget.
        """
        return self.settings[-1].beta

    @checked(beta=POSITIVE)
    def __call__(self, beta: float) -> tuple[float, int]:
        """Return (rho, L) for messages of ``32 beta`` bits an entry; L rounded down.

        Raises
        ------
        ArgumentError
            If `beta` is not a positive number.
        """
        betas, shares, levels, _ = zip(*self.settings, strict=True)
        # An interpolated share may exceed the largest one by a rounding error.
        return min(float(np.interp(beta, betas, shares)), shares[-1]), math.floor(
            float(np.interp(beta, betas, levels))
        )

    @checked(beta=POSITIVE)
    def error(self, beta: float) -> float:
        """Return the expected relative squared error at `beta`, linear between the points.

        Raises
        ------
        ArgumentError
            If `beta` is not a positive number.
        """
        betas, _, _, errors = zip(*self.settings, strict=True)
        return float(np.interp(beta, betas, errors))


def full_bits(tree: Mapping[str, Tensor]) -> int:
    """Return S, the size of a tree at 32 bits an entry, whatever its dtypes."""
    return 32 * size(tree)


_MARGIN = 0.98  # share of the budget to aim at after a message that was too large
_CLOSE = 0.95  # share of the budget that is close enough to stop


@checked_class(beta=POSITIVE, tries=whole(2, "8", 30))
@dataclass(frozen=True)
class Budgeted:
    """`Flexible` at a planned size: at most ``32 beta`` bits for each entry of the tree, header
    included, if that is possible.

    The tree is first encoded with the map's (rho, L) for beta. If the message is too large, the
    tree is encoded again: first with beta lowered in proportion, then at the beta given by the line
    through the last two sizes, or by bisection if that beta is outside the bracket. This ends when
    a message keeps to the budget, or after `tries` encodings with the smallest setting of the map.
    A message of the smallest setting is sent even if it is too large, for example if the header
    alone exceeds the budget; `overrun_bits` reports it. The receiver need not know the setting. The
    message depends on the tree and the key only.

    beta is relative to the size of the tree itself, so one map serves sub-models of any width: a
    share alpha of the model costs ``alpha beta S``.

    Parameters
    ----------
    settings
        The fitted map.
    beta
        Planned size relative to 32 bits an entry, above 0. Outside the range of the map its first
        or last setting is used.
    codec
        Codec that the map was fitted with, for its kernels and codes; its share and levels
        are not used.
    tries
        Most encodings of a message, 2 to 30.

    Raises
    ------
    ArgumentError
        If a parameter is outside its range.
    WireError
        On encoding or decoding, as `Flexible`.
    """

    settings: FlexibleMap
    beta: float
    codec: Flexible = Flexible()
    tries: int = 8

    def encode(self, tree: Tree, meta: Meta, key: Key) -> bytes:
        """Write the message, more than once if it is too large."""
        budget, least, best = self.beta * full_bits(tree), self.settings.least, b""
        aim = high = min(max(self.beta, least), self.settings.most)
        # The first line is through the origin. Headers and masks make it too steep; the next points
        # correct that.
        low, before = least, (0.0, 0)
        for attempt in range(self.tries):
            if attempt == self.tries - 1 and not best:
                aim = least
            share, levels = self.settings(aim)
            message = replace(self.codec, share=share, levels=levels).encode(tree, meta, key)
            bits = 8 * len(message)
            if bits <= budget:
                # Early messages that fit are close to the budget in proportion; later ones may be
                # far below it.
                if attempt < 2 or bits >= _CLOSE * budget:
                    return message
                best, low = message, aim
            elif aim == least:
                return message
            else:
                high = aim
            before, aim = (aim, bits), _on_line(before, (aim, bits), _MARGIN * budget)
            if attempt == 0:
                aim = max(least, aim)
            elif not low < aim < high:
                aim = math.sqrt(low * high)
        return best

    def decode(self, message: bytes, key: Key) -> tuple[Tree, dict[str, Any]]:
        """Read a message of any rho and L."""
        return self.codec.decode(message, key)

    def overrun_bits(self, message: bytes) -> int:
        """Return by how many bits a message exceeds the budget of the tree in its header; 0 if it
        keeps to it.

        Raises
        ------
        WireError
            If the message is damaged.
        """
        leaves, _ = unseal(message, limit=self.codec.limit)
        return max(
            0,
            math.ceil(
                8 * len(message) - self.beta * 32 * sum(math.prod(leaf.shape) for leaf in leaves)
            ),
        )


def _on_line(first: tuple[float, float], second: tuple[float, float], bits: float) -> float:
    """Return the aim at which the line through two points (aim, bits) has that many bits; 0 if the
    line is level.
    """
    rise = (second[1] - first[1]) / (second[0] - first[0])
    return second[0] + (bits - second[1]) / rise if rise else 0.0

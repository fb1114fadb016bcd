"""`FlexibleMap`: which rho and L of `Flexible` a relative size beta buys."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch import Tensor

from bayesfed.compress.quantisers.entries import check_levels, check_share
from bayesfed.compress.quantisers.probabilistic import MOST_LEVELS
from bayesfed.errors import ArgumentError
from bayesfed.trees import size


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
    """The map from beta to (rho, L), piecewise linear and non-decreasing. It prints as a table;
    its points are tuples of numbers, which JSON can store.

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
            check_share("FlexibleMap", setting.share)
            check_levels("FlexibleMap", "levels", setting.levels, MOST_LEVELS)
            if not (0 < setting.beta < math.inf and 0 <= setting.error < math.inf):
                raise ArgumentError(
                    "FlexibleMap", "beta > 0 and error >= 0", setting, "fit_flexible"
                )
        for low, high in zip(self.settings, self.settings[1:], strict=False):
            if not (
                low.beta < high.beta
                and low.share <= high.share
                and low.levels <= high.levels
                and low.error > high.error
            ):
                expected = "rising beta, falling error, rho and L that do not fall"
                raise ArgumentError("FlexibleMap", expected, f"{low}, then {high}", "fit_flexible")

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

    def __call__(self, beta: float) -> tuple[float, int]:
        """Return (rho, L) for messages of ``32 beta`` bits an entry; L rounded down.

        Raises
        ------
        ArgumentError
            If `beta` is not a positive number.
        """
        check_beta("FlexibleMap", beta)
        betas, shares, levels, _ = zip(*self.settings, strict=True)
        # An interpolated share may exceed the largest one by a rounding error.
        return min(float(np.interp(beta, betas, shares)), shares[-1]), math.floor(
            float(np.interp(beta, betas, levels))
        )

    def error(self, beta: float) -> float:
        """Return the expected relative squared error at `beta`, linear between the points.

        Raises
        ------
        ArgumentError
            If `beta` is not a positive number.
        """
        check_beta("FlexibleMap", beta)
        betas, _, _, errors = zip(*self.settings, strict=True)
        return float(np.interp(beta, betas, errors))

    def __str__(self) -> str:
        rows = (
            f"{f'1/{1 / row.beta:.4g}':>10}  {row.share:>8.4g}  {row.levels:>8}  {row.error:>8.4g}"
            for row in self.settings
        )
        return "\n".join([f"{'beta':>10}  {'rho':>8}  {'L':>8}  {'error':>8}", *rows])


def full_bits(tree: Mapping[str, Tensor]) -> int:
    """Return S, the size of a tree at 32 bits an entry, whatever its dtypes."""
    return 32 * size(tree)


def check_beta(where: str, beta: float) -> None:
    """Raise `ArgumentError` unless `beta` is a positive number."""
    if not 0 < beta < math.inf:
        raise ArgumentError(where, "beta > 0", beta, "1 / 50")

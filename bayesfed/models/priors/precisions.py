"""Precision priors p(rho | s): how far an active and an inactive weight may be from zero.

Source: D-Turbo-VBI (2): Gamma(a, b) if the support is 1, Gamma(a-bar, b-bar) if it is 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import SCALE, checked_class


@dataclass(frozen=True)
class Gammas:
    """Shapes and rates of the two Gammas, indexed by the support: entry 0 is the spike, 1
    the slab.
    """

    shapes: tuple[float, float]
    rates: tuple[float, float]

    def of(self, support: Tensor) -> tuple[Tensor, Tensor]:
        """Return (shape, rate) for each entry of a 0/1 support."""
        shape, rate = (
            torch.tensor(pair, dtype=torch.get_default_dtype(), device=support.device)
            for pair in (self.shapes, self.rates)
        )
        return of_support(support, shape), of_support(support, rate)


def of_support(support: Tensor, pair: Tensor) -> Tensor:
    """Return the first part of a pair where the support is 0, and the second where it is 1."""
    return torch.where(support.bool(), pair[1], pair[0])


@checked_class({}, slab_sd=SCALE, spike_sd=SCALE, slab_shape=SCALE, spike_shape=SCALE)
@dataclass(frozen=True)
class BernoulliGamma:
    """Slab and spike as two Gamma priors of the precision, declared by the standard deviations of
    the weights.

    Parameters
    ----------
    slab_sd, spike_sd
        Prior sd of an active and of an inactive weight, ``sqrt(b / a)`` and
        ``sqrt(b-bar / a-bar)``, relative to the layer's initial scale unless `relative` is false:
        the root mean square of its values when it is declared, or ``sqrt(2 / fan_in)`` where they
        are all zero.
    slab_shape, spike_shape
        Gamma shapes a and a-bar: larger ones hold the precision closer to its mean.
    relative
        If false, the sds are in units of the weights.

    Raises
    ------
    ArgumentError
        If a value is not positive, or the spike is as wide as the slab.
    """

    slab_sd: float = 2.8
    spike_sd: float = 0.28
    slab_shape: float = 1.0
    spike_shape: float = 1.0
    relative: bool = True

    def __post_init__(self) -> None:
        if self.spike_sd >= self.slab_sd:
            raise ArgumentError(
                "BernoulliGamma",
                "spike_sd < slab_sd",
                f"{self.spike_sd} >= {self.slab_sd}",
                f"spike_sd={self.slab_sd / 10:g}",
            )

    def lower(self, scale: float) -> Gammas:
        """Return the two Gammas for a layer of this initial scale."""
        scale = scale if self.relative else 1.0
        rates = (
            self.spike_shape * (self.spike_sd * scale) ** 2,
            self.slab_shape * (self.slab_sd * scale) ** 2,
        )
        return Gammas((self.spike_shape, self.slab_shape), rates)

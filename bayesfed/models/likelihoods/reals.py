"""Likelihoods of real numbers: the network gives their centre, and their scale where it has none of
its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor

from bayesfed.errors.checks import SCALE, checked_class
from bayesfed.models.likelihoods.rows import RowLikelihood


@checked_class({}, sd=SCALE, temperature=SCALE)
@dataclass(frozen=True)
class Normal(RowLikelihood):
    """The likelihood of real targets: the outputs are their means, with independent normal noise.

    Parameters
    ----------
    sd
        Standard deviation of the noise, in units of the targets. None: outputs ``(B, 2 K)`` are K
        means and K logarithms of sds, which differ by row (heteroscedastic).
    temperature
        As in `Categorical`.

    Raises
    ------
    ArgumentError
        If the sd or the temperature is not positive.
    DataError
        From `check`, if targets are not real numbers in the shape of the means.
    """

    sd: float | None = 1.0
    temperature: float | None = None

    @property
    def further(self) -> Mapping[str, float | None]:
        """The sd."""
        return {"sigma": self.sd}

    @staticmethod
    def made(eta: Tensor, more: Mapping[str, Any], known: Any) -> Any:
        """Return the Gaussians."""
        return dist.Normal(eta, more["sigma"])

    def information(self, output: Tensor) -> Tensor | None:
        """Return the information: of means, and of logarithms of sds."""
        if self.sd is not None:
            return torch.full_like(output, 1 / self.sd**2)
        log = output.chunk(2, 1)[1]
        return torch.cat([(-2 * log).exp(), torch.full_like(log, 2.0)], 1)


@checked_class({}, sd=SCALE, degrees=SCALE, temperature=SCALE)
@dataclass(frozen=True)
class StudentT(RowLikelihood):
    """Real targets with Student's t of scale `sd` around the outputs: outliers count less.

    Parameters
    ----------
    sd
        Scale of the noise, in units of the targets. None: outputs ``(B, 2 K)``, as of `Normal`.
    degrees
        Degrees of freedom. None: K further outputs, their logarithms.
    temperature
        As in `Categorical`.

    Raises
    ------
    ArgumentError
        If the sd, the degrees or the temperature is not positive.
    DataError
        From `check`, if targets are not real numbers in the shape of the centres.
    """

    sd: float | None = 1.0
    degrees: float | None = 4.0
    temperature: float | None = None

    @property
    def further(self) -> Mapping[str, float | None]:
        """The scale and the degrees of freedom."""
        return {"sigma": self.sd, "nu": self.degrees}

    @staticmethod
    def made(eta: Tensor, more: Mapping[str, Any], known: Any) -> Any:
        """Return the t distributions."""
        return dist.StudentT(more["nu"], eta, more["sigma"])

    def information(self, output: Tensor) -> Tensor | None:
        """Return the information of centres, if the network gives nothing else."""
        if self.sd is None or self.degrees is None:
            return None
        share = (self.degrees + 1) / (self.degrees + 3)
        return torch.full_like(output, share / self.sd**2)

"""Likelihoods of yes and no, and of counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from bayesfed.errors.checks import SCALE, checked_class
from bayesfed.models.likelihoods.rows import RowLikelihood


@checked_class({}, temperature=SCALE)
@dataclass(frozen=True)
class Bernoulli(RowLikelihood):
    """Labels that a row has or has not (multi-label), ``(B, K)`` of 0 and 1, from logits.

    Parameters
    ----------
    temperature
        As in `Categorical`.

    Raises
    ------
    ArgumentError
        If the temperature is not positive.
    DataError
        From `check`, if targets are not 0 and 1 in the shape of the outputs.
    """

    temperature: float | None = field(default=None, kw_only=True)
    words: ClassVar[str] = "0 and 1"

    @staticmethod
    def made(eta: Tensor, more: Mapping[str, Any], known: Any) -> Any:
        """Return the distribution of 0 and 1."""
        return dist.Bernoulli(logits=eta)

    def information(self, output: Tensor) -> Tensor | None:
        """Return ``p (1 - p)``."""
        return output.sigmoid() * (-output).sigmoid()


@checked_class({}, temperature=SCALE)
@dataclass(frozen=True)
class Binomial(RowLikelihood):
    """Successes of trials, which are the last column of targets ``(B, K + 1)``, from logits.

    Parameters
    ----------
    temperature
        As in `Categorical`.

    Raises
    ------
    ArgumentError
        If the temperature is not positive.
    DataError
        From `check`, if targets are not whole numbers up to the trials.
    """

    temperature: float | None = field(default=None, kw_only=True)
    words: ClassVar[str] = "successes, then trials"
    knowable: ClassVar[constraints.Constraint] = constraints.nonnegative_integer

    @property
    def known(self) -> bool:
        """Trials are."""
        return True

    @staticmethod
    def made(eta: Tensor, more: Mapping[str, Any], known: Any) -> Any:
        """Return the distribution of successes."""
        return dist.Binomial(known, logits=eta)


@dataclass(frozen=True)
class _Counts(RowLikelihood):
    words: ClassVar[str] = "counts from 0, and with exposure=True the row's exposure after them"

    exposure: bool = False

    @property
    def known(self) -> bool:
        """The exposure may be."""
        return self.exposure


@checked_class({}, temperature=SCALE)
@dataclass(frozen=True)
class Poisson(_Counts):
    """Counts ``(B, K)`` from logarithms of rates ``(B, K)``.

    Parameters
    ----------
    exposure
        Whether targets are ``(B, K + 1)``, and their last column is what the rates of the row are
        multiplied by: time, area, people.
    temperature
        As in `Categorical`.

    Raises
    ------
    ArgumentError
        If the temperature is not positive.
    DataError
        From `check`, if targets are not whole numbers from 0, or an exposure is not positive.
    """

    temperature: float | None = None

    @staticmethod
    def made(eta: Tensor, more: Mapping[str, Any], known: Any) -> Any:
        """Return the distribution of counts."""
        return dist.Poisson(eta.exp() * known)

    def information(self, output: Tensor) -> Tensor | None:
        """Return the rates, of an exposure of 1."""
        return None if self.exposure else output.exp()


@checked_class({}, concentration=SCALE, temperature=SCALE)
@dataclass(frozen=True)
class NegativeBinomial(_Counts):
    """Counts ``(B, K)`` with variance ``mean + mean² / concentration``, from logarithms of means.

    Parameters
    ----------
    exposure
        As in `Poisson`.
    concentration
        The larger, the closer to `Poisson`. None: outputs ``(B, 2 K)`` are K logarithms of means
        and K of concentrations.
    temperature
        As in `Categorical`.

    Raises
    ------
    ArgumentError
        If the concentration or the temperature is not positive.
    DataError
        From `check`, as of `Poisson`.
    """

    concentration: float | None = None
    temperature: float | None = None

    @property
    def further(self) -> Mapping[str, float | None]:
        """The concentration."""
        return {"concentration": self.concentration}

    @staticmethod
    def made(eta: Tensor, more: Mapping[str, Any], known: Any) -> Any:
        """Return the distribution of counts."""
        count, shift = (torch.as_tensor(one).to(eta) for one in (more["concentration"], known))
        return dist.NegativeBinomial(count, logits=eta + shift.log() - count.log())

    def information(self, output: Tensor) -> Tensor | None:
        """Return the information of logarithms of means, if the network gives nothing else."""
        if self.exposure or self.concentration is None:
            return None
        return 1 / ((-output).exp() + 1 / self.concentration)

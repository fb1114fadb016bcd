"""Roots of the curvature of likelihoods: the linear combinations of outputs whose gradients make a
GGN, and their squares in closed form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from bayesfed.errors import ArgumentError
from bayesfed.models import Categorical, Likelihood, Normal, RowLikelihood
from bayesfed.models.likelihoods.rows import temperature_of


@dataclass(frozen=True)
class Roots:
    """The function ``outputs -> S (B, C, K)`` of a likelihood, at its temperature; made by `roots`.

    Parameters
    ----------
    likelihood
        `Categorical`, or one whose `information` is known.
    """

    likelihood: Likelihood

    def __call__(self, outputs: Tensor) -> Tensor:
        """Return S of each row."""
        cold = temperature_of(self.likelihood) ** -0.5
        if isinstance(self.likelihood, Normal) and self.likelihood.sd is not None:
            root: Tensor = cold / self.likelihood.sd * unit(outputs)
            return root
        if isinstance(self.likelihood, RowLikelihood):
            root = cold * torch.diag_embed(_information(self.likelihood, outputs).sqrt())
            return root
        p = outputs.double().softmax(1)
        root = cold * (torch.diag_embed(p.sqrt()) - p[:, :, None] * p.sqrt()[:, None, :])
        return root

    def squares(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``S S'`` added up over rows, ``(C, C)``, and its diagonal for each row,
        ``(B, C)``, without S: for classes ``diag(p) - p p'``.
        """
        cold = 1 / temperature_of(self.likelihood)
        if isinstance(self.likelihood, RowLikelihood):
            each = cold * _information(self.likelihood, outputs)
            return torch.diag(each.sum(0)), each
        p = outputs.double().softmax(1)
        return cold * (torch.diag(p.sum(0)) - p.mT @ p), cold * (p - p.square())


def roots(likelihood: Likelihood) -> Roots:
    """Return the function ``outputs -> S (B, C, K)`` of a likelihood.

    Raises
    ------
    ArgumentError
        If the curvature of the likelihood is not known from outputs alone.
    """
    known = (
        likelihood.weights is None
        if isinstance(likelihood, Categorical)
        else isinstance(likelihood, RowLikelihood)
        and likelihood.information(torch.zeros(1, 2)) is not None
    )
    if known:
        return Roots(likelihood)
    expected = "a likelihood whose curvature the outputs alone say, block by block"
    hint = "Categorical(), Normal(), Bernoulli() or Poisson(), without weights and exposures"
    raise ArgumentError("laplace, likelihood", expected, repr(likelihood), hint)


def _information(likelihood: RowLikelihood, outputs: Tensor) -> Tensor:
    return cast(Tensor, likelihood.information(outputs.double()))


def sharpest(likelihood: Likelihood) -> float:
    """Return a bound on the curvature of a log likelihood by its outputs, at its temperature."""
    return float(roots(likelihood)(torch.zeros(1, 2)).square().sum())


def unit(outputs: Tensor) -> Tensor:
    """Return the combinations that are the outputs themselves, ``(B, C, C)``."""
    return torch.eye(outputs.shape[1], dtype=torch.float64, device=outputs.device).expand(
        len(outputs), -1, -1
    )

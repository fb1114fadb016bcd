"""The prior precision that maximises the Laplace evidence.

``log p(D | delta) ~ log p(D | theta) - delta |theta|^2 / 2 + P / 2 log delta - 1 / 2 sum_i
log(h_i + delta)`` over the eigenvalues h of the GGN (MacKay, 1992, (2.12)). At its maximum
``delta |theta|^2 = gamma = sum_i h_i / (h_i + delta)``, the number of parameters that the rows
determine.
"""

from __future__ import annotations

import math

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

# Precisions between which is chosen.
LOWEST, HIGHEST = 1e-8, 1e12


def log_evidence(values: Tensor, log_likelihood: float, norm: float, precision: float) -> float:
    """Return the Laplace evidence in nats.

    Parameters
    ----------
    values
        ``(P,)``: eigenvalues of the GGN.
    log_likelihood
        Log likelihood of all rows, divided by the temperature.
    norm
        Squared norm of the parameters.
    precision
        delta, above 0.
    """
    fit = log_likelihood - precision * norm / 2
    return (
        fit + (len(values) * math.log(precision) - float(torch.log(values + precision).sum())) / 2
    )


def determined(values: Tensor, precision: float) -> float:
    """Return gamma, the number of parameters that the rows determine."""
    return float((values / (values + precision)).sum())


def best_precision(values: Tensor, norm: float) -> float:
    """Return the prior precision with the largest evidence, between 1e-8 and 1e12."""

    def loss(exponent: float) -> float:
        return -log_evidence(values, 0.0, norm, math.exp(exponent))

    found = minimize_scalar(
        loss,
        bounds=(math.log(LOWEST), math.log(HIGHEST)),
        method="bounded",
        options={"xatol": 1e-9},
    )
    return math.exp(float(found.x))

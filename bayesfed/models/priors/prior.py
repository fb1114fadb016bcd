"""A prior as a declaration composed of support, precision and weight.

``Prior(support=MarkovGrid(0.6, 0.6), precision=BernoulliGamma())`` is D-Turbo-VBI (1),
``p(w, rho, s) = p(s) p(rho | s) p(w | rho)``. It holds no tensor and belongs to no network until
`declare` applies it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyro.distributions as dist
from torch import Tensor

from bayesfed.errors.checks import checked_class
from bayesfed.models.priors.precisions import BernoulliGamma
from bayesfed.models.random_fields.support_priors import MarkovGrid, Support


@dataclass(frozen=True)
class GaussianWeight:
    """``p(w | rho) = N(0, 1 / rho)``, D-Turbo-VBI (3)."""

    def given(self, precision: Tensor) -> Any:
        """Return the distribution of weights with these precisions, all entries one event."""
        return dist.Normal(0.0, precision.rsqrt()).to_event(precision.ndim)


@checked_class()
@dataclass(frozen=True)
class Prior:
    """A support, a precision and a weight prior: ``s ~ support``, ``rho | s ~ precision``,
    ``w | rho ~ Normal(0, 1 / rho)``.

    Parameters
    ----------
    support
        Prior of which weights are active: `MarkovGrid`, `Neighbourhood`, `Channels` or
        `Independent`.
    precision
        Prior of the precision of an active and of an inactive weight.
    weight
        Prior of a weight given its precision.
    """

    support: Support = MarkovGrid()
    precision: BernoulliGamma = BernoulliGamma()
    weight: GaussianWeight = GaussianWeight()

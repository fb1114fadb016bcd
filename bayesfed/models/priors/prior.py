"""A prior as a declaration composed of support and precision.

``Prior(support=MarkovGrid(0.6, 0.6), precision=BernoulliGamma())`` is D-Turbo-VBI (1),
``p(w, rho, s) = p(s) p(rho | s) p(w | rho)``. It holds no tensor and belongs to no network until
`declare` applies it.
"""

from __future__ import annotations

from dataclasses import dataclass

from bayesfed.errors.checks import checked_class
from bayesfed.models.priors.precisions import BernoulliGamma
from bayesfed.models.random_fields.support_priors import MarkovGrid, Support


@checked_class()
@dataclass(frozen=True)
class Prior:
    """A sparse prior of a weight matrix, for `declare`: which weights are active, and how large
    active and inactive ones are.

    It is ``s ~ support``, ``rho | s ~ precision``, ``w | rho ~ Normal(0, 1 / rho)``: (3) of Xia,
    Tsang and Lau (2024).

    Parameters
    ----------
    support
        Prior of which weights are active: `MarkovGrid`, `Neighbourhood`, `Independent`, or
        `Inputs`, `Outputs` or `Channels`, which go as a whole.
    precision
        Prior of the precision of an active and of an inactive weight.

    Examples
    --------
    >>> prior = Prior(support=MarkovGrid(row=0.6, column=0.6), precision=BernoulliGamma())
    """

    support: Support = MarkovGrid()
    precision: BernoulliGamma = BernoulliGamma()

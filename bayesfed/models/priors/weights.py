"""Priors p(w) on one weight tensor, for any Pyro guide: Gaussian, Laplace, horseshoe, spike and
slab, low-rank product.

Each is a record that samples its own sites under the name it is given and returns a weight. Entries
are independent unless stated otherwise, and all entries of a site are one event. For supports that
are inferred by message passing, use `Prior`.

Notation: w = weight, s = support, U, V = the factors of a weight matrix.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from bayesfed.errors import ArgumentError, PriorError
from bayesfed.errors.checks import COUNT, SCALE, check, checked_class
from bayesfed.geometry.thin import squared_norm
from bayesfed.models.random_fields.support_priors import PROBABILITY


@runtime_checkable
class WeightPrior(Protocol):
    """The interface of a prior on one weight tensor: it draws the tensor as Pyro code."""

    def sample(self, name: str, like: Tensor) -> Tensor:
        """Sample sites at or below `name`; return a weight of the shape, dtype and device of
        `like`, whose values are not read.
        """


def _drawn(name: str, entries: Any) -> Tensor:
    shape = entries.batch_shape
    value: Tensor = pyro.sample(name, entries.to_event(len(shape)))
    # `Predictive` returns a guide's draws with a leading 1, the place of its data plate.
    return value.reshape(shape)


@checked_class({}, sd=SCALE)
@dataclass(frozen=True)
class Gaussian:
    """A normal prior of each entry of a parameter, ``N(centre, sd^2)``, for `bayesian`. The Pyro
    site has the parameter's name.

    With a tensor as its centre it is a proximal or a consensus term: see `around`.

    Parameters
    ----------
    sd
        Standard deviation, in units of the weights.
    centre
        A number, or a tensor of the weight's shape, which is copied.

    Raises
    ------
    ArgumentError
        If `sd` is not positive or the centre is not finite.
    PriorError
        From `sample`, if the centre does not have the weight's shape.
    """

    sd: float
    centre: float | Tensor = 0.0

    def __post_init__(self) -> None:
        if isinstance(self.centre, Tensor):
            # A copy: training the network that the centre came from must not move the prior, nor
            # may the prior fill that network's gradients.
            object.__setattr__(self, "centre", self.centre.detach().clone())
        if not torch.as_tensor(self.centre).isfinite().all():
            raise ArgumentError("Gaussian.centre", "finite numbers", "NaN or Inf", "0.0")

    @classmethod
    def around(cls, centre: float | Tensor, precision: float) -> Gaussian:
        """Return ``N(centre, 1 / precision)``, whose negative log density has the gradient
        ``precision * (w - centre)``.

        That is ``mu / 2 * ||w - w0||^2``, the term FedProx (Li et al., 2020, (2)) adds to each
        device's loss with w0 the broadcast model, and the consensus penalty of FedRLR. Where a loss
        is a mean over N rows, `precision` is N times its mu.
        """
        check("Gaussian.around, precision", precision, SCALE)
        return cls(1 / math.sqrt(precision), centre)

    def sample(self, name: str, like: Tensor) -> Tensor:
        """Sample the weight."""
        if not isinstance(self.centre, Tensor):
            return _drawn(name, dist.Normal(torch.full_like(like, self.centre), self.sd))
        if self.centre.shape != like.shape:
            raise PriorError(
                f"Gaussian.centre, site {name!r}",
                f"shape {tuple(like.shape)}",
                f"shape {tuple(self.centre.shape)}",
                "a function of the name that gives each parameter its own centre",
            )
        return _drawn(name, dist.Normal(self.centre.to(like), self.sd))


@checked_class({}, scale=SCALE)
@dataclass(frozen=True)
class Laplace:
    """A Laplace prior of each entry of a parameter, ``exp(-|w| / scale) / (2 scale)``, as in the
    lasso (Tibshirani, 1996), for `bayesian`. The Pyro site has the parameter's name.

    Parameters
    ----------
    scale
        Positive, in units of the weights.

    Raises
    ------
    ArgumentError
        If the scale is not positive.
    """

    scale: float

    def sample(self, name: str, like: Tensor) -> Tensor:
        """Sample the weight."""
        return _drawn(name, dist.Laplace(torch.zeros_like(like), self.scale))


@checked_class({}, scale=SCALE)
@dataclass(frozen=True)
class Horseshoe:
    """``w = tau * lambda * z``: most entries are shrunk to almost zero, the few large ones hardly
    at all (Carvalho, Polson and Scott, 2010).

    Sites: NAME.tau, a scalar C+(0, scale) for the whole tensor; NAME.lambda, C+(0, 1) for each
    entry; NAME.z, N(0, 1) for each entry. The weight is recorded at NAME as a deterministic site.
    The parametrisation is non-centred: a guide sees z, whose scale does not depend on tau and
    lambda.

    Parameters
    ----------
    scale
        Positive: the median of tau. With a smaller one fewer weights stay large.

    Raises
    ------
    ArgumentError
        If the scale is not positive.
    """

    scale: float

    def sample(self, name: str, like: Tensor) -> Tensor:
        """Sample the scales and the standard normal, and record their product."""
        overall = _drawn(f"{name}.tau", dist.HalfCauchy(like.new_tensor(self.scale)))
        local = _drawn(f"{name}.lambda", dist.HalfCauchy(torch.ones_like(like)))
        standard = _drawn(f"{name}.z", dist.Normal(torch.zeros_like(like), 1.0))
        weight: Tensor = pyro.deterministic(name, overall * local * standard, event_dim=like.ndim)
        return weight


class _Mixture(dist.MixtureSameFamily):  # type: ignore[misc]
    # The support that torch gives to mixtures has no transform, and automatic guides and HMC need
    # one.
    support = constraints.real


@checked_class({}, inclusion=PROBABILITY, spike=SCALE, slab=SCALE)
@dataclass(frozen=True)
class SpikeAndSlab:
    """``(1 - inclusion) N(0, spike^2) + inclusion N(0, slab^2)``: the site NAME (George and
    McCulloch, 1993).

    The support s of each entry is independent and is summed out, so the log density has gradients;
    `included` returns its probability.

    Parameters
    ----------
    inclusion
        p(s = 1), strictly between 0 and 1.
    spike, slab
        Standard deviations of an inactive and of an active weight, in units of the weights.

    Raises
    ------
    ArgumentError
        If a value is outside its range, or the spike is as wide as the slab.
    """

    inclusion: float
    spike: float
    slab: float

    def __post_init__(self) -> None:
        if self.spike >= self.slab:
            raise ArgumentError(
                "SpikeAndSlab",
                "spike < slab",
                f"{self.spike} >= {self.slab}",
                "spike=0.01, slab=1.0",
            )

    def sample(self, name: str, like: Tensor) -> Tensor:
        """Sample the weight."""
        shares, sds = (
            like.new_tensor(pair).expand(*like.shape, 2)
            for pair in ((1 - self.inclusion, self.inclusion), (self.spike, self.slab))
        )
        return _drawn(
            name, _Mixture(dist.Categorical(shares), dist.Normal(torch.zeros_like(sds), sds))
        )

    def included(self, weight: Tensor) -> Tensor:
        """Return p(s = 1 | w) for each entry; its mean over posterior draws of the weight is the
        posterior inclusion probability.
        """
        odds = math.log(self.inclusion) - math.log1p(-self.inclusion)
        prior = odds + math.log(self.spike) - math.log(self.slab)
        return torch.sigmoid(prior + weight.square() * (self.spike**-2 - self.slab**-2) / 2)


@checked_class({}, rank=COUNT, precision=SCALE, sd=SCALE)
@dataclass(frozen=True)
class ProductGaussian:
    """``W = U V^T`` of low rank with Frobenius decay, ``exp(-precision / 2 * ||U V^T||_F^2)``
    (Khodak et al., 2021).

    Sites: NAME.u ``(out, rank)`` and NAME.v ``(rest, rank)`` for a weight ``(out, ...)`` unrolled
    to ``(out, rest)``, and the factor NAME.decay. The weight is recorded at NAME as a deterministic
    site.

    Parameters
    ----------
    rank
        Columns of U and V.
    precision
        Precision of the entries of the product, like 1 / sd^2 of `Gaussian`.
    sd
        Standard deviation of the entries of the factors.

    Raises
    ------
    ArgumentError
        If a value is not positive, or the rank is not an integer.
    PriorError
        From `sample`, if the weight is not a matrix or kernel.

    Notes
    -----
    Frobenius decay alone is not a density: (U A, V A^-T) has the same product for every invertible
    A, so its integral is infinite. U and V therefore also have wide Gaussian priors N(0, sd^2).
    These have an effect of their own: for a given W, the negative log density is higher by
    ``||W||_* / sd^2`` (nuclear norm) at its minimum over the factors, as with weight decay on the
    factors. The effect falls with sd. The product of Gaussians and decay is proper, but its
    normaliser is not known. An ELBO is therefore off by a constant that depends on the three
    parameters: it can compare guides, but not priors. Draws from the model itself ignore the decay,
    as they do any Pyro factor, and outside inference Pyro warns about it. W = 0, where `AutoNormal`
    starts by default, is a saddle; give it ``init_loc_fn=init_to_sample``.
    """

    rank: int
    precision: float
    sd: float = 1.0

    def sample(self, name: str, like: Tensor) -> Tensor:
        """Sample both factors, weight them by the decay and record their product."""
        if like.ndim < 2:
            raise PriorError(
                f"ProductGaussian, site {name!r}",
                "a matrix or kernel",
                f"shape {tuple(like.shape)}",
                "a prior for each parameter, by name",
            )
        sides = {"u": like.shape[0], "v": math.prod(like.shape[1:])}
        u, v = (
            _drawn(f"{name}.{leaf}", dist.Normal(like.new_zeros(side, self.rank), self.sd))
            for leaf, side in sides.items()
        )
        pyro.factor(f"{name}.decay", -self.precision / 2 * squared_norm(u, v))
        weight: Tensor = pyro.deterministic(
            name, (u @ v.mT).reshape(like.shape), event_dim=like.ndim
        )
        return weight

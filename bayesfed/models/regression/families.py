"""Families of regressions: what the response may be, further unknowns with their priors, and the
distribution of a row.

Scales of further unknowns are rstanarm's (`prior_aux`): an exponential of mean sd(y) for sds, of
mean 1 for `concentration` and `shape`; the degrees of freedom have the gamma of Juarez and Steel
(2010), the classes of an ordinal response a uniform Dirichlet at the mean of the inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import pyro.distributions as dist
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesfed.errors import DataError
from bayesfed.trees import Tree

Name = Literal[
    "normal",
    "student_t",
    "bernoulli",
    "binomial",
    "poisson",
    "negative_binomial",
    "ordinal",
    "weibull",
]
# From Pyro, which has no types.
Made = Callable[[Tensor, Tree, Tensor], Any]
Response = NDArray[np.float64]
# Least probability of a class.
TINY = 1e-300


class Family(NamedTuple):
    """What a family is.

    Parameters
    ----------
    response
        What the response must be, in words; and whether columns ``(N, 1)`` or ``(N, 2)`` are one.
    columns
        How many columns it has.
    distribution
        From linear predictors ``(..., N)``, further unknowns ``(..., 1)`` and trials ``(N,)``.
    further
        Priors of further unknowns, from sd(y) and the number of classes.
    start
        What the intercept's prior is centred at, from mean(y); its sd, and those of slopes for a
        change of an sd of their columns, are 2.5 sd(y) if `scaled`, else 2.5.
    """

    response: str
    fits: Callable[[Response], bool]
    columns: int
    distribution: Made
    further: Callable[[float, int], Mapping[str, dist.TorchDistribution]]
    start: Callable[[float], float]
    scaled: bool = False
    whole: bool = False


def _whole(y: Response) -> bool:
    return bool(((y >= 0) & (y == y.round())).all())


def _none(scale: float, classes: int) -> Mapping[str, dist.TorchDistribution]:
    return {}


def _normal(eta: Tensor, more: Tree, trials: Tensor) -> Any:
    return dist.Normal(eta, more["sigma"])


def _student(eta: Tensor, more: Tree, trials: Tensor) -> Any:
    return dist.StudentT(more["nu"], eta, more["sigma"])


def _bernoulli(eta: Tensor, more: Tree, trials: Tensor) -> Any:
    return dist.Bernoulli(logits=eta)


def _binomial(eta: Tensor, more: Tree, trials: Tensor) -> Any:
    return dist.Binomial(trials, logits=eta)


def _poisson(eta: Tensor, more: Tree, trials: Tensor) -> Any:
    return dist.Poisson(eta.exp())


def _negative(eta: Tensor, more: Tree, trials: Tensor) -> Any:
    return dist.NegativeBinomial(more["concentration"], logits=eta - more["concentration"].log())


def _ordinal(eta: Tensor, more: Tree, trials: Tensor) -> Any:
    below = (cutpoints(more["shares"]) - eta[..., None]).sigmoid()
    ends = torch.zeros_like(below[..., :1])
    shares = torch.cat([below, ends + 1], -1) - torch.cat([ends, below], -1)
    return dist.Categorical(shares.clamp_min(TINY))


def _weibull(eta: Tensor, more: Tree, trials: Tensor) -> Any:
    return dist.Weibull(eta.exp(), more["shape"])


def cutpoints(shares: Tensor) -> Tensor:
    """Return the cutpoints of an ordinal response, ``(..., K - 1)``, of its classes' shares where
    the linear predictor is 0.
    """
    return shares.cumsum(-1)[..., :-1].logit()


def _sigma(scale: float) -> Any:
    return dist.Exponential(1 / scale)


FAMILIES: Mapping[str, Family] = {
    "normal": Family(
        "numbers",
        lambda y: True,
        1,
        _normal,
        lambda scale, classes: {"sigma": _sigma(scale)},
        lambda mean: mean,
        scaled=True,
    ),
    "student_t": Family(
        "numbers",
        lambda y: True,
        1,
        _student,
        lambda scale, classes: {"sigma": _sigma(scale), "nu": dist.Gamma(2.0, 0.1)},
        lambda mean: mean,
        scaled=True,
    ),
    "bernoulli": Family(
        "0 and 1, or response['level']",
        lambda y: bool(np.isin(y, (0, 1)).all()),
        1,
        _bernoulli,
        _none,
        lambda mean: 0.0,
        whole=True,
    ),
    "binomial": Family(
        "p(successes, trials)",
        lambda y: _whole(y) and bool((y[:, 0] <= y[:, 1]).all()),
        2,
        _binomial,
        _none,
        lambda mean: 0.0,
    ),
    "poisson": Family("whole numbers from 0", _whole, 1, _poisson, _none, np.log),
    "negative_binomial": Family(
        "whole numbers from 0",
        _whole,
        1,
        _negative,
        lambda scale, classes: {"concentration": dist.Exponential(1.0)},
        np.log,
    ),
    "ordinal": Family(
        "a column of categories",
        lambda y: True,
        1,
        _ordinal,
        lambda scale, classes: {"shares": dist.Dirichlet(torch.ones(classes))},
        lambda mean: 0.0,
        whole=True,
    ),
    "weibull": Family(
        "positive times, or censored(time, event)",
        lambda y: bool((y[:, 0] > 0).all()),
        2,
        _weibull,
        lambda scale, classes: {"shape": dist.Exponential(1.0)},
        np.log,
    ),
}


def response_of(family: str, values: Response, where: str) -> Response:
    """Return the response's columns ``(N, 1)`` or ``(N, 2)``.

    Raises
    ------
    DataError
        If it is none of the family.
    """
    kind, columns = FAMILIES[family], values.reshape(len(values), -1)
    if family == "weibull" and columns.shape[1] == 1:
        columns = np.column_stack([columns, np.ones(len(columns))])
    if columns.shape[1] != kind.columns or not kind.fits(columns):
        actual = f"{columns.shape[1]} columns, such as {columns[:3].tolist()}"
        others = [name for name, one in FAMILIES.items() if one.columns == columns.shape[1]]
        hint = f"such a column, or family={others[0]!r}" if others else "another response"
        raise DataError(where, f"for family {family!r} {kind.response}", actual, hint)
    return columns

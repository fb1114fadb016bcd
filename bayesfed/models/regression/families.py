"""Families of regressions: what the response may be, further unknowns with their priors, and the
likelihood of a row.

Scales of further unknowns are rstanarm's (`prior_aux`): an exponential of mean sd(y) for sds, of
mean 1 for `concentration` and `shape`; the degrees of freedom have the gamma of Juarez and Steel
(2010), the classes of an ordinal response a uniform Dirichlet at the mean of the inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import pyro.distributions as dist
import torch
from numpy.typing import NDArray

from bayesfed.errors import ArgumentError, DataError
from bayesfed.errors.checks import Role
from bayesfed.errors.nearness import nearest
from bayesfed.errors.plurals import plural
from bayesfed.models.likelihoods.classes import Ordinal
from bayesfed.models.likelihoods.counts import Bernoulli, Binomial, NegativeBinomial, Poisson
from bayesfed.models.likelihoods.reals import Normal, StudentT
from bayesfed.models.likelihoods.rows import RowLikelihood
from bayesfed.models.likelihoods.survival import Weibull

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
# What a family is called in R, statsmodels, brms and Bambi, by its name here.
ELSEWHERE = {
    "gaussian": "normal",
    "gauss": "normal",
    "t": "student_t",
    "student": "student_t",
    "logistic": "bernoulli",
    "logit": "bernoulli",
    "binary": "bernoulli",
    "probit": "bernoulli",
    "negbinomial": "negative_binomial",
    "negbin": "negative_binomial",
    "nbinom": "negative_binomial",
    "nb": "negative_binomial",
    "cumulative": "ordinal",
    "polr": "ordinal",
    "survival": "weibull",
    "exponential": "weibull",
    "count": "poisson",
    "counts": "poisson",
}
# Families that regressions do not have yet; a Pyro model can have each of them.
NOT_HERE = frozenset(
    {
        "multinomial",
        "categorical",
        "gamma",
        "beta",
        "inverse_gaussian",
        "inverse.gaussian",
        "tweedie",
        "zero_inflated_poisson",
        "hurdle_poisson",
        "cox",
        "lognormal",
    }
)


def suggest_family(name: object) -> str:
    """Return what to pass for a name that is no family."""
    text = str(name).strip().lower()
    if text in NOT_HERE:
        return "federated_svi(model) with a Pyro model of that response"
    known = ELSEWHERE.get(text) or nearest(text, get_args(Name))
    return repr(known) if known else "'bernoulli', 'poisson' or 'normal'"


FAMILY = Role(
    lambda value: value in get_args(Name),
    f"one of {', '.join(map(repr, get_args(Name)))}",
    "'bernoulli', 'poisson' or 'normal'",
)


def check_family(name: object) -> None:
    """Raise `ArgumentError` if a name is no family, and say which it may be."""
    if not isinstance(name, str) or not FAMILY.fits(name):
        raise ArgumentError("regression, family", FAMILY.expected, repr(name), suggest_family(name))


Response = NDArray[np.float64]


class Family(NamedTuple):
    """What a family is.

    Parameters
    ----------
    response
        What the response must be, in words; and whether columns ``(N, 1)`` or ``(N, 2)`` are one.
    columns
        How many columns it has.
    likelihood
        Its likelihood, which networks have as well: `made` takes linear predictors ``(..., N)``,
        further unknowns ``(..., 1)`` and trials ``(N,)``.
    further
        Priors of further unknowns, from sd(y) and the number of classes.
    start
        What the intercept's prior is centred at, from mean(y); its sd, and those of slopes for a
        change of an sd of their columns, are 2.5 sd(y) if `scaled`, else 2.5.
    """

    response: str
    fits: Callable[[Response], bool]
    columns: int
    likelihood: type[RowLikelihood]
    further: Callable[[float, int], Mapping[str, dist.TorchDistribution]]
    start: Callable[[float], float]
    scaled: bool = False
    whole: bool = False


def _whole(y: Response) -> bool:
    return bool(((y >= 0) & (y == y.round())).all())


def _none(scale: float, classes: int) -> Mapping[str, dist.TorchDistribution]:
    return {}


def _sigma(scale: float) -> Any:
    return dist.Exponential(1 / scale)


FAMILIES: Mapping[str, Family] = {
    "normal": Family(
        "numbers",
        lambda y: True,
        1,
        Normal,
        lambda scale, classes: {"sigma": _sigma(scale)},
        lambda mean: mean,
        scaled=True,
    ),
    "student_t": Family(
        "numbers",
        lambda y: True,
        1,
        StudentT,
        lambda scale, classes: {"sigma": _sigma(scale), "nu": dist.Gamma(2.0, 0.1)},
        lambda mean: mean,
        scaled=True,
    ),
    "bernoulli": Family(
        "0 and 1, or response['level']",
        lambda y: bool(np.isin(y, (0, 1)).all()),
        1,
        Bernoulli,
        _none,
        lambda mean: 0.0,
        whole=True,
    ),
    "binomial": Family(
        "p(successes, trials)",
        lambda y: _whole(y) and bool((y[:, 0] <= y[:, 1]).all()),
        2,
        Binomial,
        _none,
        lambda mean: 0.0,
    ),
    "poisson": Family("whole numbers from 0", _whole, 1, Poisson, _none, np.log),
    "negative_binomial": Family(
        "whole numbers from 0",
        _whole,
        1,
        NegativeBinomial,
        lambda scale, classes: {"concentration": dist.Exponential(1.0)},
        np.log,
    ),
    "ordinal": Family(
        "a column of categories",
        lambda y: True,
        1,
        Ordinal,
        lambda scale, classes: {"shares": dist.Dirichlet(torch.ones(classes))},
        lambda mean: 0.0,
        whole=True,
    ),
    "weibull": Family(
        "positive times, or censored(time, event)",
        lambda y: bool((y[:, 0] > 0).all()),
        2,
        Weibull,
        lambda scale, classes: {"shape": dist.Exponential(1.0)},
        np.log,
    ),
}


# Families whose response may be any numbers, so that a column that fits says nothing.
FIT_ANYTHING = frozenset({"normal", "student_t", "ordinal"})


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
        actual = f"{plural(columns.shape[1], 'column')}, such as {columns[:3].tolist()}"
        others = [
            name
            for name, other in FAMILIES.items()
            if name not in FIT_ANYTHING
            and other.columns == columns.shape[1]
            and other.fits(columns)
        ]
        hint = f"such a column, or family={others[0]!r}" if others else "such a column"
        raise DataError(where, f"for family {family!r} {kind.response}", actual, hint)
    return columns

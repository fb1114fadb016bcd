"""Normal linear models of posteriordb as Pyro models: their columns, outcomes and priors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.distributions import constraints
from torch import Tensor

Columns = Mapping[str, np.ndarray]


class Linear(NamedTuple):
    """A linear model: its columns and outcome, who holds a row, and the scale of a half-Cauchy
    prior of sigma, 0 for a flat one.
    """

    columns: Callable[[Columns], list[np.ndarray]]
    outcome: Callable[[Columns], np.ndarray]
    holder: str
    scale: float = 0.0


def flat(support: Any = constraints.real, size: tuple[int, ...] = ()) -> Any:
    """Return an improper uniform distribution."""
    return dist.ImproperUniform(support, (), size)


def regression(size: int, scale: float) -> Callable[..., None]:
    """Return a linear model with flat coefficients."""

    def model(inputs: Tensor, targets: Tensor | None = None) -> None:
        beta = pyro.sample("beta", flat(constraints.real_vector, (size,)))
        prior = dist.HalfCauchy(torch.tensor(scale)) if scale else flat(constraints.positive)
        sigma = pyro.sample("sigma", prior)
        with pyro.plate("rows", len(inputs)):
            pyro.sample("y", dist.Normal(inputs @ beta, sigma), obs=targets)

    return model


def _interaction(d: Columns, shift_h: float = 0.0, shift_q: float = 0.0) -> list[np.ndarray]:
    h, q = d["mom_hs"] - shift_h, d["mom_iq"] - shift_q
    return [h, q, h * q]


def _nes(d: Columns) -> list[np.ndarray]:
    ages = [(d["age_discrete"] == k).astype(float) for k in (2, 3, 4)]
    return [d["real_ideo"], d["race_adj"], *ages, d["educ1"], d["gender"], d["income"]]


def _bushes(d: Columns, log: bool) -> list[np.ndarray]:
    names = ("diam1", "diam2", "canopy_height", "total_height", "density")
    return [*(np.log(d[n]) if log else d[n] for n in names), d["group"]]


def _shapes(d: Columns) -> list[np.ndarray]:
    a, b, c = np.log(d["diam1"]), np.log(d["diam2"]), np.log(d["canopy_height"])
    logs = [np.log(d[n]) for n in ("total_height", "density")]
    return [a + b + c, a + b, a - b, *logs, d["group"]]


def _score(d: Columns) -> np.ndarray:
    return d["kid_score"]


def _earn(d: Columns) -> np.ndarray:
    return np.log(d["earn"])


def _weight(d: Columns) -> np.ndarray:
    return np.log(d["weight"])


LINEAR: dict[str, Linear] = {
    "earn_height": Linear(lambda d: [d["height"]], lambda d: d["earn"], "male"),
    "logearn_height": Linear(lambda d: [d["height"]], _earn, "male"),
    "logearn_height_male": Linear(lambda d: [d["height"], d["male"]], _earn, "male"),
    "logearn_logheight_male": Linear(lambda d: [np.log(d["height"]), d["male"]], _earn, "male"),
    "logearn_interaction": Linear(
        lambda d: [d["height"], d["male"], d["height"] * d["male"]], _earn, "male"
    ),
    "kidscore_momhs": Linear(lambda d: [d["mom_hs"]], _score, "mom_hs", 2.5),
    "kidscore_momiq": Linear(lambda d: [d["mom_iq"]], _score, "mom_hs", 2.5),
    "kidscore_momhsiq": Linear(lambda d: [d["mom_hs"], d["mom_iq"]], _score, "mom_hs", 2.5),
    "kidscore_interaction": Linear(_interaction, _score, "mom_hs", 2.5),
    "kidscore_interaction_c": Linear(
        lambda d: _interaction(d, d["mom_hs"].mean(), d["mom_iq"].mean()), _score, "mom_work"
    ),
    "kidscore_interaction_c2": Linear(lambda d: _interaction(d, 0.5, 100.0), _score, "mom_work"),
    "kidscore_mom_work": Linear(
        lambda d: [(d["mom_work"] == k).astype(float) for k in (2, 3, 4)], _score, "mom_work"
    ),
    "mesquite": Linear(lambda d: _bushes(d, False), lambda d: d["weight"], "group"),
    "logmesquite": Linear(lambda d: _bushes(d, True), _weight, "group"),
    "logmesquite_logvolume": Linear(lambda d: _shapes(d)[:1], _weight, "group"),
    "logmesquite_logvas": Linear(_shapes, _weight, "group"),
    **{
        f"nes{y}": Linear(_nes, lambda d: d["partyid7"], "age_discrete")
        for y in (1972, 1980, 1988, 1996)
    },
}

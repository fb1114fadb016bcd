"""Regressions whose exact posterior is known, and problems of which nobody may say that the draws
are the posterior's.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from parts.exact.linear import regression
from parts.exact.models import Case, named

from bayesfed.data import Dataset

Moments = dict[str, dict[str, float]]


def simulated(seed: int) -> tuple[Case, Moments]:
    """Return a linear regression with flat priors in raw units, and its means and sds: of 12 to 200
    rows at 1 to 6 sites, correlated columns far from zero.
    """
    random = np.random.default_rng(seed)
    size, sites = int(random.integers(1, 8)), int(random.integers(1, 7))
    rows = int(random.integers(3 * size + 9, 200))
    mixing = random.normal(size=(size, size)) + np.eye(size)
    scales = 10.0 ** random.uniform(-2, 3, size)
    columns = (random.normal(size=(rows, size)) @ mixing + 3 * random.normal(size=size)) * scales
    inputs = np.concatenate([np.ones((rows, 1)), columns], 1)
    outcome = inputs @ (random.normal(size=size + 1) / np.r_[1, scales]) + random.normal(size=rows)
    outcome *= 10.0 ** random.uniform(-2, 4)
    places, (left, *_) = np.linalg.lstsq(inputs, outcome, rcond=None)[:2]
    free = rows - size - 2
    variance = left / (free - 2)
    sds = np.sqrt(variance * np.linalg.inv(inputs.T @ inputs).diagonal())
    told = {
        f"beta[{k + 1}]": {"mean": m, "sd": s}
        for k, (m, s) in enumerate(zip(places, sds, strict=True))
    }
    mean = math.sqrt(left / 2) * math.exp(math.lgamma((free - 1) / 2) - math.lgamma(free / 2))
    told["sigma"] = {"mean": mean, "sd": math.sqrt(variance - mean**2)}
    data = Dataset(torch.from_numpy(inputs), torch.from_numpy(outcome))
    holders = np.sort(random.integers(0, sites, rows))
    return Case(regression(size + 1, 0.0), data, holders, named), told

"""Pathfinder (Zhang, Carpenter, Gelman and Vehtari, 2022) on the pooled rows of `pooled`, by the
package blackjax: neither Pyro nor this package has it. Needs `pip install blackjax`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import torch
from parts.exact.models import Case
from parts.exact.pooled import WIDE
from parts.exact.scores import Moments

DRAWS = 4096


def density(name: str, case: Case) -> tuple[Callable[[Any], Any], int]:
    """Return the log joint density of unconstrained values, and their number."""
    jnp, special, stats = map(_jax, ("numpy", "scipy.special", "scipy.stats"))
    x, y = (jnp.asarray(leaf.numpy()) for leaf in (case.rows.inputs, case.rows.targets))
    x, size = x[:, :-1], x[:, -1]
    count = x.shape[1]

    def log_density(values: Any) -> Any:
        at, wide = x @ values[:count], WIDE if name.startswith("logistic") else 5.0
        prior = stats.norm.logpdf(values[:count], 0, wide).sum()
        if name == "radon":
            # Half-normal with sd 2, of the logarithm.
            sd = jnp.exp(values[count])
            prior += jnp.log(2) + stats.norm.logpdf(sd, 0, 2) + values[count]
            return prior + stats.norm.logpdf(y, at, sd).sum()
        if name == "poisson":
            return prior + stats.poisson.logpmf(y, size * jnp.exp(at)).sum()
        ways = special.gammaln(size + 1) - special.gammaln(y + 1) - special.gammaln(size - y + 1)
        return prior + (ways + y * at - size * jnp.logaddexp(0, at)).sum()

    return log_density, count + (name == "radon")


def _jax(part: str) -> Any:
    return import_module(f"jax.{part}")


def pathfinder(name: str, case: Case) -> tuple[Moments, float]:
    """Return means and sds of draws of Pathfinder at its defaults from the origin, and processor
    seconds.
    """
    blackjax, jax = import_module("blackjax"), import_module("jax")
    jax.config.update("jax_enable_x64", True)
    start = time.process_time()
    log_density, size = density(name, case)
    found, _ = blackjax.vi.pathfinder.approximate(
        jax.random.key(0), log_density, jax.numpy.zeros(size)
    )
    drawn, _ = blackjax.vi.pathfinder.sample(jax.random.key(1), found, DRAWS)
    values = torch.from_numpy(np.asarray(drawn).copy())
    seconds = time.process_time() - start
    count = case.rows.inputs.shape[1] - 1
    leaves = {f"beta[{k + 1}]": values[:, k] for k in range(count)}
    if size > count:
        leaves["sigma"] = values[:, count].exp()
    return {one: (float(leaf.mean()), float(leaf.std())) for one, leaf in leaves.items()}, seconds

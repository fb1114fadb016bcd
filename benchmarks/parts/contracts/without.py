"""Whether the status of a regression without a site is one that a fit of the other sites bears out.

Twenty small regressions have a site that is far from the others, and twenty have one that is like
them. The site is left out twice: where the sites can be asked again, and where they cannot, so that
the weights of the fit of all sites are all there is.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from parts.shared.targets import at_least, target
from tqdm import tqdm

import bayesfed as bf
from bayesfed.federated.clients import one_thread
from bayesfed.inference.exact.posterior import ExactPosterior

CASES = 20
# Mildly different sites that must be left out right, of so many.
LEAST_MILD = 18
# Sds that a mean may be off, and the share by which an sd may be, beside Monte Carlo error.
MEAN, SD = 0.1, 0.05
FORMULA, ODD = "y ~ x", "odd"
CERTAIN = ("exact", "adapted")
# Sds of the noise by which the intercept of the site is off: of outlying sites, and of mild ones.
OUTLYING, MILD = (2.0, 8.0), (0.0, 0.3)


class Case(NamedTuple):
    """A site that is left out: the status that is said, and errors against a fresh fit."""

    status: str
    mean: float
    sd: float
    noise: float

    @property
    def is_certain(self) -> bool:
        """Whether the status says that the draws are of the posterior."""
        return self.status in CERTAIN

    @property
    def is_right(self) -> bool:
        """Whether means and sds are those of the fresh fit."""
        return self.mean <= MEAN and self.sd <= SD + self.noise


def frames(seed: int, shifts: tuple[float, float]) -> dict[str, pd.DataFrame]:
    """Return the rows of three sites, the last of which is small, and differs."""
    draw = np.random.default_rng([seed, int(10 * shifts[1])])
    shift = draw.uniform(*shifts) * draw.choice([-1.0, 1.0])
    found = dict[str, pd.DataFrame]()
    for name, away, least in (("a", 0.0, 50), ("b", 0.0, 50), (ODD, shift, 9)):
        count = int(draw.integers(least, 2 * least))
        x = draw.normal(size=count)
        found[name] = pd.DataFrame({"x": x, "y": 1 + away + 0.5 * x + draw.normal(size=count)})
    return found


def compared(posterior: ExactPosterior, fresh: ExactPosterior) -> Case:
    """Return the largest errors of means, in sds, and of sds, as a share of them."""
    found, known = posterior.constants, fresh.constants
    means, sds = [0.0], [0.0]
    for name in fresh.values:
        mean, sd = f"{name}.mean", f"{name}.sd"
        means.append(float(((found[mean] - known[mean]) / known[sd]).abs().max()))
        sds.append(float((found[sd] / known[sd] - 1).abs().max()))
    noise = (2 * posterior.ess) ** -0.5 + (2 * fresh.ess) ** -0.5
    return Case(posterior.status, max(means), max(sds), noise)


def left_out(shifts: tuple[float, float]) -> Iterator[tuple[Case, Case]]:
    """Yield each case where the sites can be asked again, and where they cannot."""
    for seed in tqdm(range(CASES), desc="sites left out", leave=False):
        data = frames(seed, shifts)
        fit = bf.regression(FORMULA, data, progress=False)
        prepared = bf.running.prepared(FORMULA, data)
        # The rows of the others at one site: another way to the same posterior.
        others = [rows for name, rows in prepared.clients.items() if name != ODD]
        inputs = torch.cat([rows.inputs for rows in others])
        targets = torch.cat([rows.targets for rows in others])
        pooled = {"others": bf.Dataset(inputs, targets)}
        fresh = bf.run(prepared.algorithm, pooled, progress=False).posterior
        assert isinstance(fresh, ExactPosterior)
        asked, closed = (part.without(ODD) for part in (fit, replace(fit, refits=None)))
        yield compared(asked.posterior, fresh), compared(closed.posterior, fresh)


def statuses_hold() -> bool:
    """Leave out outlying and mild sites, print the targets, and return whether they are met."""
    with warnings.catch_warnings(), one_thread():
        warnings.simplefilter("ignore")
        outlying, mild = (list(left_out(shifts)) for shifts in (OUTLYING, MILD))
    every = [case for pair in (*outlying, *mild) for case in pair]
    wrong = [case for case in every if case.is_certain and not case.is_right]
    print(*wrong, sep="\n", end="\n" * bool(wrong))
    for name, pairs in (("outlying", outlying), ("mild", mild)):
        certain = sum(closed.is_certain for _, closed in pairs)
        print(f"{name}: weights alone do for {certain} of {len(pairs)} sites")
    right = sum(asked.is_certain and asked.mean <= MEAN for asked, _ in mild)
    return all(
        [
            target("statuses without a site that a fresh fit does not bear out", len(wrong), 0),
            at_least("outlying sites without which a fit is exact", _exact(outlying), CASES),
            at_least(f"mild sites left out within {MEAN} sds, of {CASES}", right, LEAST_MILD),
        ]
    )


def _exact(pairs: list[tuple[Case, Case]]) -> int:
    """Return for how many sites the fit that can ask the others again is exact or adapted."""
    return sum(asked.is_certain for asked, _ in pairs)

"""Heart disease at four hospitals (Janosi, Steinbrunn, Pfisterer and Detrano, 1988; UCI), prepared
and split as FLamby's Fed-Heart-Disease (Ogier du Terrail et al., 2022).

The rows are not part of this repository: a folder has ``processed.cleveland.data`` and those of
``hungarian``, ``switzerland`` and ``va``, as UCI has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import torch
from parts.exact.models import Case
from sklearn.model_selection import train_test_split
from torch import Tensor
from torch.func import vmap

from bayesfed.data import Dataset

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
FILES = "processed.{}.data"
COLUMNS = (
    *("age", "sex", "pressure", "cholesterol", "sugar", "heart_rate", "angina", "depression"),
    *("pain_2", "pain_3", "pain_4", "ecg_1", "ecg_2"),
)
# Units that need no rows: decades from 55 years, 20 mm Hg from 130, 50 mg/dl from 220, 20 beats
# from 140.
CENTRES = np.array([55, 0, 130, 220, 0, 140, 0, 0, 0, 0, 0, 0, 0.0])
SCALES = np.array([10, 1, 20, 50, 1, 20, 1, 1, 1, 1, 1, 1, 1.0])


class Hospitals(NamedTuple):
    """Rows of training and of test by hospital; the last column says which one it is."""

    train: dict[str, Dataset]
    test: dict[str, Dataset]


def hospitals(folder: Path) -> Hospitals:
    """Read the four files: rows without missing values in eleven columns, split 66 to 34."""
    made = Hospitals({}, {})
    for number, name in enumerate(HOSPITALS):
        # Some copies have a line of names, and commas at the ends of lines.
        table = pd.read_csv(folder / FILES.format(name), header=None, names=range(15), dtype=str)
        table = table.apply(pd.to_numeric, errors="coerce").drop(columns=[10, 11, 12, 14]).dropna()
        sick = (table[13] > 0).to_numpy(float)
        kinds = [(table[c] == level).to_numpy(float) for c, level in _LEVELS]
        plain = table[[0, 1, 3, 4, 5, 7, 8, 9]].to_numpy(float)
        inputs = (np.concatenate([plain, np.stack(kinds, 1)], 1) - CENTRES) / SCALES
        inputs = np.concatenate([inputs, np.full((len(inputs), 1), float(number))], 1)
        count = [int((sick == level).sum()) for level in (0, 1)]
        train, test = train_test_split(
            np.arange(len(sick)),
            train_size=0.66,
            test_size=1 - 0.66,
            random_state=43,
            stratify=sick if min(count) > 2 else None,
        )
        rows = Dataset(torch.from_numpy(inputs), torch.from_numpy(sick))
        made.train[name] = rows[torch.from_numpy(np.sort(train))]
        made.test[name] = rows[torch.from_numpy(np.sort(test))]
    return made


_LEVELS = ((2, 2.0), (2, 3.0), (2, 4.0), (6, 1.0), (6, 2.0))


def logits(draw: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
    """Return the log-odds of disease."""
    levels = draw["mu"] + draw["tau"] * draw["z"]
    return levels[inputs[:, -1].long()] + inputs[:, :-1] @ draw["beta"]


def model(inputs: Tensor, targets: Tensor | None = None) -> None:
    """State a logistic regression with a level for each hospital."""
    beta = pyro.sample("beta", dist.Normal(torch.zeros(len(COLUMNS)), 1.0).to_event(1))
    mu = pyro.sample("mu", dist.Normal(torch.tensor(0.0), 2.5))
    tau = pyro.sample("tau", dist.HalfNormal(torch.tensor(1.0)))
    z = pyro.sample("z", dist.Normal(torch.zeros(len(HOSPITALS)), 1.0).to_event(1))
    with pyro.plate("rows", len(inputs)):
        at = logits({"beta": beta, "mu": mu, "tau": tau, "z": z}, inputs)
        pyro.sample("y", dist.Bernoulli(logits=at), obs=targets)


def values(draw: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return coefficients, scales and the hospitals' levels by name."""
    levels = draw["mu"] + draw["tau"] * draw["z"]
    told = {name: draw["beta"][k] for k, name in enumerate(COLUMNS)}
    told |= {name: levels[k] for k, name in enumerate(HOSPITALS)}
    return told | {"mu": draw["mu"], "tau": draw["tau"]}


def pooled(made: Hospitals) -> Case:
    """Return the problem of all rows, and who holds each."""
    inputs, targets = (
        torch.cat([rows.inputs for rows in made.train.values()]),
        torch.cat([rows.targets for rows in made.train.values()]),
    )
    holders = np.repeat(list(made.train), [len(rows) for rows in made.train.values()])
    return Case(model, Dataset(inputs, targets), holders, values)


def scores(
    draws: Mapping[str, Tensor], weights: Tensor, test: Mapping[str, Dataset]
) -> tuple[dict[str, float], float]:
    """Return accuracy by hospital, and the negative log likelihood of a test row in nats."""
    right, lost = dict[str, float](), list[Tensor]()
    for name, rows in test.items():
        inputs = rows.inputs
        chance = weights @ vmap(lambda draw, x=inputs: logits(draw, x))(draws).sigmoid()
        sick = rows.targets > 0
        right[name] = float(((chance > 0.5) == sick).double().mean())
        lost.append(-torch.where(sick, chance, 1 - chance).log())
    return right, float(torch.cat(lost).mean())


def quantiles(drawn: Tensor, weights: Tensor, levels: Tensor) -> Tensor:
    """Return quantiles of weighted draws."""
    ordered, order = drawn.sort()
    total = weights[order].cumsum(0) - weights[order] / 2
    return ordered[torch.searchsorted(total, levels).clamp_max(len(ordered) - 1)]

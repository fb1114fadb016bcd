"""A logistic regression over three hospitals; the centre and every hospital have a copy of this
file.
"""

import os

import pandas as pd

import bayesfed as bf
from bayesfed.flower import Experiment

FORMULA = "died ~ age + ward"
HOSPITALS = ("basel", "bern", "chur")
# Nobody's rows. They name the columns and every category; their means and sds scale the priors.
MADE_UP = pd.DataFrame(
    {
        "age": [50.0, 60.0, 70.0, 60.0],
        "ward": ["east", "west", "east", "west"],
        "died": [0, 1, 1, 0],
    }
)
PREPARED = bf.running.prepared(FORMULA, dict.fromkeys(HOSPITALS, MADE_UP), "bernoulli")


def rows(client: str) -> bf.Dataset:
    """Return a hospital's rows, from the file that its variable ``STAYS`` names; called there."""
    return PREPARED.design.rows(pd.read_csv(os.environ["STAYS"]), client)


def experiment() -> Experiment:
    """Return the regression, which ends by itself."""
    return Experiment(algorithm=PREPARED.algorithm, data=rows)

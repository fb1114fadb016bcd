"""Messages about what a Pyro model is made of, and about N, the rows of all clients."""

import warnings

import pyro
import pyro.distributions as dist
import torch
from pyro.infer.autoguide import AutoDelta, AutoNormal

import bayesfed as bf
from bayesfed.errors import ConvergenceWarning
from tests.posteriors import test_model_terms as models
from tests.posteriors import test_observations as counts

COMPLETE = (
    "bayesfed/inference/variational/splitting.py",
    "bayesfed/federated/training/observations.py",
)


def declared(model, guide=AutoNormal):
    """Declare a model."""
    return lambda: bf.federated_svi(model, guide, example=models.DATA[:3])


def summed(inputs, targets=None):
    w = models.weights()
    pyro.factor("lik", dist.Normal(inputs @ w, 0.5).log_prob(targets).sum())
    pyro.factor("penalty", -w.square().sum())


def constant(inputs, targets=None):
    w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.8).to_event(1))
    with pyro.plate("data", len(inputs)):
        pyro.sample("y", dist.Normal(inputs @ w, 0.5), obs=targets)


def noisy(inputs, targets=None):
    lik = dist.Normal(torch.dropout(inputs, 0.5, train=True) @ models.weights(), 0.5)
    pyro.factor("lik", lik.log_prob(targets).sum())


def ran(number):
    """Run a round, which is too few to settle."""
    rule = bf.inference.ReverseKL()

    def run():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            return counts.ran(counts.svi(observations=number, fusion=rule), rounds=1)

    return run


CASES = [
    (declared(models.idiom), "pyro.plate('data', len(inputs))", declared(models.plain)),
    (declared(models.hard_coded), "pyro.plate('data', len(inputs))", declared(models.plain)),
    (declared(models.scaled), "no scale by numbers of rows", declared(models.plain)),
    (declared(models.mean_factor), "sums instead of means", declared(summed)),
    (declared(models.standardised), "figures of all rows as constants", declared(models.plain)),
    (declared(models.chosen), "constants in place of figures of rows", declared(constant)),
    (declared(models.columns), "mean.squeeze(-1)", declared(models.plain)),
    (declared(models.mixed_factor), "a term without rows in a factor of its own", declared(summed)),
    (declared(models.prior_of_rows), "constants in place of figures of rows", declared(constant)),
    (declared(noisy), "a plate of rows, or no dropout", declared(summed)),
    (declared(models.nothing_seen), "pyro.sample('y', ..., obs=targets)", declared(models.plain)),
    (declared(models.plain, AutoDelta), "AutoNormal", declared(models.plain)),
    (ran(60), "observations=24", ran(24)),
    (ran(25), "observations=24", ran(24)),
]

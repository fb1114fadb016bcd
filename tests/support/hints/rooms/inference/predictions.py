"""Messages of predictions, their scores, Laplace, objectives and the turbo exchange."""

import functools

import pyro
import pyro.distributions as dist
import torch
from torch import nn

import bayesfed as bf
from bayesfed.inference import Exchange, calibrate
from bayesfed.inference.evaluation import conformal
from bayesfed.inference.evaluation.detection import (
    adaptive_calibration_error,
    detection,
    risk_coverage,
    selective,
)
from bayesfed.inference.evaluation.predictive import Predictive
from bayesfed.inference.evaluation.ranks import ecdf_band, rank_statistics
from bayesfed.inference.evaluation.responses import crps
from bayesfed.inference.evaluation.scoring import brier, calibration_bins, coverage, nll
from bayesfed.inference.evaluation.simulation import simulated_calibration
from bayesfed.inference.laplace.roots import roots
from bayesfed.inference.objectives.proximal_operators import SoftThreshold
from bayesfed.models import weight_matrices
from tests.house.wrong_calls.given import CLIENTS, DATA, KEY, go, net
from tests.models.test_clusters import posterior
from tests.posteriors.test_laplace import Odd
from tests.posteriors.test_predictive import Given

COMPLETE = (
    "bayesfed/inference/evaluation",
    "bayesfed/inference/laplace",
    "bayesfed/inference/objectives",
    "bayesfed/inference/turbo",
)
logits = torch.tensor([[2.0, 0.0, 1.0]] * 4)
probabilities, targets = logits.softmax(-1), torch.tensor([0, 1, 2, 0])
WRONG, ROWS = torch.ones(4).bool(), torch.zeros(3, 1)
VALUES = dist.Normal(torch.zeros(3), 1.0)
CLASSES = dist.Categorical(logits=torch.zeros(3, 2))


def predictive(found=VALUES, rows=ROWS, count=4):
    """Return predictions of given distributions."""
    return Predictive(Given(found), rows, KEY, count=count)


def shares(wanted):
    """Return the weights of classes."""
    return conformal.label_weights(wanted, torch.ones(3))


def laplace(layers=None, rows=DATA, **options):
    """Fit a network's Gaussian."""
    return go(bf.laplace(net() if layers is None else layers, **options), {"a": rows})


@functools.cache
def of_numbers():
    """Return the Gaussian of a network whose targets are numbers."""
    rows = bf.Dataset(DATA.inputs, DATA.inputs[:, :1])
    return laplace(nn.Linear(4, 1), rows, likelihood=bf.Normal(1.0)).posterior


def wide(outputs):
    """Fit all parameters of a network with rows of outputs of a shape."""
    layers = nn.Sequential(nn.Linear(4, 3), nn.Unflatten(1, outputs))
    rows = bf.Dataset(DATA.inputs, torch.zeros(6, *outputs))
    laplace(layers, rows, subset="all", structure="full", likelihood=bf.Normal(1.0))


class Twice(Odd):
    """Uses a layer twice."""

    def forward(self, inputs):
        return self.out(self.body(self.body(inputs)))


def beta(**options):
    """Train networks side by side, by a method that does not choose the precision."""
    work = bf.Training(steps=2, observations=6, **options)
    go(bf.beta_pred_bayes(net(), samples=1, training=work))


def turbo(**options):
    """Declare D-Turbo-VBI."""
    bf.d_turbo_vbi(bf.declare(net()), observations=6, training=bf.Training(steps=1, **options))


def thin(rate=0.1, where=weight_matrices, scale=1.0):
    """Train under a penalty on singular values."""
    work = bf.Training(steps=1, optimiser=bf.Sgd(rate))
    algorithm = bf.fed_mid(net(), where=where, training=work)
    rows = bf.Dataset(DATA.inputs * scale, DATA.targets)
    go(algorithm, {"a": rows})


def learned(support, **options):
    """Begin an exchange with a support prior."""
    declared = bf.declare(net(), bf.Prior(support=support))
    next(iter([Exchange(**options).start(declared.sites["1.weight"])]))


def whole():
    """Return a posterior of three inputs."""
    return posterior(bf.models.Inputs(), torch.zeros(2, 3))


class drawn:
    """A posterior of `seen`."""

    def __init__(self, rows):
        pass

    def draw(self, key):
        return {"at": torch.zeros(())}


def unseen(inputs, targets=None):
    pyro.sample("at", dist.Normal(torch.tensor(0.0), 1.0))


def seen(inputs, targets=None):
    at = pyro.sample("at", dist.Normal(torch.tensor(0.0), 1.0))
    with pyro.plate("rows", len(inputs)):
        pyro.sample("y", dist.Normal(at, 1.0), obs=targets)


class Writing(nn.Linear):
    """A layer that may write into its inputs."""

    def __init__(self, inplace):
        super().__init__(DATA.inputs[0].numel(), 10)
        self.inplace = inplace

    def forward(self, inputs):
        if self.inplace:
            inputs -= 1
        return super().forward(inputs.flatten(1))


def writing(inplace):
    """Run such a network."""
    algorithm = bf.fed_avg(Writing(inplace), training=bf.Training(steps=1))
    return bf.run(algorithm, CLIENTS, rounds=1, progress=False)


CASES = [
    (lambda: writing(True), "in place of x -= 1", lambda: writing(False)),
    # Sets and scores.
    (
        lambda: shares(torch.tensor([-1.0, 0.0, 2.0])),
        "torch.bincount(targets, minlength=C)",
        lambda: shares(torch.bincount(targets, minlength=3)),
    ),
    (
        lambda: conformal.threshold(logits[0], 2.0),
        "level=0.9",
        lambda: conformal.threshold(logits[0], 0.9),
    ),
    (
        lambda: conformal.threshold(torch.zeros(5)),
        "clients with rows",
        lambda: conformal.threshold(torch.ones(5)),
    ),
    (
        lambda: detection(torch.zeros(0), torch.rand(4)),
        "predictive.uncertainties['entropy'] of the rows",
        lambda: detection(predictive(CLASSES).uncertainties["entropy"], torch.rand(4)),
    ),
    (lambda bins: adaptive_calibration_error(probabilities, targets, bins), 0),
    (lambda wrong: risk_coverage(torch.rand(4), wrong), WRONG[:3]),
    (
        lambda: risk_coverage(torch.full((4,), torch.nan), targets),
        "finite entropies, probabilities.argmax(1) != targets",
        lambda: risk_coverage(torch.rand(4), probabilities.argmax(1) != targets),
    ),
    (lambda risk: selective(torch.rand(4), WRONG, risk), 5.0),
    (lambda: nll(torch.zeros(4)), "reshaping", lambda: nll(torch.zeros(4).reshape(2, 2))),
    (
        lambda: brier(torch.eye(4).long(), targets),
        ".float()",
        lambda: brier(torch.eye(4).long().float(), targets),
    ),
    (
        lambda: nll(torch.full((2, 2), torch.inf)),
        "looking for the draw or row that overflowed",
        lambda: nll(torch.ones(2, 2)),
    ),
    (lambda given: brier(given, targets), logits),
    (
        lambda: brier(probabilities, targets.float()),
        "targets.long()",
        lambda: brier(probabilities, targets.float().long()),
    ),
    (
        lambda: brier(probabilities, targets + 1),
        "a column of probabilities for every class",
        lambda: brier(torch.full((4, 4), 0.25), targets + 1),
    ),
    (lambda bins: calibration_bins(probabilities, targets, bins), 0),
    (
        lambda: coverage(torch.rand(40, 3), torch.zeros(4), 0.5),
        "draws (S, B), targets (B,)",
        lambda: coverage(torch.rand(40, 4), torch.zeros(4), 0.5),
    ),
    (lambda level: coverage(torch.rand(40, 3), torch.zeros(3), level), 1.0),
    (
        lambda: coverage(torch.rand(4, 3), torch.zeros(3), 0.9),
        "19 draws",
        lambda: coverage(torch.rand(19, 3), torch.zeros(3), 0.9),
    ),
    # Predictions.
    (lambda: predictive(rows=ROWS[:0]), "at least one row", predictive),
    (
        lambda: predictive(rows=ROWS / 0),
        "dropping or imputing those rows",
        lambda: predictive(rows=(ROWS / 0).nan_to_num()),
    ),
    (lambda count: predictive(count=count), 0),
    (
        lambda: predictive(VALUES.to_event(1)).mean,
        "a plate over rows",
        lambda: predictive(VALUES).mean,
    ),
    (lambda: predictive().probabilities, "mean", lambda: predictive().mean),
    (
        lambda: (
            predictive(dist.TransformedDistribution(VALUES, [dist.transforms.TanhTransform()])).mean
        ),
        "draws(key)",
        lambda: predictive(
            dist.TransformedDistribution(VALUES, [dist.transforms.TanhTransform()])
        ).draws(KEY),
    ),
    (
        lambda: predictive().log_likelihood(ROWS),
        "one target a row",
        lambda: predictive().log_likelihood(ROWS[:, 0]),
    ),
    (
        lambda: predictive(CLASSES).log_likelihood(ROWS[:, 0] + 7),
        "the labels of the classes that were fitted",
        lambda: predictive(CLASSES).log_likelihood(ROWS[:, 0]),
    ),
    (
        lambda: predictive().log_likelihood(ROWS[:, 0] * torch.nan),
        "draws(key)",
        lambda: predictive().log_likelihood(predictive().draws(KEY)[0]),
    ),
    (
        lambda: predictive(dist.Categorical(torch.full((3, 2, 2), 0.5)).to_event(1)).scores(
            torch.ones(3, 2)
        ),
        "log_likelihood(targets)",
        lambda: predictive(dist.Categorical(torch.full((3, 2, 2), 0.5)).to_event(1)).log_likelihood(
            torch.ones(3, 2)
        ),
    ),
    (
        lambda: crps(torch.rand(1, 3), torch.zeros(3)),
        "Predictive.draws(key, 100), if finite",
        lambda: crps(predictive().draws(KEY, 100), torch.zeros(3)),
    ),
    # Laplace.
    (
        lambda: laplace(likelihood=bf.models.Poisson(exposure=True)),
        "Categorical(), Normal(), Bernoulli() or Poisson(), without weights and exposures",
        lambda: laplace(likelihood=bf.Categorical()),
    ),
    (
        lambda: laplace(nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 3, 4), nn.Flatten())),
        "subset='all'",
        lambda: laplace(
            nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 3, 4), nn.Flatten()),
            subset="all",
            structure="diagonal",
        ),
    ),
    (
        lambda: laplace(nn.Sequential(nn.Linear(4, 3), nn.Tanh())),
        "subset='all'",
        lambda: laplace(nn.Sequential(nn.Linear(4, 3), nn.Tanh()), subset="all"),
    ),
    (
        lambda: of_numbers().probit(DATA.inputs),
        "outputs(inputs)",
        lambda: of_numbers().outputs(DATA.inputs),
    ),
    (roots, bf.Training()),
    (
        lambda: laplace(Twice(4), subset="all"),
        "another structure",
        lambda: laplace(Twice(4), subset="all", structure="full"),
    ),
    (
        lambda: laplace(Twice(4), subset="all"),
        "subset='last'",
        lambda: laplace(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)), subset="last"),
    ),
    (lambda: wide((3, 1)), "a network with a row of outputs each", lambda: wide((3,))),
    # Objectives.
    (lambda rate: SoftThreshold(0.1)(torch.ones(2, 2), rate), -1.0),
    (
        lambda: beta(prior_precision="auto"),
        "Training(prior_precision=0.3, observations=len(train))",
        lambda: beta(prior_precision=0.3),
    ),
    (
        lambda: turbo(prior_precision=0.3, observations=6),
        "prior_precision=None: this method declares its own prior",
        turbo,
    ),
    (
        lambda: thin(where=lambda name, module: True),
        "where=weight_matrices",
        lambda: thin(where=weight_matrices),
    ),
    (lambda: thin(rate=1e38, scale=1e3), "a smaller learning rate", thin),
    # The turbo exchange.
    (
        lambda: learned(bf.models.Channels(), learn_transitions=True),
        "learn_transitions=False",
        lambda: learned(bf.models.Channels(), learn_transitions=False),
    ),
    (lambda size: calibrate(0.05, size), 5.0),
    (lambda site: whole().inputs(site=site), "1.weight"),
    (
        lambda: whole().inputs(["age", "dose", "age"]),
        "no names, or a list of the columns'",
        lambda: (whole().inputs(), whole().inputs(["age", "dose", "sex"])),
    ),
    # Simulation-based calibration.
    (
        lambda: rank_statistics(torch.tensor([0.5]), 9),
        "(draws < truth).sum(0)",
        lambda: rank_statistics((torch.zeros(9, 3) < 1).sum(0), 9),
    ),
    (lambda draws: rank_statistics(torch.tensor([0]), draws), 0),
    (lambda count: ecdf_band(count, 9), 0),
    (lambda draws: ecdf_band(9, draws), 0),
    (lambda level: ecdf_band(9, 9, level), 1.0),
    (
        lambda: simulated_calibration(unseen, lambda rows: None, torch.ones(3, 1), simulations=1),
        "pyro.sample('y', ..., obs=targets)",
        lambda: simulated_calibration(seen, drawn, torch.ones(3, 1), simulations=1),
    ),
]

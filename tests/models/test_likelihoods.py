"""Likelihoods: against scipy and scikit-learn, in recipes, in scores; what does not fit is refused
where it comes in.
"""

import math

import numpy as np
import pytest
import torch
from scipy import special, stats
from scipy.integrate import quad
from torch import nn

import bayesfed as bf
from bayesfed import models
from bayesfed.errors import ArgumentError, BayesfedError, DataError, KeywordError
from bayesfed.inference.evaluation.predictive import Predictive
from bayesfed.inference.evaluation.responses import crps, randomised_pit
from bayesfed.inspect.personal import Point
from bayesfed.models.likelihoods.rows import expected
from bayesfed.models.likelihoods.survival import Hazards

ROWS = 6
GENERATOR = bf.Key(0, "likelihoods").generator()
OUT = torch.randn(ROWS, 6, generator=GENERATOR, dtype=torch.float64)
X = OUT.numpy()
ONE, TWO, OTHER = (OUT[:, at : at + 1].numpy() for at in range(3))
COUNTS = torch.tensor([[0.0], [3], [1], [7], [2], [40]], dtype=torch.float64)
EXPOSED = torch.cat([COUNTS, torch.tensor([[1.0], [2], [0.5], [3], [1], [20]])], 1)
TIMES = torch.tensor([[0.3, 1.0], [1.0, 0], [2.5, 1], [0.9, 0], [4.0, 1], [1.7, 1]]).double()
TIME, SEEN = TIMES.numpy().T
LABELS = torch.tensor([0, 2, 1, 2, 0, 1])
Y, C = COUNTS.numpy(), np.exp(TWO)


def negative(counts, means, concentration):
    return stats.nbinom.logpmf(counts, concentration, concentration / (concentration + means))


def weibull():
    of = stats.weibull_min(C[:, 0], scale=np.exp(ONE[:, 0]))
    return np.where(SEEN > 0, of.logpdf(TIME), of.logsf(TIME))


def piecewise():
    """By numerical integration of the rate."""
    starts, found = [0.0, 1.0, 2.0], []
    for row, (time, seen) in enumerate(TIMES.tolist()):

        def rate(t, logs=OUT[row]):
            return math.exp(logs[np.searchsorted(starts, t, "right") - 1])

        found.append(seen * math.log(rate(time)) - quad(rate, 0, time, points=[1.0, 2.0])[0])
    return np.array(found)


def ordinal():
    below = np.cumsum(np.concatenate([ONE, np.logaddexp(0, TWO)], 1), 1)
    cdf = np.concatenate([np.zeros((ROWS, 1)), stats.logistic.cdf(below), np.ones((ROWS, 1))], 1)
    return np.log(np.diff(cdf, axis=1)[np.arange(ROWS), LABELS])


NORMAL, LABEL = models.Normal(0.5), models.Categorical()
# Likelihood, number of outputs, targets, what scipy says.
CASES = {
    "multi-label": (
        models.Bernoulli(),
        2,
        (OUT[:, 2:4] > 0).long(),
        lambda: stats.bernoulli.logpmf(X[:, 2:4] > 0, 1 / (1 + np.exp(-X[:, :2]))).sum(1),
    ),
    "binomial": (
        models.Binomial(),
        1,
        torch.cat([COUNTS, COUNTS + 2], 1),
        lambda: stats.binom.logpmf(Y, Y + 2, 1 / (1 + np.exp(-ONE)))[:, 0],
    ),
    "Poisson": (
        models.Poisson(exposure=True),
        1,
        EXPOSED,
        lambda: stats.poisson.logpmf(Y, EXPOSED[:, 1:].numpy() * np.exp(ONE))[:, 0],
    ),
    "negative binomial": (
        models.NegativeBinomial(exposure=True),
        2,
        EXPOSED,
        lambda: negative(Y, EXPOSED[:, 1:].numpy() * np.exp(ONE), C)[:, 0],
    ),
    "negative binomial, fixed": (
        models.NegativeBinomial(concentration=2.0),
        1,
        COUNTS.long(),
        lambda: negative(Y, np.exp(ONE), 2.0)[:, 0],
    ),
    "heteroscedastic": (
        models.Normal(None),
        4,
        OUT[:, 4:],
        lambda: stats.norm.logpdf(X[:, 4:], X[:, :2], np.exp(X[:, 2:4])).sum(1),
    ),
    "Student": (
        models.StudentT(None, 3.0),
        2,
        OUT[:, 2:3],
        lambda: stats.t.logpdf(OTHER, 3.0, ONE, C)[:, 0],
    ),
    "ordinal": (models.Ordinal(), 2, LABELS, ordinal),
    "Weibull": (models.Weibull(), 2, TIMES, weibull),
    "piecewise": (models.PiecewiseExponential((1.0, 2.0)), 3, TIMES, piecewise),
    "several": (
        models.Several((LABEL, models.Poisson(True), NORMAL), (3, 1, 1)),
        5,
        torch.cat([LABELS[:, None].double(), EXPOSED, OUT[:, 5:]], 1),
        lambda: (
            torch.log_softmax(OUT[:, :3], 1).numpy()[np.arange(ROWS), LABELS]
            + stats.poisson.logpmf(Y[:, 0], EXPOSED[:, 1].numpy() * np.exp(OUT[:, 3].numpy()))
            + stats.norm.logpdf(X[:, 5], X[:, 4], 0.5)
        ),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_log_likelihoods_are_those_of_scipy(name):
    likelihood, width, targets, wanted = CASES[name]
    output = OUT[:, :width].clone().requires_grad_()
    likelihood.check(output.detach(), targets)
    found = likelihood.pointwise(output, targets)
    assert np.allclose(found.detach(), wanted(), rtol=1e-9)
    assert torch.allclose(likelihood.loss(output, targets), -found.mean())
    loss = likelihood.loss(output, targets)
    assert torch.autograd.grad(loss, output)[0].isfinite().all()
    # The Pyro site scores the same, tempered and scaled.
    import pyro

    trace = pyro.poutine.trace(likelihood.observe).get_trace(output, targets.to(targets), 3.0)
    given = trace.nodes["y"]
    score = given["fn"].log_prob(targets if targets.ndim == 1 else targets.double())
    assert torch.allclose(score, found)
    assert given["scale"] == 3.0
    assert likelihood.distribution(output).sample((5,)).shape[:2] == (5, ROWS)


def test_weights_of_classes_and_rows_and_smoothing_are_those_of_scikit_learn_and_torch():
    from sklearn.metrics import log_loss

    logits, weights = OUT[:, :3], (1.0, 3.0, 0.5)
    probabilities, own = logits.softmax(1).numpy(), torch.tensor(weights).double()[LABELS]
    wanted = log_loss(LABELS, probabilities, sample_weight=own)
    found = models.Categorical(weights=weights).loss(logits, LABELS) / own.mean()
    rows = models.Weighted(LABEL)
    targets = torch.stack([LABELS.double(), own], 1)
    rows.check(logits, targets)
    assert math.isclose(found, wanted)
    assert math.isclose(rows.loss(logits, targets) / own.mean(), wanted)
    mixed = 0.8 * nn.functional.one_hot(LABELS, 3) + 0.2 / 3
    smooth = models.Categorical(smoothing=0.2).pointwise(logits, LABELS)
    assert torch.allclose(smooth, (mixed * logits.log_softmax(1)).sum(1))
    # A row of weight 2 is two rows, and one of weight 0 none.
    inner, twice = models.Weighted(models.Poisson(True)), EXPOSED[[0, 0, 1, 3, 4, 5]]
    weighed = torch.cat([EXPOSED, torch.tensor([[2.0], [1], [0], [1], [1], [1]])], 1)
    alone = models.Poisson(True).pointwise(ONES[[0, 0, 1, 3, 4, 5]], twice).sum()
    assert torch.allclose(inner.pointwise(ONES, weighed).sum(), alone)


ONES = OUT[:, :1]


# Closed forms of the CRPS, as scoringrules has them (Jordan, Krüger and Lerch, 2019).
def crps_normal(y):
    z = (y - 1) / 2
    density = 2 * stats.norm.pdf(z) - 1 / math.sqrt(math.pi)
    return 2 * (z * (2 * stats.norm.cdf(z) - 1) + density)


def crps_poisson(y, mean=3.0):
    bessel = special.i0e(2 * mean) + special.i1e(2 * mean)
    near = 2 * mean * stats.poisson.pmf(y, mean) - mean * bessel
    return (y - mean) * (2 * stats.poisson.cdf(y, mean) - 1) + near


def crps_exponential(y):
    return y - 4 * stats.expon.cdf(y, scale=2) + 1.0


@pytest.mark.parametrize(
    ("of", "closed"),
    [
        (stats.norm(1.0, 2.0), crps_normal),
        (stats.poisson(3.0), crps_poisson),
        (stats.expon(scale=2.0), crps_exponential),
    ],
)
def test_crps_of_draws_is_that_of_closed_forms(of, closed):
    values = np.array([0.0, 2.0, 5.0])
    draws = torch.from_numpy(of.rvs((40_000, 3), random_state=0).astype(float))
    assert np.allclose(crps(draws, torch.from_numpy(values)), closed(values), atol=0.03)


@pytest.mark.parametrize("kind", ["counts", "times", "numbers"])
def test_randomised_pit_is_uniform(kind):
    random, seen, n = np.random.default_rng(0), None, 4000
    draw = {"counts": lambda s: random.poisson(1.5, s), "numbers": lambda s: random.normal(size=s)}
    sample = draw.get(kind, lambda s: random.weibull(1.5, s))
    draws, y = sample((99, n)).astype(float), sample(n).astype(float)
    if kind == "times":
        until = random.exponential(1.0, n)
        y, seen = np.minimum(y, until), torch.from_numpy(y <= until)
    found = randomised_pit(torch.from_numpy(draws), torch.from_numpy(y), bf.Key(0), seen)
    assert stats.kstest(found.numpy(), "uniform").pvalue > 0.01
    # Without the random part counts would fail.
    if kind == "counts":
        plain = (draws < y).mean(0)
        assert stats.kstest(plain, "uniform").pvalue < 1e-6


def test_times_of_constant_rates_are_drawn_from_their_density():
    logs = torch.tensor([[0.2, -1.0, 0.7]]).double()
    of = Hazards(logs, torch.tensor([0.0, 0.5, 1.5]).double())
    with bf.keys.forked(bf.Key(0)):
        drawn = of.sample((20_000,))[:, 0]

    def cdf(t):
        return 1 - of.log_survival(torch.as_tensor(t)[:, None]).exp()[:, 0].numpy()

    assert stats.kstest(drawn.numpy(), cdf).pvalue > 0.01
    left = quad(
        lambda t: float(of.log_survival(torch.tensor([t]).double()).exp()), 0, 60, limit=200
    )
    assert math.isclose(of.mean, left[0], rel_tol=1e-6)


def planted(likelihood, outputs, rows=400):
    """Return rows drawn from a likelihood whose outputs are linear, and the outputs' weights."""
    noise = bf.Key(3, type(likelihood).__name__).generator()
    inputs = torch.randn(rows, 3, generator=noise)
    weights = 0.4 * torch.randn(outputs, 3, generator=noise)
    with bf.keys.forked(bf.Key(3, "planted")):
        targets = likelihood.distribution(inputs @ weights.T).sample()
    return bf.Dataset(inputs, targets), weights


TRAINED = [
    (models.Poisson(exposure=True), 1),
    (models.Several((LABEL, models.Poisson()), (2, 1)), 3),
    (models.Weighted(models.Normal(0.3)), 1),
    (models.Categorical(weights=(1.0, 2.0), smoothing=0.1), 2),
    (models.Bernoulli(), 2),
    (models.NegativeBinomial(), 2),
    (models.Normal(None), 2),
    (models.StudentT(0.5), 1),
    (models.Ordinal(), 2),
    (models.Weibull(1.5), 1),
    (models.PiecewiseExponential((0.5,)), 2),
]


def test_predictions_are_means_and_probabilities_of_classes():
    """Also where outcomes are several or rows have weights."""
    normal, softmax = OUT[:, 2:3], OUT[:, :2].softmax(1)
    several = models.Several((LABEL, models.Normal(), models.Poisson()), (2, 1, 1))
    found = expected(several.distribution(OUT[:, :4]))
    assert torch.allclose(found, torch.cat([softmax, normal, OUT[:, 3:4].exp()], 1))
    ones = torch.ones(ROWS, 1).double()
    for inner, width, wanted in ((LABEL, 2, softmax), (models.Normal(), 3, OUT[:, :3])):
        weighted = expected(models.Weighted(inner).distribution(OUT[:, :width]))
        assert torch.allclose(weighted, torch.cat([wanted, ones], 1))


def sites(data):
    return bf.federate(data, dict(zip("ab", bf.iid(len(data), 2, bf.Key(0)), strict=True)))


@pytest.mark.parametrize(("likelihood", "outputs"), TRAINED)
def test_averages_train_and_are_scored_by_the_likelihood_of_training(likelihood, outputs):
    data, _ = planted(likelihood, outputs)
    net, clients = nn.Linear(3, outputs), sites(data)
    start = float(likelihood.loss(net(data.inputs).detach(), data.targets))
    work = bf.Training(steps=20, batch_size=50, optimiser=bf.Adam(0.02))
    average = bf.run(bf.fed_avg(net, likelihood=likelihood, training=work), clients, rounds=3)
    assert float(likelihood.loss(average.model(data.inputs), data.targets)) < start
    nll = average.personal_scores(dict(clients)).mean("nll")
    plain = Predictive(Point(average.model, likelihood), data.inputs, bf.Key(0), 1)
    assert math.isclose(nll, plain.scores(data.targets)["nll"], rel_tol=1e-4)


@pytest.mark.parametrize(
    ("likelihood", "outputs"),
    [
        pytest.param(*one, marks=() if number < 2 else pytest.mark.slow)
        for number, one in enumerate(TRAINED)
    ],
)
@pytest.mark.parametrize("recipe", ["federated_svi", "d_turbo_vbi", "swag"])
def test_posteriors_predict_with_every_likelihood(recipe, likelihood, outputs):
    data, _ = planted(likelihood, outputs)
    net, work = nn.Linear(3, outputs), bf.Training(steps=3, optimiser=bf.Adam(0.02))
    if recipe == "federated_svi":
        model = models.bayesian(net, bf.Gaussian(1.0), likelihood=likelihood)
        algorithm = bf.federated_svi(model, observations=400, example=data[:2], training=work)
    elif recipe == "d_turbo_vbi":
        declared = bf.declare(net, likelihood=likelihood)
        algorithm = bf.d_turbo_vbi(declared, observations=400, training=work)
    else:
        algorithm = bf.swag(bf.fed_avg(net, likelihood=likelihood, training=work), begin=1)
    result = bf.run(algorithm, sites(data), rounds=3 if recipe == "swag" else 1)
    assert math.isfinite(result.predictive(data.inputs, draws=5).scores(data.targets)["nll"])


@pytest.mark.parametrize(
    ("likelihood", "outputs"),
    [
        (models.Bernoulli(), 2),
        (models.Poisson(), 2),
        (models.NegativeBinomial(concentration=2.0), 1),
        (models.Normal(None), 2),
        (models.StudentT(0.5), 1),
    ],
)
def test_laplace_has_fishers_information(likelihood, outputs):
    """Against the mean of squared gradients over draws of the targets."""
    output = 0.5 * torch.randn(1, outputs, generator=bf.Key(1).generator()).double()
    with bf.keys.forked(bf.Key(1, "fisher")):
        drawn = likelihood.distribution(output).sample((60_000,))[:, 0]
    many = output.expand(60_000, -1).clone().requires_grad_()
    slopes = torch.autograd.grad(likelihood.pointwise(many, drawn).sum(), many)[0]
    assert torch.allclose(
        likelihood.information(output).diag_embed()[0], slopes.mT @ slopes / 60_000, atol=0.06
    )


@pytest.mark.parametrize(
    "likelihood",
    [
        models.Weibull(),
        models.Poisson(True),
        models.Weighted(LABEL),
        models.Categorical(weights=(1.0, 1.0, 1.0)),
        models.Ordinal(),
    ],
)
def test_laplace_says_which_curvatures_it_does_not_know(likelihood):
    with pytest.raises(ArgumentError, match="curvature the outputs alone say"):
        bf.laplace(nn.Linear(3, 2), likelihood=likelihood)


PAIR = models.Several((LABEL, NORMAL), (3, 1))
BAD = {
    "negative counts": (models.Poisson(), 1, COUNTS - 1, "such as .-1.0"),
    "shares": (models.Poisson(), 1, COUNTS + 0.5, "such as .0.5"),
    "no exposure": (models.Poisson(True), 1, COUNTS, r"found \(6, 1\).*torch.ones"),
    "exposure 0": (models.Poisson(True), 1, EXPOSED * torch.tensor([1.0, 0]), "6 rows of others"),
    "more than trials": (models.Binomial(), 1, EXPOSED * 2, "successes, then trials"),
    "labels 2": (models.Bernoulli(), 1, COUNTS, "0 and 1"),
    "no events": (models.Weibull(), 2, TIMES[:, :1], r"shape \(6, 2\): time, then 1"),
    "events 2": (models.Weibull(), 2, TIMES + 1, "such as"),
    "time 0": (models.PiecewiseExponential((1.0,)), 2, TIMES * 0, "such as .0.0, 0.0"),
    "intervals": (models.PiecewiseExponential((1.0,)), 3, TIMES, r"outputs \(B, 2\)"),
    "no sd": (models.Normal(None), 3, OUT[:, :1], "predictors, and logarithms of sigma"),
    "class 3": (models.Ordinal(), 2, LABELS + 1, "such as 3"),
    "weight": (models.Weighted(LABEL), 3, torch.stack([LABELS, -LABELS], 1), "weight from 0"),
    "weights": (models.Categorical(weights=(1.0, 2.0)), 3, LABELS, "3 numbers from 0"),
    "several": (PAIR, 4, TIMES[:, :1], "Categorical 1, Normal 1"),
    "half a label": (PAIR, 4, TIMES + 0.25, "whole labels"),
}


@pytest.mark.parametrize("name", BAD)
def test_targets_that_do_not_fit_are_refused_where_they_come_in(name):
    likelihood, width, targets, words = BAD[name]
    with pytest.raises(DataError, match=f"(?s){words}"):
        likelihood.check(OUT[:, :width], targets)
    data = bf.Dataset(torch.randn(ROWS, 3), targets if targets.ndim == 1 else targets.float())
    algorithm = bf.fed_avg(nn.Linear(3, width), likelihood=likelihood, training=bf.Training(1))
    with pytest.raises(BayesfedError, match=f"(?s){words}"):
        bf.run(algorithm, {"a": data}, rounds=1)


def test_scores_see_exposures_and_events():
    """A likelihood that is right covers what it says, on rows of unlike exposure and with censored
    times.
    """
    poisson = models.Poisson(True)
    data, weights = planted(poisson, 1, rows=3000)
    exposed = 1 + 4 * torch.rand(3000, generator=bf.Key(5).generator())
    outputs = data.inputs @ weights.T
    with bf.keys.forked(bf.Key(6)):
        counts = torch.poisson(outputs.exp()[:, 0] * exposed)
    targets = torch.stack([counts, exposed], 1)
    found = Predictive(Point(lambda rows: rows @ weights.T, poisson), data.inputs, bf.Key(0), 1)
    scores = found.scores(targets)
    mean = outputs.exp()[:, 0] * exposed
    assert math.isclose(scores["rmse"], (mean - counts).square().mean().sqrt(), rel_tol=1e-5)
    assert abs(scores["coverage_80"] - 0.8) < 0.03
    assert abs(scores["coverage_50"] - 0.5) < 0.03
    closed = crps_poisson(counts.double().numpy(), mean.double().numpy())
    assert math.isclose(scores["crps"], np.mean(closed), rel_tol=0.03)


@pytest.mark.parametrize(
    "kind",
    [
        bf.Categorical,
        models.Bernoulli,
        models.Ordinal,
        models.Binomial,
    ],
)
def test_a_number_of_classes_is_no_temperature(kind):
    """`Ordinal(10)` was the temperature 10."""
    with pytest.raises((ArgumentError, KeywordError), match="positional|weights"):
        kind(10)
    assert kind(temperature=0.5).temperature == 0.5

"""Posterior predictions and their scores: against loops over draws and rows, for both kinds of
posterior.
"""

import math
import warnings
from dataclasses import replace

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoNormal

import bayesfed as bf
from bayesfed.data import Dataset, concatenated
from bayesfed.data import blobs as make_blobs
from bayesfed.errors import ArgumentError, DataError, PosteriorError
from bayesfed.inference.evaluation.predictive import Predictive
from bayesfed.inspect import k_hat, score_table
from bayesfed.inspect.compat import installed
from bayesfed.keys import Key

DRAWS = 41


def line(inputs, targets=None):
    slope = pyro.sample("slope", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    noise = pyro.sample("noise", dist.LogNormal(-1.0, 0.5))
    with pyro.plate("data", len(inputs)):
        return pyro.sample("y", dist.Normal(inputs @ slope, noise), obs=targets)


def coin(inputs, targets=None):
    slope = pyro.sample("slope", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("data", len(inputs)):
        return pyro.sample("y", dist.Bernoulli(logits=inputs @ slope), obs=targets)


def values(count, name):
    generator = Key(0, "values", name).generator()
    inputs = torch.randn(count, 2, generator=generator)
    return Dataset(
        inputs, inputs @ torch.tensor([0.5, -1.0]) + 0.4 * torch.randn(count, generator=generator)
    )


def fitted(algorithm, clients, rounds=3):
    return bf.run(algorithm, clients, rounds=rounds, progress=False)


@pytest.fixture(scope="module")
def regression():
    """Result, clients and test rows of a Pyro model with real targets."""
    clients = {name: values(25, name) for name in ("a", "b")}
    data = concatenated(list(clients.values()))
    algorithm = bf.federated_svi(
        line,
        AutoNormal,
        fusion=bf.PVI(damping=0.6),
        scale="local",
        observations=len(data),
        example=data[:3],
        training=bf.Training(steps=20, batch_size=None, optimiser=bf.Adam(0.1)),
    )
    return (
        fitted(algorithm, clients, 6),
        clients,
        {name: values(30 + 10 * number, f"{name} test") for number, name in enumerate(clients)},
    )


@pytest.fixture(scope="module")
def binary():
    """The same of a Pyro model with Bernoulli targets."""
    clients = {
        name: Dataset(part.inputs, (part.targets > 0).float())
        for name, part in ((name, values(25, name)) for name in ("a", "b"))
    }
    data = concatenated(list(clients.values()))
    algorithm = bf.federated_svi(
        coin,
        AutoNormal,
        fusion=bf.PVI(damping=0.6),
        scale="local",
        observations=len(data),
        example=data[:3],
        training=bf.Training(steps=20, batch_size=None),
    )
    return fitted(algorithm, clients), clients, clients


@pytest.fixture(scope="module")
def blobs():
    """The same of a declared model with classes."""
    data = make_blobs(Key(0, "blobs"), samples=180, features=8, classes=3, spread=1.0)
    clients = {"a": data[:60], "b": data[60:120]}
    declared = bf.declare(
        bf.mlp([8, 6, 3], Key(0, "net")), likelihood=bf.Categorical(temperature=0.2)
    )
    algorithm = bf.d_turbo_vbi(
        declared,
        observations=120,
        training=bf.Training(steps=20, batch_size=16, optimiser=bf.Adam(1e-2)),
    )
    return fitted(algorithm, clients, 2), clients, {"a": data[120:160], "b": data[160:]}


@pytest.fixture(scope="module")
def declared_regression():
    """The same of a declared model with real targets in a column."""
    clients = {
        name: Dataset(part.inputs, part.targets[:, None])
        for name, part in ((name, values(25, name)) for name in ("a", "b"))
    }
    declared = bf.declare(bf.mlp([2, 8, 1], Key(0, "net")), likelihood=bf.Normal(sd=0.4))
    return (
        fitted(
            bf.d_turbo_vbi(
                declared,
                observations=50,
                training=bf.Training(steps=20, batch_size=16, optimiser=bf.Adam(1e-2)),
            ),
            clients,
        ),
        clients,
        clients,
    )


@pytest.fixture(params=["blobs", "binary"])
def classes(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(params=["regression", "declared_regression"])
def reals(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(params=["blobs", "binary", "regression", "declared_regression"])
def any_of_them(request):
    return request.getfixturevalue(request.param)


def slow(found, data):
    """Return the distribution of the targets at every draw, all rows at once."""
    for number in range(found.count):
        draw = found.posterior.draw(found.key.child("draw", number))
        yield found.posterior.observe(draw, data.inputs, Key(0))


@pytest.mark.slow
def test_log_likelihoods_are_those_of_a_loop(any_of_them):
    result, _, tests = any_of_them
    data = tests["a"]
    found = result.predictive(data.inputs, draws=5)
    likely = found.log_likelihood(data.targets)
    assert likely.shape == (5, len(data))
    for row, given in zip(likely, slow(found, data), strict=True):
        assert torch.allclose(row, given.log_prob(data.targets), atol=1e-5)


def test_scores_of_classes_are_those_of_a_loop(classes):
    result, _, tests = classes
    data = tests["a"]
    found = result.predictive(data.inputs, draws=DRAWS)
    each = torch.stack([given.probs for given in slow(found, data)]).double()
    each = torch.stack([1 - each, each], -1) if each.ndim == 2 else each
    assert torch.allclose(found.probabilities.double(), each, atol=1e-5)
    assert torch.allclose(found.mean.double(), each.mean(0), atol=1e-5)
    rows = {name: [] for name in ("nll", "brier", "accuracy", "entropy", "mutual_information")}
    for b, label in enumerate(data.targets.long().tolist()):
        mean = [float(p) for p in each[:, b].mean(0)]
        within = np.mean(
            [-sum(float(p) * math.log(p) for p in draw if p > 0) for draw in each[:, b]]
        )
        rows["nll"].append(-math.log(mean[label]))
        rows["brier"].append(sum((p - (c == label)) ** 2 for c, p in enumerate(mean)))
        rows["accuracy"].append(float(np.argmax(mean) == label))
        rows["entropy"].append(-sum(p * math.log(p) for p in mean if p > 0))
        rows["mutual_information"].append(rows["entropy"][-1] - within)
    scores = found.scores(data.targets)
    assert {*rows, "ece", "adaptive_ece", "aurc", "coverage_at_risk"} == set(scores)
    for name, values in rows.items():
        assert scores[name] == pytest.approx(np.mean(values), abs=1e-4), name
    assert 0 <= scores["ece"] <= 1


def test_scores_of_real_targets_are_those_of_a_loop(reals):
    result, _, tests = reals
    data = tests["a"]
    found = result.predictive(data.inputs, draws=DRAWS)
    given = list(slow(found, data))
    mean = torch.stack([one.mean for one in given]).mean(0)
    assert found.mean.shape == data.targets.shape
    assert torch.allclose(found.mean, mean, atol=1e-5)
    likely = torch.stack([one.log_prob(data.targets) for one in given]).double()
    scores = found.scores(data.targets)
    assert list(scores) == ["nll", "rmse", "coverage_50", "coverage_80", "coverage_95", "crps"]
    assert scores["nll"] == pytest.approx(float(-likely.exp().mean(0).log().mean()), abs=1e-4)
    assert scores["rmse"] == pytest.approx(
        float((mean - data.targets).square().mean().sqrt()), abs=1e-5
    )
    drawn = found.draws(found.key.child("coverage")).numpy()
    assert drawn.shape == (DRAWS, *data.targets.shape)
    for level in (0.5, 0.8, 0.95):
        low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2], axis=0, method="weibull")
        share = np.mean((low <= data.targets.numpy()) & (data.targets.numpy() <= high))
        assert scores[f"coverage_{round(100 * level)}"] == pytest.approx(share, abs=1e-6)


def test_predictive_intervals_of_a_fitted_line_cover(regression):
    result, _, _ = regression
    scores = result.scores(values(1000, "many"), draws=79)["all"]
    assert scores["rmse"] == pytest.approx(0.4, abs=0.1)
    assert scores["coverage_80"] == pytest.approx(0.8, abs=0.1)
    assert scores["coverage_95"] > 0.9


def test_few_draws_have_few_intervals(regression):
    result, _, tests = regression
    names = {
        count: set(result.scores(tests, draws=count)["all"]) - {"nll", "rmse", "crps"}
        for count in (1, 3, 9, 39)
    }
    assert names == {
        1: set(),
        3: {"coverage_50"},
        9: {"coverage_50", "coverage_80"},
        39: {"coverage_50", "coverage_80", "coverage_95"},
    }


def test_clients_and_all_of_them(any_of_them):
    result, _, tests = any_of_them
    scores = result.scores({**tests, "empty": tests["a"][:0]}, draws=10)
    assert list(scores) == [*tests, "all"]
    sizes = [len(part) for part in tests.values()]
    for name in {"nll", "brier", "accuracy", "coverage_50"} & set(scores["all"]):
        assert scores["all"][name] == pytest.approx(
            np.average([scores[who][name] for who in tests], weights=sizes), abs=1e-5
        ), name
    if "ece" in scores["all"]:
        assert scores["a"] == pytest.approx(result.scores(tests["a"], draws=10)["all"], abs=1e-5)
    lines = score_table(scores, heading="client").splitlines()
    assert lines[0].split() == ["client", *scores["all"]]
    assert [text.split()[0] for text in lines[2:]] == [*tests, "all"]


def test_the_same_seed_predicts_the_same_and_batches_do_not_matter(any_of_them):
    result, _, tests = any_of_them
    data = tests["a"]
    found = result.predictive(data.inputs, draws=6)
    small = Predictive(result.posterior, data.inputs, found.key, count=6, batch_size=7)
    assert torch.allclose(found.mean, small.mean, atol=1e-5)
    assert torch.allclose(
        found.log_likelihood(data.targets), small.log_likelihood(data.targets), atol=1e-4
    )
    state = torch.get_rng_state()
    assert torch.equal(found.draws(Key(0)), result.predictive(data.inputs, draws=6).draws(Key(0)))
    assert not torch.equal(found.draws(Key(0)), found.draws(Key(1)))
    assert not torch.equal(found.mean, result.predictive(data.inputs, draws=6, seed=1).mean)
    assert small.draws(Key(0)).shape == found.draws(Key(0)).shape
    assert torch.equal(state, torch.get_rng_state())


def test_whole_labels_of_a_coin_may_be_of_any_type(binary):
    result, clients, _ = binary
    data = clients["a"]
    found = result.predictive(data.inputs, draws=4)
    assert found.probabilities.shape == (4, 25, 2)
    for other in (data.targets.long(), data.targets.bool(), data.targets.double()):
        assert found.scores(other) == pytest.approx(found.scores(data.targets), abs=1e-6)


class Weighed:
    """A posterior with importance weights that depend on the rows and the key."""

    def log_weights(self, data, key, *, draws=1000):
        return (
            float(data.targets.std())
            * torch.randn(draws, generator=key.generator(), dtype=torch.float64).square()
        )


def test_k_hat_is_that_of_the_log_weights_of_all_rows(regression):
    result, clients, _ = regression
    assert math.isfinite(result.k_hat(clients, draws=100))
    stub = replace(result, algorithm=replace(result.algorithm, posterior=lambda state: Weighed()))
    pooled = concatenated(list(clients.values()))
    weights = Weighed().log_weights(pooled, Key(3, "k_hat"))
    assert (
        stub.k_hat({**clients, "empty": pooled[:0]}, seed=3)
        == stub.k_hat(pooled, seed=3)
        == k_hat(weights)
    )
    with pytest.raises(ArgumentError, match="at least 100"):
        stub.k_hat(clients, draws=99)


def test_arviz_takes_the_export(regression):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import matplotlib.pyplot as plt

        az = installed()

        result, _, tests = regression
        out = result.to_arviz(tests["a"], draws=100)
        summary = az.summary(out, var_names=["slope", "noise"])
        assert list(summary.index) == ["slope[0]", "slope[1]", "noise"]
        assert np.allclose(summary["mean"], [0.5, -1.0, 0.4], atol=0.2)
        loo = az.loo(out)
        assert loo.n_data_points == 30
        # Leaving a row out costs what one of about three parameters is worth.
        likely = torch.from_numpy(out.log_likelihood["y"].to_numpy()[0])
        assert float(loo.elpd_loo + loo.p_loo) == pytest.approx(
            float(likely.logsumexp(0).sum()) - 30 * math.log(100), abs=1e-3
        )
        assert 0.5 < float(loo.p_loo) < 6
        assert len(az.plot_forest(out, var_names=["slope"])[0].get_yticklabels()) == 2
        plt.close("all")


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda result, data: result.predictive(data.inputs, draws=0),
            ArgumentError,
            "draws: expected a whole number >= 1, found 0",
        ),
        (
            lambda result, data: result.predictive(data.inputs[:0]),
            ArgumentError,
            r"inputs \(B, ...\), found \(0, 2\)",
        ),
        (
            lambda result, data: result.predictive(data.inputs, draws=2).probabilities,
            PosteriorError,
            r"categorical or Bernoulli targets, found Normal of shape",
        ),
        (
            lambda result, data: result.predictive(data.inputs, draws=2).scores(
                data.targets[:, None]
            ),
            DataError,
            r"shape \(30,\), found \(30, 1\)",
        ),
        (
            lambda result, data: result.predictive(data.inputs, draws=2).scores(data.targets[:4]),
            DataError,
            r"shape \(30,\), found \(4,\)",
        ),
        (
            lambda result, data: result.predictive(data.inputs, draws=3).scores(
                data.targets * math.nan
            ),
            DataError,
            "values the model can draw",
        ),
        (
            lambda result, data: result.scores({"all": data}),
            ArgumentError,
            "clients of other names, found 'all'",
        ),
        (
            lambda result, data: result.scores({}),
            ArgumentError,
            "Result.scores: expected at least one row",
        ),
        (
            lambda result, data: result.scores(data[:0]),
            ArgumentError,
            "Result.scores: expected at least one row",
        ),
        (
            lambda result, data: result.k_hat({"a": data[:0]}),
            ArgumentError,
            "Result.k_hat: expected at least one row",
        ),
        (
            lambda result, data: result.scores(
                {"a": data, "b": Dataset(data.inputs[:, :1], data.targets)}
            ),
            DataError,
            "rows of one shape",
        ),
        (lambda result, data: concatenated([]), DataError, "rows of one shape"),
    ],
)
def test_bad_questions_are_refused(regression, call, error, words):
    result, _, tests = regression
    with pytest.raises(error, match=words):
        call(result, tests["a"])


@pytest.mark.parametrize(
    ("label", "words"),
    [
        (3.0, "whole labels 0 to [12], found 3 to 3"),
        (0.5, "found 0.5 to 0.5"),
        (-1.0, "found -1 to -1"),
    ],
)
def test_labels_that_no_class_has_are_refused(classes, label, words):
    result, _, tests = classes
    with pytest.raises(DataError, match=words):
        result.predictive(tests["a"].inputs, draws=2).log_likelihood(
            torch.full((len(tests["a"]),), label)
        )


def test_methods_that_cannot_answer_say_so(blobs):
    result, clients, tests = blobs
    with pytest.raises(
        ArgumentError, match="a posterior with log_weights, found DeclaredPosterior"
    ):
        result.k_hat(clients)
    plain = fitted(
        bf.fed_avg(bf.mlp([8, 3], Key(0)), training=bf.Training(steps=2)),
        {"a": tests["a"]},
        rounds=1,
    )
    for call in (plain.scores, plain.k_hat, lambda data: plain.predictive(data.inputs)):
        with pytest.raises(ArgumentError, match="a Bayesian method"):
            call(tests["a"])


class Given:
    """A posterior whose targets are of a given distribution."""

    def __init__(self, found):
        self.found = found

    def draw(self, key):
        return {}

    def observe(self, draw, inputs, key):
        return self.found


@pytest.mark.parametrize(
    ("found", "targets", "words"),
    [
        (
            dist.Normal(torch.zeros(3), 1.0).to_event(1),
            torch.zeros(3),
            r"one target a row, batch \(3,\), found \(\)",
        ),
        (
            dist.Categorical(torch.full((3, 2, 3), 0.5)).to_event(1),
            torch.ones(3, 2),
            r"one class a row, found \(2,\)",
        ),
        (
            dist.TransformedDistribution(
                dist.Normal(torch.zeros(3), 1.0), [dist.transforms.TanhTransform()]
            ),
            torch.zeros(3),
            "with a mean",
        ),
    ],
)
def test_distributions_that_cannot_be_scored_are_refused(found, targets, words):
    with pytest.raises(PosteriorError, match=words):
        Predictive(Given(found), torch.zeros(3, 1), Key(0), count=4).scores(targets)


def test_counts_are_scored_as_numbers():
    rate = torch.full((400,), 3.0)
    found = Predictive(Given(dist.Poisson(rate)), torch.zeros(400, 1), Key(0), count=39)
    scores = found.scores(torch.poisson(rate, generator=Key(0, "counts").generator()).long())
    assert scores["rmse"] == pytest.approx(math.sqrt(3), abs=0.2)
    # Ends of the interval are counted, so whole numbers are covered more often.
    assert 0.8 <= scores["coverage_80"] <= 0.97

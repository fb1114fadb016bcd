"""Partial pooling and fusion in one round: closed forms of normal models, and settings at which
they are simpler methods.
"""

from itertools import product

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.distributions import DirichletMultinomial
from pyro.infer import MCMC, NUTS
from torch import nn

import bayesfed as bf
from bayesfed.algorithms.personal.bayes.objective import sds
from bayesfed.algorithms.personal.pooled.shares import TOTALS
from bayesfed.algorithms.personal.pooled.unlabelled import expected_counts
from bayesfed.algorithms.personal.pooled.variational import nearest
from bayesfed.compress.codecs import Cast
from bayesfed.errors import ArgumentError, ClientError
from bayesfed.federated.core.owners import owned
from bayesfed.keys import Key
from bayesfed.trees import parameters
from tests.conftest import tree_equal
from tests.support import recipes

NOISE = 0.5


def hierarchy(clients, count):
    """Linear models with normal targets, whose slopes and offsets differ by client."""
    noise, data, truth = Key(0, "hierarchy").generator(), {}, []
    for number in range(clients):
        inputs = torch.randn(count + number % 5, 2, generator=noise, dtype=torch.float64)
        theta = torch.tensor([1.0, -0.5, 0.3], dtype=torch.float64) + 0.6 * torch.randn(
            3, generator=noise, dtype=torch.float64
        )
        targets = (
            inputs @ theta[:2]
            + theta[2]
            + NOISE * torch.randn(len(inputs), generator=noise, dtype=torch.float64)
        )
        data[f"client-{number:03}"], truth = bf.Dataset(inputs, targets[:, None]), [*truth, theta]
    return data, torch.stack(truth)


def line():
    net = nn.Linear(2, 1).double()
    return net.requires_grad_()


def design(data):
    return torch.cat([data.inputs, torch.ones(len(data), 1, dtype=torch.float64)], 1)


def flat(tree):
    return torch.cat([leaf.flatten() for leaf in tree.values()])


def fit(algorithm, data, rounds=1):
    return bf.run(algorithm, data, rounds=rounds, progress=False)


def test_posteriors_and_population_are_those_of_the_conjugate_hierarchy():
    data, _ = hierarchy(4, 5)
    data["client-empty"] = data["client-000"][:0]
    net, work = line(), bf.Training(steps=250, batch_size=None, optimiser=bf.Sgd(0.1))
    begun = flat(parameters(net))
    result = fit(
        bf.pooled(
            net,
            prior="entry",
            initial_sd=0.7,
            likelihood=bf.Normal(NOISE),
            training=work,
            codec=Cast(64),
        ),
        data,
    )
    means, variances = [], []
    for name, part in list(data.items())[:4]:
        x = design(part)
        covariance = (x.mT @ x / NOISE**2 + torch.eye(3) / 0.7**2).inverse()
        mean = covariance @ (x.mT @ part.targets[:, 0] / NOISE**2 + begun / 0.7**2)
        own = result.clients[name].posterior
        assert torch.allclose(flat(own.mean), mean, atol=1e-5)
        assert torch.allclose(own.root @ own.root.mT, covariance, atol=1e-5)
        assert torch.allclose(flat(own.sd), covariance.diagonal().sqrt(), atol=1e-5)
        means.append(mean)
        variances.append(covariance.diagonal())
    centre, state = torch.stack(means).mean(0), result.snapshot.state
    spread = torch.stack([(m - centre) ** 2 for m in means]).mean(0)
    variance = spread / (1 - torch.stack(variances).mean(0) / 0.7**2)
    assert torch.allclose(
        torch.cat([state["mean/weight"].flatten(), state["mean/bias"]]), centre, atol=1e-5
    )
    assert torch.allclose(flat(sds(state)).square(), variance, atol=1e-5)
    unseen = result.clients["client-empty"].posterior
    assert torch.allclose(flat(unseen.mean), centre, atol=1e-5)
    assert torch.allclose(unseen.root.square(), variance, atol=1e-5)
    draws = torch.stack([flat(own.draw(Key(number, "draws"))) for number in range(500)])
    assert torch.allclose(torch.cov(draws.mT), own.root @ own.root.mT, atol=0.03)


@pytest.mark.slow
def test_widths_of_the_population_are_found_and_intervals_cover():
    data, truth = hierarchy(40, 6)
    work = bf.Training(steps=20, batch_size=None, optimiser=bf.Sgd(0.1))
    result = fit(
        bf.pooled(
            line(),
            prior="layer",
            initial_sd=1.5,
            likelihood=bf.Normal(NOISE),
            training=work,
            codec=Cast(64),
        ),
        data,
        rounds=6,
    )
    assert torch.allclose(
        flat(sds(result.snapshot.state)),
        torch.full((3,), 0.6, dtype=torch.float64),
        atol=0.15,
    )
    own = [result.clients[name].posterior for name in data]
    inside = [
        ((flat(one.mean) - true).abs() < 1.645 * flat(one.sd)).double().mean()
        for one, true in zip(own, truth, strict=True)
    ]
    assert 0.83 < torch.stack(inside).mean() < 0.97


def test_limits_are_simpler_methods_bit_for_bit():
    data, work = recipes.rows(), bf.Training(steps=3, batch_size=8)
    begun = recipes.net()
    nothing = fit(bf.pooled(begun, local=lambda name, module: False, training=work), data, rounds=2)
    equal = fit(bf.equal_weights(bf.fed_avg(begun, training=work)), data, rounds=2)
    assert tree_equal(nothing.snapshot.state, equal.snapshot.state)
    assert nothing.algorithm.posterior is None
    narrow = fit(bf.pooled(begun, initial_sd=0.0, prior="fixed", training=work), data, rounds=2)
    body = fit(bf.equal_weights(bf.fed_babu(begun, steps=1, training=work)), data, rounds=2)
    assert tree_equal(
        {name: narrow.snapshot.state[name] for name in body.snapshot.state}, body.snapshot.state
    )
    assert tree_equal(
        {name: narrow.model.parameters[name] for name in parameters(begun)},
        body.model.parameters | parameters(begun) | owned(body.snapshot.state, "model"),
    )
    diagonal = fit(bf.pooled(begun, local="offsets", covariance="diagonal", training=work), data)
    assert diagonal.clients["client-0"].posterior.root.shape == (16,)


def test_shares_of_classes_are_conjugate_and_leave_the_network_that_of_fed_avg():
    data, work, net = recipes.unequal(), bf.Training(steps=3, batch_size=8), recipes.net()
    counts = torch.stack(
        [torch.bincount(part.targets, minlength=3) for part in data.values()]
    ).double()
    data["client-empty"] = data["client-0"][:0]
    result = fit(bf.pooled(net, local="classes", training=work), data, rounds=2)
    plain = fit(bf.fed_avg(net, training=work), data, rounds=2)
    state = result.snapshot.state
    assert tree_equal(result.model.parameters, plain.model.parameters)
    base = (counts.sum(0) + 1) / (counts.sum() + 3)
    assert torch.allclose(state["shares/base"].double(), base)
    likelihoods = [
        sum(DirichletMultinomial(total * base, n.sum()).log_prob(n) for n in counts)
        for total in TOTALS
    ]
    assert state["shares/total"] == TOTALS[torch.stack(likelihoods).argmax()]
    own = result.clients["client-0"].model
    assert torch.allclose(own.concentration.double(), counts[0] + state["shares/total"] * base)
    inputs = data["client-0"].inputs
    p = plain.model(inputs).softmax(1) * own.shares / base
    assert torch.allclose(own(inputs).softmax(1), (p / p.sum(1, keepdim=True)).float(), atol=1e-6)
    assert torch.equal(result.clients["client-empty"].model(inputs), plain.model(inputs))
    unseen = result.model.adapted(inputs, weight=1.0)
    expected = expected_counts(
        plain.model(inputs).softmax(1), state["shares/base"], state["shares/total"] * base
    )
    assert torch.allclose(
        unseen.concentration.double(), expected + state["shares/total"] * base, atol=1e-5
    )
    assert torch.equal(result.model.adapted(inputs[:0])(inputs), plain.model(inputs))
    with pytest.raises(ArgumentError, match=r"adapted, weight: expected a number in \(0, 1\]"):
        result.model.adapted(inputs, weight=0.0)
    still = fit(bf.pooled(net, local="classes", prior="fixed", shared="fixed", training=work), data)
    assert tree_equal(still.model.parameters, parameters(net))
    assert still.snapshot.state["shares/total"] == 1


@pytest.mark.parametrize(("total", "most"), [(0.3, 0.3), (1.0, 0.25), (3.0, 0.2)])
def test_classes_expected_without_labels_are_near_those_of_all_labellings(total, most):
    noise, base = (
        Key(0, "unlabelled").generator(),
        torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64),
    )
    labellings = torch.tensor(list(product(range(3), repeat=5)))
    counts = torch.nn.functional.one_hot(labellings, 3).sum(1).double()
    # A labelling, not its counts: without the multinomial coefficient.
    prior = (torch.lgamma(total * base + counts) - torch.lgamma(total * base)).sum(1)
    off, without = [], []
    for _ in range(20):
        probabilities = torch.softmax(
            2 * torch.randn(5, 3, generator=noise, dtype=torch.float64), 1
        )
        likely = (probabilities / base)[torch.arange(5), labellings].log().sum(1)
        exact = torch.softmax(likely + prior, 0) @ counts
        ours = expected_counts(probabilities, base, total * base)
        assert float(ours.sum()) == pytest.approx(5)
        off.append((ours - exact).abs().mean())
        without.append((probabilities.sum(0) - exact).abs().mean())
    assert sum(off) < most * sum(without)
    certain = torch.eye(3, dtype=torch.float64)[[0, 0, 2]]
    assert torch.equal(
        expected_counts(certain, base, total * base),
        torch.tensor([2.0, 0.0, 1.0], dtype=torch.float64),
    )


def test_the_nearest_gaussian_is_stationary_and_wider_than_that_of_laplace():
    inputs, targets = (
        torch.tensor([[2.0], [1.0], [3.0]], dtype=torch.float64),
        torch.tensor([1, 1, 0]),
    )
    jacobian = torch.stack([torch.zeros_like(inputs), inputs], 1)
    mean, root = nearest(
        jacobian,
        torch.zeros(3, 2, dtype=torch.float64),
        targets,
        torch.zeros(1, dtype=torch.float64),
        Key(0, "draws"),
    )
    u = torch.linspace(-8, 8, 4001, dtype=torch.float64)
    q = torch.distributions.Normal(mean, root[0, 0]).log_prob(u).softmax(0)
    p = torch.sigmoid(inputs * u)
    assert float(mean) == pytest.approx(float((inputs[:, 0] * (targets - p @ q)).sum()), abs=0.03)
    assert float(root) ** -2 == pytest.approx(
        float(1 + inputs[:, 0] ** 2 @ ((p * (1 - p)) @ q)), rel=0.03
    )
    exact = (-(u**2) / 2 + torch.where(targets[:, None] == 1, p, 1 - p).log().sum(0)).softmax(0)
    sd = ((u - u @ exact) ** 2 @ exact).sqrt()
    most = p[:, exact.argmax()]
    narrow = (1 + (inputs[:, 0] ** 2 * most * (1 - most)).sum()) ** -0.5
    assert narrow < float(root) < 1.02 * sd


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore::torch.jit.TracerWarning", "ignore:.torch.jit:DeprecationWarning"
)
def test_logistic_posteriors_are_near_those_of_the_whole_hierarchy():
    """NUTS also draws the population, under wide priors; `pooled` takes its most likely value, so
    its sds are a little smaller.
    """
    noise, data = Key(0, "logistic").generator(), {}
    for number in range(8):
        inputs = torch.randn(16 + 5 * number, 4, generator=noise)
        theta = torch.tensor([1.0, -1.0, 0.5, 0.0, 0.3]) + 0.6 * torch.randn(5, generator=noise)
        labels = (
            torch.rand(len(inputs), generator=noise) < (inputs @ theta[:4] + theta[4]).sigmoid()
        )
        data[f"client-{number}"] = bf.Dataset(inputs, labels.long())
    x = torch.nn.utils.rnn.pad_sequence(
        [torch.cat([part.inputs, torch.ones(len(part), 1)], 1) for part in data.values()],
        batch_first=True,
    )
    y = torch.nn.utils.rnn.pad_sequence(
        [part.targets.float() for part in data.values()], batch_first=True
    )
    there = x[..., 4] == 1

    def model():
        mean = pyro.sample("mean", dist.Normal(torch.zeros(5), 3.0).to_event(1))
        widths = pyro.sample("widths", dist.HalfNormal(torch.ones(2)).to_event(1))[[0, 0, 0, 0, 1]]
        theta = mean + widths * pyro.sample("u", dist.Normal(torch.zeros(8, 5), 1.0).to_event(2))
        pyro.sample(
            "y",
            dist.Bernoulli(logits=(x @ theta[..., None])[..., 0]).mask(there).to_event(2),
            obs=y,
        )

    pyro.set_rng_seed(0)
    chain = MCMC(
        NUTS(model, jit_compile=True, ignore_jit_warnings=True, max_tree_depth=6),
        num_samples=500,
        warmup_steps=250,
        disable_progbar=True,
    )
    chain.run()
    draws = chain.get_samples()
    theta = draws["mean"][:, None] + draws["widths"][:, None, [0, 0, 0, 0, 1]] * draws["u"]
    work = bf.Training(steps=30, batch_size=None, optimiser=bf.Sgd(1.0))
    options = {
        "local": lambda name, module: True,
        "initial_sd": 1.0,
        "training": work,
        "approximation": "variational",
    }
    result = fit(bf.pooled(TwoLogits(), **options), data, rounds=10)
    own = [result.clients[name].posterior for name in data]
    off = (torch.stack([flat(one.mean) for one in own]) - theta.mean(0)) / theta.std(0)
    ratio = torch.stack([flat(one.sd) for one in own]) / theta.std(0)
    assert off.square().mean().sqrt() < 0.25
    assert off.abs().max() < 0.7
    assert 0.8 < ratio.mean() < 1.1
    assert ratio.min() > 0.5


class TwoLogits(nn.Module):
    """A logistic regression: the first of two logits is 0."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(4, 1)

    def forward(self, inputs):
        logit = self.line(inputs)
        return torch.cat([torch.zeros_like(logit), logit], 1)


def test_numbers_have_the_same_posterior_by_both_approximations():
    data, _ = hierarchy(2, 4)
    work = bf.Training(steps=3, batch_size=None, optimiser=bf.Sgd(0.1))
    both = [
        fit(
            bf.pooled(
                line(),
                likelihood=bf.Normal(NOISE),
                training=work,
                approximation=name,
                codec=Cast(64),
            ),
            data,
        )
        for name in ("laplace", "variational")
    ]
    assert torch.equal(*(result.clients["client-000"].posterior.root for result in both))


class Odd(nn.Module):
    """Registers its output layer first."""

    def __init__(self, body=6):
        super().__init__()
        self.out, self.body = nn.Linear(body, 3), nn.Linear(6, body)

    def forward(self, inputs):
        return self.out(torch.relu(self.body(inputs)))


class Learned(nn.Module):
    """Has a parameter of its own, and what has none after its last layer."""

    def __init__(self):
        super().__init__()
        self.shift, self.body, self.out = (
            nn.Parameter(torch.zeros(6)),
            nn.Linear(6, 6),
            nn.Sequential(nn.Linear(6, 3), nn.LogSoftmax(1)),
        )

    def forward(self, inputs):
        return self.out(torch.relu(self.body(inputs + self.shift)))


def test_the_head_is_the_layer_that_is_used_last():
    data, work = recipes.rows(), bf.Training(steps=1)
    for make, last in product((bf.pooled, bf.fed_per, bf.fed_babu, bf.one_round), ("out", "body")):
        if last == "out":
            fit(make(Learned(), training=work), data)
        else:
            with pytest.raises(
                ClientError, match="the layer registered last, 'body', to be used last, found 'out'"
            ):
                fit(make(Odd(), training=work), data)
    with pytest.raises(ClientError, match=r"expected outputs \(B, 6\).*, found \(B, 3\)"):
        fit(bf.pooled(Odd(), local="classes", training=work), data)
    # Three outputs are three outputs.
    fit(bf.pooled(Odd(3), local="classes", training=PRIOR), data)


PRIOR = bf.Training(steps=1, prior_precision=1.0, observations=48)


def without_head(net):
    for name, value in net.named_parameters():
        value.requires_grad_(not name.startswith("5"))
    return net


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (
            lambda net: bf.pooled(net, local="body"),
            "'head', 'offsets', 'factors', 'classes' or a predicate",
        ),
        (lambda net: bf.pooled(net, local="factors", factors=0), "a whole number >= 1"),
        (
            lambda net: bf.pooled(net, local="factors", covariates="targets"),
            "'inputs' or None",
        ),
        (lambda net: bf.pooled(net, covariates="inputs"), "'inputs' with local='factors'"),
        (
            lambda net: bf.pooled(nn.Flatten(), local="factors"),
            "a trained linear or convolution layer",
        ),
        (lambda net: bf.pooled(net, prior="wide"), "one of 'layer', 'entry', 'fixed'"),
        (
            lambda net: bf.pooled(net, local="classes", likelihood=bf.Normal()),
            "a likelihood of classes",
        ),
        (lambda net: bf.pooled(net, approximation="nearest"), "one of 'laplace', 'variational'"),
        (
            lambda net: bf.pooled(net, approximation="variational", covariance="diagonal"),
            "covariance='full'",
        ),
        (lambda net: bf.pooled(net, initial_sd=float("inf")), r"a number in \[0, inf\)"),
        (lambda net: bf.pooled(net, covariance="low"), "one of 'full', 'diagonal'"),
        (
            lambda net: bf.pooled(bf.mlp([6, 400, 10], Key(0)), covariance="full"),
            "2,000 own parameters",
        ),
        (
            lambda net: bf.pooled(net, training=bf.Training(optimiser=bf.Adam())),
            "Sgd without momentum",
        ),
        (lambda net: bf.pooled(net, training=PRIOR), "the prior of this method alone"),
        (
            lambda net: bf.pooled(net, local="factors", training=PRIOR),
            "the prior of this method alone",
        ),
        (
            lambda net: bf.pooled(without_head(net)),
            "local='head': expected own parameters, found none that is trained",
        ),
        (
            lambda net: bf.pooled(nn.Linear(6, 3, bias=False), local="offsets"),
            "local='offsets': expected own parameters",
        ),
        (lambda net: bf.one_round(net, training=PRIOR), "the prior of this method alone"),
        (
            lambda net: bf.one_round(without_head(net)),
            r"a last layer that is trained, found frozen \['5.weight', '5.bias'\]",
        ),
        (
            lambda net: bf.pooled(nn.Sequential(nn.BatchNorm1d(6, track_running_stats=False), net)),
            'norm="group"',
        ),
        (
            lambda net: bf.one_round(
                nn.Sequential(nn.BatchNorm1d(6, track_running_stats=False), net)
            ),
            'norm="group"',
        ),
        (lambda net: bf.one_round(net, fusion="sum"), "one of 'laplace', 'fisher', 'average'"),
        (lambda net: bf.one_round(net, prior_precision=0), r"a number in \(0, inf\)"),
        (lambda net: bf.one_round(bf.mlp([6, 300, 10], Key(0))), "answers of at most"),
    ],
)
def test_wrong_settings_are_refused(make, match):
    with pytest.raises(ArgumentError, match=match):
        make(recipes.net())

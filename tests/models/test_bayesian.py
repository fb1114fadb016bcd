"""Any network as a Pyro model: what it samples, what it leaves alone, and what Pyro's own guides
make of it.
"""

import math

import pyro
import pytest
import torch
from pyro import poutine
from pyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO
from pyro.infer.autoguide import AutoDiagonalNormal, AutoNormal
from pyro.infer.autoguide.initialization import init_to_sample, init_to_value
from pyro.poutine.util import prune_subsample_sites
from torch import nn
from torch.func import functional_call

import bayesfed as bf
from bayesfed.errors import ArgumentError, PriorError
from bayesfed.keys import Key, forked
from bayesfed.models import (
    Gaussian,
    Horseshoe,
    Laplace,
    ProductGaussian,
    SpikeAndSlab,
    bayesian,
    weight_matrices,
)
from bayesfed.trees import parameters
from tests.conftest import tree_equal

PRIORS = {
    "Gaussian": Gaussian(1.0),
    "Laplace": Laplace(0.3),
    "Horseshoe": Horseshoe(0.1),
    "SpikeAndSlab": SpikeAndSlab(0.3, 0.1, 1.0),
    "ProductGaussian": lambda name: (
        ProductGaussian(2, 1.0) if name.endswith("weight") else Gaussian(1.0)
    ),
}


@pytest.fixture(autouse=True)
def _own_parameters():
    """Guides write to Pyro's global store; no test sees another's."""
    pyro.clear_param_store()
    yield
    pyro.clear_param_store()


@pytest.fixture
def images():
    generator = Key(0, "images").generator()
    return torch.randn(6, 1, 8, 8, generator=generator), torch.randint(3, (6,), generator=generator)


def small(dtype=torch.float32):
    with forked(Key(0, "small")):
        return nn.Sequential(
            nn.Conv2d(1, 2, 3, stride=3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)
        ).to(dtype)


def traced(model, *args, **kwargs):
    with forked(Key(0, "trace")):
        return prune_subsample_sites(poutine.trace(model).get_trace(*args, **kwargs))


# The model


def test_weights_are_sampled_under_their_names_and_used(images):
    inputs, targets = images
    net = small()
    trace = traced(bayesian(net, Gaussian(1.0)), inputs, targets)
    weights = {name: site["value"] for name, site in trace.iter_stochastic_nodes()}
    assert list(weights) == ["0.weight", "0.bias", "3.weight", "3.bias"]
    assert list(trace.observation_nodes) == ["y"]
    loss = nn.functional.cross_entropy(
        functional_call(net, weights, (inputs,)), targets, reduction="sum"
    )
    squares = sum(weight.square().sum() for weight in weights.values())
    count = sum(weight.numel() for weight in weights.values())
    assert float(trace.log_prob_sum()) == pytest.approx(
        float(-loss - squares / 2 - count * math.log(2 * math.pi) / 2), rel=1e-5
    )


def test_unchosen_parameters_are_what_they_were_when_declared(images):
    inputs, _ = images
    net = small()
    before = parameters(net)
    model = bayesian(net, Gaussian(1.0), where=weight_matrices)
    assert list(model.priors) == ["0.weight", "3.weight"]
    with torch.no_grad():
        net[3].bias += 1
    trace = traced(model, inputs)
    weights = {name: trace.nodes[name]["value"] for name in trace.stochastic_nodes}
    logits = functional_call(net, {**before, **weights}, (inputs,))
    torch.testing.assert_close(trace.nodes["y"]["fn"].logits, logits.log_softmax(-1))


def test_a_function_of_the_name_gives_each_parameter_its_own_prior(images):
    model = bayesian(small(), PRIORS["ProductGaussian"])
    assert {name: type(prior) for name, prior in model.priors.items()} == {
        "0.weight": ProductGaussian,
        "0.bias": Gaussian,
        "3.weight": ProductGaussian,
        "3.bias": Gaussian,
    }
    assert traced(model, images[0]).nodes["0.weight"]["value"].shape == (2, 1, 3, 3)


def test_the_likelihood_is_the_one_given_and_scale_counts_rows(images):
    inputs, targets = images
    model = bayesian(small(), Gaussian(1.0), likelihood=bf.Categorical(temperature=0.5))
    traces = [traced(model, inputs, targets), traced(model, inputs, targets, scale=3.0)]
    for trace in traces:
        trace.compute_log_prob()
    expected = float(model.likelihood.pointwise(traces[0].nodes["y"]["fn"].logits, targets).sum())
    assert [float(trace.nodes["y"]["log_prob_sum"]) for trace in traces] == pytest.approx(
        [2 * expected, 6 * expected]
    )
    assert traced(bayesian(small(), Gaussian(1.0), likelihood=bf.Normal()), inputs).nodes["y"][
        "value"
    ].shape == (6, 3)


def test_a_tied_parameter_is_one():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, tokens):
            return self.head(self.embedding(tokens))

    model = bayesian(Tied(), Gaussian(1.0))
    trace = traced(model, torch.arange(4))
    assert list(model.priors) == ["embedding.weight"]
    weight = trace.nodes["embedding.weight"]["value"]
    torch.testing.assert_close(
        trace.nodes["y"]["fn"].logits, (weight[:4] @ weight.T).log_softmax(-1)
    )


class Counting(nn.Module):
    """Counts its calls in place, in a buffer that is no running statistic."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, inputs):
        self.calls += 1
        return self.layer(inputs)


def test_the_net_and_pyros_parameters_are_left_alone():
    net, inputs = Counting(), torch.randn(4, 3)
    before, model = parameters(net), bayesian(net, Horseshoe(0.1))
    own = dict(net.named_parameters())
    for targets in (None, torch.zeros(4, dtype=torch.long)):
        traced(model, inputs, targets)
    assert not list(pyro.get_param_store())
    guide = AutoNormal(model)
    with forked(Key(0, "step")):
        SVI(model, guide, pyro.optim.Adam({"lr": 0.1}), Trace_ELBO()).step(
            inputs, torch.zeros(4, dtype=torch.long)
        )
    assert tree_equal(parameters(net), before)
    assert all(value is own[name] and value.grad is None for name, value in net.named_parameters())
    assert int(net.calls) == 0
    assert all(name.startswith("AutoNormal.") for name in pyro.get_param_store())


# Pyro's guides


@pytest.mark.parametrize("guide", [AutoNormal, AutoDiagonalNormal])
@pytest.mark.parametrize("prior", PRIORS)
def test_automatic_guides_and_predictive_take_every_prior(prior, guide, images):
    inputs, targets = (images[0].double(), images[1])
    model = bayesian(small(torch.float64), PRIORS[prior])
    with forked(Key(0, prior)):
        approximation = guide(model, init_loc_fn=init_to_sample)
        svi = SVI(model, approximation, pyro.optim.Adam({"lr": 0.05}), Trace_ELBO())
        losses = [svi.step(inputs, targets) for _ in range(30)]
        draws = Predictive(
            model, guide=approximation, num_samples=3, return_sites=["y", "0.weight", "3.weight"]
        )(inputs)
        prior_draws = Predictive(model, num_samples=3)(inputs)
    assert all(math.isfinite(loss) for loss in losses)
    assert sum(losses[-10:]) < sum(losses[:10])
    assert draws["y"].shape == prior_draws["y"].shape == (3, 6)
    assert draws["0.weight"].dtype == torch.float64
    assert draws["0.weight"].numel() == 3 * 2 * 9
    assert draws["3.weight"].isfinite().all()


def exact(inputs, targets, noise, sd):
    """Return mean and precision of the posterior of (weight, bias) under ``y = x w + b + noise``, w
    and b N(0, sd^2).
    """
    design = torch.cat([inputs, torch.ones(len(inputs), 1, dtype=inputs.dtype)], 1)
    precision = (
        design.T @ design / noise**2 + torch.eye(design.shape[1], dtype=inputs.dtype) / sd**2
    )
    return torch.linalg.solve(precision, design.T @ targets[:, 0] / noise**2), precision


@pytest.fixture
def regression():
    generator = Key(0, "regression").generator()
    inputs = torch.randn(40, 3, generator=generator, dtype=torch.float64)
    noise = 0.5 * torch.randn(40, 1, generator=generator, dtype=torch.float64)
    targets = inputs @ torch.tensor([[1.0], [-2.0], [0.5]], dtype=torch.float64) + 0.3 + noise
    return (
        bayesian(nn.Linear(3, 1).double(), Gaussian(0.8), likelihood=bf.Normal(0.5)),
        inputs,
        targets,
    )


@pytest.mark.slow
def test_auto_normal_finds_the_conjugate_posterior(regression):
    """The best mean field of a Gaussian has its mean, and the inverse roots of its precision's
    diagonal for sds.
    """
    model, inputs, targets = regression
    mean, precision = exact(inputs, targets, 0.5, 0.8)
    with forked(Key(0, "svi")):
        guide = AutoNormal(model, init_scale=0.1)
        svi = SVI(model, guide, pyro.optim.ClippedAdam({"lr": 0.1, "lrd": 0.985}), Trace_ELBO())
        for _ in range(500):
            svi.step(inputs, targets)
    found, sds = (
        torch.cat([table.weight[0], table.bias]).detach() for table in (guide.locs, guide.scales)
    )
    torch.testing.assert_close(found, mean, atol=0.015, rtol=0)
    torch.testing.assert_close(sds, precision.diagonal().rsqrt(), atol=0, rtol=0.2)


@pytest.mark.slow
def test_nuts_finds_it_too(regression):
    model, inputs, targets = regression
    mean, precision = exact(inputs, targets, 0.5, 0.8)
    with forked(Key(0, "nuts")):
        mcmc = MCMC(NUTS(model), num_samples=100, warmup_steps=50, disable_progbar=True)
        mcmc.run(inputs, targets)
    draws = torch.cat([mcmc.get_samples()["weight"][:, 0], mcmc.get_samples()["bias"]], 1)
    torch.testing.assert_close(draws.mean(0), mean, atol=0.04, rtol=0)
    torch.testing.assert_close(
        draws.std(0), torch.linalg.inv(precision).diagonal().sqrt(), atol=0, rtol=0.3
    )


def test_the_nets_own_parameters_are_a_start(images):
    net = small()
    model = bayesian(net, Gaussian(1.0))
    with forked(Key(0, "start")):
        guide = AutoNormal(model, init_loc_fn=init_to_value(values=parameters(net)))
        guide(*images)
    assert torch.equal(getattr(guide.locs, "3").weight, net[3].weight)


# Errors


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: bayesian(nn.Linear(2, 2), Gaussian(1.0), where=lambda name, module: False),
            r"chooses a parameter, found none of \['weight', 'bias'\]",
        ),
        (
            lambda: bayesian(nn.ReLU(), Gaussian(1.0)),
            r"bayesian: expected a predicate that chooses a parameter, found none of \[\]",
        ),
        (
            lambda: bayesian(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), Gaussian(1.0)),
            "network without running statistics, found",
        ),
        (
            lambda: bayesian(nn.Linear(2, 2), lambda name: None),
            "expected a WeightPrior, found NoneType",
        ),
        (
            lambda: bayesian(nn.Linear(2, 2), pyro.distributions.Normal(0.0, 1.0)),
            "expected a WeightPrior, found Normal",
        ),
    ],
)
def test_what_cannot_be_declared_is_refused(call, words):
    with pytest.raises(PriorError, match=words):
        call()


def test_a_prior_of_supports_is_no_prior_of_weights():
    words = "expected a WeightPrior or a function or None, found a Prior; try .* or declare"
    with pytest.raises(ArgumentError, match=f"bayesian, prior: {words}"):
        bayesian(nn.Linear(2, 2), bf.Prior())


def test_a_net_takes_one_set_of_weights_at_a_time(images):
    with forked(Key(0, "parallel")), pytest.raises(RuntimeError, match="invalid for input of size"):
        Predictive(bayesian(small(), Gaussian(1.0)), num_samples=3, parallel=True)(images[0])


@pytest.mark.parametrize("name", PRIORS)
def test_every_prior_trains_and_predicts(name, images):
    """Weights that a prior computes from others are recorded as observations by Pyro, and
    are none.
    """
    inputs, targets = images
    data = bf.Dataset(inputs, targets)
    model = bayesian(small(), PRIORS[name])
    algorithm = bf.federated_svi(
        model,
        AutoNormal,
        fusion=bf.SummedGradients(0.03),
        scale="local",
        observations=6,
        example=data,
        training=bf.Training(steps=2, batch_size=None),
    )
    result = bf.run(algorithm, {"a": data[:3], "b": data[3:]}, rounds=1, progress=False)
    scores = result.scores(data)["all"]
    assert 0 <= scores["accuracy"] <= 1
    assert math.isfinite(scores["nll"])

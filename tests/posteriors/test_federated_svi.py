"""Federated SVI: any model, any guide, rules that say what they serve; nothing global is
touched.
"""

from dataclasses import replace
from pathlib import Path

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import RenyiELBO, Trace_ELBO, TraceEnum_ELBO, TraceMeanField_ELBO, config_enumerate
from pyro.infer.autoguide import (
    AutoDiagonalNormal,
    AutoGuideList,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
)
from pyro.nn import PyroModule, PyroParam, PyroSample
from torch import nn

import bayesfed as bf
from bayesfed.data import Dataset
from bayesfed.errors import ArgumentError, PosteriorError
from bayesfed.inference.variational.families import (
    ExponentFamily,
    MultivariateNormalFamily,
    NormalFamily,
)
from bayesfed.inference.variational.fusion import (
    PVI,
    MeanParameters,
    ProductOfExperts,
    ReverseKL,
    SummedGradients,
    Wasserstein,
)
from bayesfed.keys import Key
from benchmarks.parts.fidelity import problems as fp

ROOT = Path(__file__).parents[2]
RULES = {
    "mean": (MeanParameters(), "global"),
    "wasserstein": (Wasserstein(), "local"),
    "reverse KL": (ReverseKL(), "global"),
    "experts": (ProductOfExperts(), "local"),
    "pvi": (PVI(damping=0.5), "local"),
    "gradients": (SummedGradients(0.05), "local"),
}
# Of what is alike for all, two kinds of payload are tried every time.
SOME_RULES = [
    pytest.param(rule, marks=[pytest.mark.slow] * (rule not in ("wasserstein", "pvi")))
    for rule in RULES
]


def line(inputs, targets=None):
    slope = pyro.sample("slope", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    noise = pyro.sample("noise", dist.LogNormal(-1.0, 0.5))
    with pyro.plate("data", len(inputs)):
        return pyro.sample("y", dist.Normal(inputs @ slope, noise), obs=targets)


def rows(count, name="rows"):
    generator = Key(0, name).generator()
    inputs = torch.randn(count, 2, generator=generator)
    return Dataset(
        inputs, inputs @ torch.tensor([0.5, -1.0]) + 0.4 * torch.randn(count, generator=generator)
    )


def clients(count=3, each=20):
    data = rows(count * each)
    return {f"client-{k}": data[each * k : each * (k + 1)] for k in range(count)}, data


def fitted(guide=AutoNormal, rule="pvi", *, model=line, rounds=2, parts=None, run=None, **changes):
    found, data = parts or clients()
    fusion, scale = RULES[rule] if isinstance(rule, str) else (rule, "local")
    work = {
        name: changes.pop(name)
        for name in ("steps", "batch_size", "optimiser", "schedule")
        if name in changes
    }
    training = replace(bf.Training(steps=10, batch_size=None, optimiser=bf.Adam(0.02)), **work)
    settings = {
        "fusion": fusion,
        "scale": scale,
        "observations": len(data),
        "example": data[:3],
        "training": training,
    }
    algorithm = bf.federated_svi(model, guide, **{**settings, **changes})
    return bf.run(algorithm, found, rounds=rounds, progress=False, **(run or {}))


def same(left, right):
    return left.keys() == right.keys() and all(
        torch.equal(leaf, right[name]) for name, leaf in left.items()
    )


@pytest.mark.parametrize("rule", SOME_RULES)
def test_the_store_and_the_users_objects_stay_as_they_were(rule):
    def guide(inputs, targets=None):
        loc = pyro.param("slope_loc", lambda: torch.randn(2))
        scale = pyro.param(
            "slope_scale", torch.full((2,), 0.3), constraint=dist.constraints.positive
        )
        pyro.sample("slope", dist.Normal(loc, scale).to_event(1))

    def model(inputs, targets=None):
        with pyro.poutine.block(hide=["noise"]):
            return line_without_noise(inputs, targets)

    def line_without_noise(inputs, targets):
        slope = pyro.sample("slope", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("data", len(inputs)):
            return pyro.sample("y", dist.Normal(inputs @ slope, 0.4), obs=targets)

    store = pyro.get_param_store()
    store.clear()
    pyro.param("slope_loc", torch.tensor([7.0, 8.0]))
    before, stream = {name: value.clone() for name, value in store.items()}, torch.get_rng_state()
    first, second = fitted(guide, rule, model=model), fitted(guide, rule, model=model)
    assert same(before, dict(store.items()))
    assert torch.equal(stream, torch.get_rng_state())
    assert same(first.snapshot.state, second.snapshot.state)
    instance = AutoNormal(line)
    fitted(instance, rule)
    held = {name: value.clone() for name, value in instance.named_parameters()}
    result = fitted(instance, rule)
    assert same(held, dict(instance.named_parameters()))
    assert same(fitted(AutoNormal, rule).snapshot.state, result.snapshot.state)
    store.clear()


@pytest.mark.parametrize(
    ("guide", "blocks", "points", "opaque"),
    [
        (AutoNormal, ["slope", "noise"], 0, 0),
        (AutoDiagonalNormal, ["_AutoDiagonalNormal_latent"], 0, 0),
        (AutoMultivariateNormal, ["_AutoMultivariateNormal_latent"], 0, 0),
        (AutoLowRankMultivariateNormal, [], 0, 3),
    ],
)
def test_what_parameters_mean_is_read_from_a_run(guide, blocks, points, opaque):
    layout = fitted(guide, SummedGradients(), rounds=1, steps=1).posterior.layout
    assert [block.name for block in layout.blocks] == blocks
    assert (len(layout.points), len(layout.opaque), layout.local) == (points, opaque, ())
    assert (layout.sites, layout.observed) == (("slope", "noise"), ("y",))


def test_a_parameter_that_is_drawn_from_many_times_is_no_block():
    """Its natural parameters would be those of one draw."""

    def guide(inputs, targets=None):
        loc, scale = (
            pyro.param("loc", torch.tensor(0.5)),
            pyro.param("scale", torch.tensor(0.2), constraint=dist.constraints.positive),
        )
        pyro.sample("slope", dist.Normal(loc, scale).expand([2]).to_event(1))
        pyro.sample("noise", dist.LogNormal(pyro.param("noise_loc", torch.tensor(-1.0)), 0.1))

    layout = fitted(guide, SummedGradients(), rounds=1, steps=1).posterior.layout
    assert (layout.blocks, layout.opaque) == ((), ("loc", "noise_loc", "scale"))
    with pytest.raises(PosteriorError, match="unknown parameters"):
        fitted(guide, "pvi")


@pytest.mark.parametrize("family", ["normal", "full", "gamma", "beta", "dirichlet"])
@pytest.mark.parametrize("with_cavity", [True, False])
def test_exact_bounds_agree_with_draws_and_with_autograd(family, with_cavity):
    """E<eta, T(z)> and the entropy, and their gradients, beside 200,000 draws."""
    positive = torch.tensor([0.7, 1.8], requires_grad=True)
    loc = torch.tensor([0.3, -1.0], requires_grad=True)
    member, kind = {
        "normal": lambda: (dist.Normal(loc, positive), NormalFamily()),
        "full": lambda: (
            dist.MultivariateNormal(
                loc, scale_tril=positive.diag() + torch.tensor([[0.0, 0.0], [0.4, 0.0]])
            ),
            MultivariateNormalFamily(),
        ),
        "gamma": lambda: (dist.Gamma(positive, 2.0 * positive.flip(0)), ExponentFamily("gamma")),
        "beta": lambda: (dist.Beta(positive, positive.flip(0) + 1), ExponentFamily("beta")),
        "dirichlet": lambda: (dist.Dirichlet(positive + 1), ExponentFamily("dirichlet")),
    }[family]()
    shape = {"precision": (2, 2)} if family == "full" else {}
    cavity = (
        {
            leaf: torch.linspace(0.2, 1.1, 2).expand(shape.get(leaf, (2,))).clone()
            for leaf in kind.leaves
        }
        if with_cavity
        else None
    )
    exact = kind.bound(member, cavity)
    torch.manual_seed(0)
    value = member.rsample([200_000])
    drawn = -member.log_prob(value).sum() / len(value)
    if cavity:
        drawn = drawn + torch.stack([kind.log_factor(cavity, row) for row in value[:4000]]).mean()
    assert float(exact.detach()) == pytest.approx(float(drawn.detach()), abs=0.12)
    slopes, by_draws = (
        torch.autograd.grad(found, positive, retain_graph=True)[0] for found in (exact, drawn)
    )
    assert slopes == pytest.approx(by_draws, abs=0.2)


def partly_points(inputs, targets=None):
    pyro.sample("slope", dist.Normal(pyro.param("loc", torch.zeros(2)), 0.1).to_event(1))
    pyro.sample("noise", dist.Delta(pyro.param("point", torch.tensor(0.4))))


@pytest.mark.parametrize(
    ("guide", "rule", "words"),
    [
        (AutoLowRankMultivariateNormal, "pvi", "SummedGradients"),
        (AutoLowRankMultivariateNormal, "mean", "locations, scales or points"),
        (AutoMultivariateNormal, "wasserstein", "independent Gaussian"),
        (AutoMultivariateNormal, "mean", "full covariance"),
        (partly_points, "reverse KL", "points"),
        (partly_points, "experts", "points"),
    ],
)
def test_rules_refuse_guides_they_cannot_serve(guide, rule, words):
    with pytest.raises(PosteriorError, match=words):
        fitted(guide, rule)


def test_arguments_are_checked():
    for rule in ("pvi", "experts", "gradients"):
        with pytest.raises(ArgumentError, match="count every row once a client"):
            fitted(AutoNormal, rule, scale="global")
    for changes, words in [
        ({"scale": "both"}, "scale: expected one of 'local', 'global'"),
        ({"steps": 0}, "Training, steps: expected a whole number >= 1, found 0"),
        ({"averaging": 2.0}, "averaging"),
        ({"example": rows(3)[:0]}, "example: expected a data set of at least one row"),
    ]:
        with pytest.raises(ArgumentError, match=words):
            fitted(**changes)
    with pytest.raises(ArgumentError, match="damping"):
        PVI(damping=0.0)
    with pytest.raises(ArgumentError, match="learning_rate"):
        SummedGradients(0.0)
    with pytest.raises(ArgumentError, match=r"missing \['noise'\]"):
        fitted(
            lambda inputs, targets: pyro.sample(
                "slope", dist.Normal(pyro.param("a", torch.zeros(2)), 1.0).to_event(1)
            )
        )
    with pytest.raises(ArgumentError, match="a PyroModule or a function"):
        fitted(guide="AutoNormal")


def gaussian(posterior):
    (block,) = posterior.layout.blocks
    usual = block.read(posterior.pair, posterior.parameters)
    covariance = (
        usual["scale_tril"] @ usual["scale_tril"].T
        if "scale_tril" in usual
        else usual["scale"].square().diag()
    )
    return fp.Gaussian(usual["loc"].double(), covariance.double())


@pytest.fixture(scope="module")
def regression():
    found = fp.linear(0, 3, "sorted")
    return found, fp.pooled(found)


@pytest.mark.slow
def test_pvi_and_summed_gradients_find_the_centralised_optimum(regression):
    exact = fp.mean_field(fp.linear_exact(regression[1]))
    natural = {
        "schedule": bf.federated.cosine(0.3, 25),
        "optimiser": bf.federated.NaturalGradient(0.15),
    }
    found = gaussian(
        fitted(
            rule=PVI(damping=0.6),
            model=fp.linear_model,
            parts=regression,
            rounds=25,
            steps=40,
            **natural,
        ).posterior
    )
    assert fp.kl(found, exact) < 0.02 * 8
    assert fp.sd_ratio(found, exact) == pytest.approx(1, abs=0.05)
    found = gaussian(
        fitted(
            rule=SummedGradients(0.03), model=fp.linear_model, parts=regression, rounds=250, steps=2
        ).posterior
    )
    assert fp.kl(found, exact) < 0.02 * 8
    assert fp.sd_ratio(found, exact) == pytest.approx(1, abs=0.1)


@pytest.mark.slow
def test_averages_of_unscaled_posteriors_are_too_wide(regression):
    exact = fp.mean_field(fp.linear_exact(regression[1]))
    found = gaussian(
        fitted(
            rule="wasserstein", model=fp.linear_model, parts=regression, rounds=8, steps=40
        ).posterior
    )
    assert fp.sd_ratio(found, exact) > 1.5


@pytest.mark.slow
def test_full_covariance_experts_are_near_exact(regression):
    exact = fp.linear_exact(regression[1])
    schedule = bf.federated.cosine(0.02, 8)
    found = gaussian(
        fitted(
            AutoMultivariateNormal,
            "experts",
            model=fp.linear_model,
            parts=regression,
            rounds=8,
            steps=150,
            schedule=schedule,
        ).posterior
    )
    assert fp.kl(found, exact) < 0.1
    # Mean field is 1.6 nats away.
    assert fp.kl(fp.mean_field(exact), exact) > 1.0


def test_gradients_of_clients_add_up_to_that_of_all_rows():
    # Almost a point estimate has no noise: one round must be the centralised step, to rounding.
    def narrow(inputs, targets=None):
        for name, shape in (("slope", (2,)), ("noise", ())):
            loc = pyro.param(f"{name}_loc", torch.full(shape, 0.5))
            pyro.sample(name, dist.Normal(loc, 1e-6).to_event(len(shape)))

    found, data = clients()
    federated = fitted(narrow, SummedGradients(0.1), rounds=1, steps=1, parts=(found, data))
    alone = fitted(narrow, SummedGradients(0.1), rounds=1, steps=1, parts=({"all": data}, data))
    for name, leaf in federated.snapshot.state.items():
        assert torch.allclose(leaf, alone.snapshot.state[name], rtol=3e-3, atol=1e-6), name


@pytest.mark.parametrize("rule", SOME_RULES)
def test_a_client_without_rows_changes_nothing(rule):
    found, data = clients()
    with_empty = fitted(rule=rule, parts=({**found, "empty": data[:0]}, data))
    without = fitted(rule=rule, parts=(found, data))
    for name, leaf in without.snapshot.state.items():
        assert torch.allclose(leaf, with_empty.snapshot.state[name], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    "elbo",
    [Trace_ELBO(num_particles=2), TraceMeanField_ELBO(), RenyiELBO(alpha=0.5, num_particles=3)],
)
@pytest.mark.parametrize(
    "rule",
    ["pvi", *(pytest.param(rule, marks=pytest.mark.slow) for rule in ("gradients", "wasserstein"))],
)
def test_elbos(elbo, rule):
    result = fitted(rule=rule, elbo=elbo)
    assert all(bool(torch.isfinite(leaf).all()) for leaf in result.snapshot.state.values())


@pytest.mark.slow
def test_discrete_latents_are_summed_out():
    @config_enumerate
    def mixture(inputs, targets=None):
        centre = pyro.sample("centre", dist.Normal(torch.tensor([-1.0, 1.0]), 1.0).to_event(1))
        with pyro.plate("data", len(inputs)):
            which = pyro.sample("which", dist.Categorical(torch.tensor([0.5, 0.5])))
            return pyro.sample("y", dist.Normal(centre[which], 0.3), obs=targets)

    generator = Key(0, "mixture").generator()
    values = torch.where(torch.rand(90, generator=generator) < 0.5, -2.0, 2.0) + 0.3 * torch.randn(
        90, generator=generator
    )
    data = Dataset(values[:, None], values)
    parts = ({f"client-{k}": data[30 * k : 30 * (k + 1)] for k in range(3)}, data)
    guide = AutoNormal(pyro.poutine.block(mixture, hide=["which"]), init_scale=0.05)
    elbo = TraceEnum_ELBO(max_plate_nesting=1)
    result = fitted(guide, "pvi", model=mixture, parts=parts, rounds=8, steps=25, elbo=elbo)
    centre = result.posterior.constants["centre.mean"]
    assert sorted(centre.tolist()) == pytest.approx([-2, 2], abs=0.15)


@pytest.mark.slow
def test_a_beta_guide_meets_the_conjugate_answer():
    def coin(inputs, targets=None):
        heads = pyro.sample("heads", dist.Beta(2.0, 2.0))
        with pyro.plate("data", len(inputs)):
            return pyro.sample("y", dist.Bernoulli(heads), obs=targets)

    def guide(inputs, targets=None):
        positive = dist.constraints.positive
        pyro.sample(
            "heads",
            dist.Beta(
                pyro.param("a", torch.tensor(2.0), constraint=positive),
                pyro.param("b", torch.tensor(2.5), constraint=positive),
            ),
        )

    values = (torch.rand(60, generator=Key(0, "coin").generator()) < 0.3).float()
    data = Dataset(values[:, None], values)
    parts = ({f"client-{k}": data[20 * k : 20 * (k + 1)] for k in range(3)}, data)
    result = fitted(
        guide, "pvi", model=coin, parts=parts, rounds=15, steps=60, optimiser=bf.Adam(0.1)
    )
    (block,) = result.posterior.layout.blocks
    found = block.read(result.posterior.pair, result.posterior.parameters)
    ones = float(values.sum())
    mean = float(found["concentration1"] / (found["concentration1"] + found["concentration0"]))
    assert mean == pytest.approx((2 + ones) / 64, abs=0.01)
    assert float(found["concentration1"] + found["concentration0"]) == pytest.approx(64, rel=0.15)


def test_local_latents_stay_with_their_clients():
    parts = fp.schools(4)
    data = fp.pooled(parts)
    result = fitted(
        AutoNormal, PVI(damping=0.3), model=fp.schools_model, parts=(parts, data), rounds=3
    )
    layout = result.posterior.layout
    assert layout.local_sites == ("eta",)
    assert layout.sites == ("mu", "tau")
    assert not any("eta" in name for name in result.snapshot.state)
    for name, memory in result.snapshot.memories.items():
        assert memory["model/local/guide.locs.eta_unconstrained"].shape == (len(parts[name]),)
    with pytest.raises(ArgumentError, match="draws \\['eta'\\] apart"):
        fitted(AutoDiagonalNormal, PVI(damping=0.3), model=fp.schools_model, parts=(parts, data))


@pytest.mark.slow
def test_modules_with_parameters_of_their_own():
    class Bayesian(PyroModule):
        def __init__(self):
            super().__init__()
            self.linear = PyroModule[nn.Linear](2, 1)
            self.linear.weight = PyroSample(dist.Normal(0.0, 1.0).expand([1, 2]).to_event(2))
            self.noise = PyroParam(torch.tensor(0.5), constraint=dist.constraints.positive)

        def forward(self, inputs, targets=None):
            mean = self.linear(inputs)[:, 0]
            with pyro.plate("data", len(inputs)):
                return pyro.sample("y", dist.Normal(mean, self.noise), obs=targets)

    torch.manual_seed(0)
    model = Bayesian()
    before = {name: value.clone() for name, value in model.named_parameters()}
    result = fitted(AutoNormal, SummedGradients(0.05), model=model, rounds=60, steps=2)
    assert same(before, dict(model.named_parameters()))
    assert {"model.noise_unconstrained", "model.linear.bias"} <= set(result.posterior.layout.points)
    noise = result.posterior.pair.constrained(
        "model.noise_unconstrained", result.snapshot.state["model/value/model.noise_unconstrained"]
    )
    assert float(noise) == pytest.approx(0.4, abs=0.12)
    with pytest.raises(PosteriorError, match="points"):
        fitted(AutoNormal, "pvi", model=model)


def test_lists_of_guides():
    guide = AutoGuideList(line)
    guide.append(AutoMultivariateNormal(pyro.poutine.block(line, expose=["slope"])))
    guide.append(AutoNormal(pyro.poutine.block(line, expose=["noise"])))
    result = fitted(guide, "pvi")
    assert {type(block.family).__name__ for block in result.posterior.layout.blocks} == {
        "MultivariateNormalFamily",
        "NormalFamily",
    }

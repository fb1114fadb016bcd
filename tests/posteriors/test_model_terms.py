"""What a Pyro model may be made of: every term of its log density is the rows' or the prior's,
which is found by tracing it, and what is neither is refused where it is declared.
"""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoDelta, AutoLaplaceApproximation, AutoNormal
from pyro.nn import PyroModule, PyroSample
from torch import nn

import bayesfed as bf
from bayesfed.errors import ArgumentError, ClientError
from bayesfed.inference.variational.splitting import split_terms
from bayesfed.inference.variational.terms import terms

ROWS, SD = 48, 0.5
INPUTS = torch.randn(ROWS, 3, generator=bf.Key(0, "inputs").generator())
TARGETS = INPUTS @ torch.tensor([1.0, -2.0, 0.5])
DATA = bf.Dataset(INPUTS, TARGETS + SD * torch.randn(ROWS, generator=bf.Key(1).generator()))
BLANK = bf.Dataset(torch.zeros(3, 3), torch.zeros(3))


def weights():
    return pyro.sample("w", dist.Normal(torch.zeros(3), 2.0).to_event(1))


def of(inputs):
    return dist.Normal(inputs @ weights(), SD)


def plain(inputs, targets=None):
    lik = of(inputs)
    with pyro.plate("data", len(inputs)):
        return pyro.sample("y", lik, obs=targets)


def by_factor(inputs, targets=None):
    lik = of(inputs)
    pyro.factor("lik", lik.log_prob(targets).sum())


def two_sites(inputs, targets=None):
    lik = of(inputs)
    with pyro.plate("data", len(inputs)):
        pyro.sample("half", lik, obs=targets)
        pyro.factor("other half", torch.zeros(len(inputs)))


def penalised(inputs, targets=None):
    w = weights()
    pyro.factor("penalty", -w.square().sum())
    pyro.sample("pseudo", dist.Normal(w.sum(), 1.0), obs=torch.tensor(0.0))
    with pyro.plate("data", len(inputs)):
        pyro.sample("y", dist.Normal(inputs @ w, SD), obs=targets)


def nested(inputs, targets=None):
    mean = inputs @ weights()
    with pyro.plate("twice", 2, dim=-2), pyro.plate("data", len(inputs), dim=-1):
        pyro.sample("y", dist.Normal(mean, SD).expand([2, len(inputs)]), obs=targets.expand(2, -1))


def masked(inputs, targets=None):
    lik = of(inputs)
    with pyro.plate("data", len(inputs)), poutine.mask(mask=inputs[:, 0] > 0):
        pyro.sample("y", lik, obs=targets)


def cold(inputs, targets=None):
    lik = of(inputs)
    with pyro.plate("data", len(inputs)), poutine.scale(scale=2.0):
        pyro.sample("y", lik, obs=targets)


def one_by_one(inputs, targets=None):
    w = weights()
    for row in pyro.plate("data", len(inputs)):
        pyro.sample(f"y{row}", dist.Normal(inputs[row] @ w, SD), obs=targets[row])


@pytest.mark.parametrize("example", [DATA[:3], BLANK], ids=["rows", "blank"])
@pytest.mark.parametrize(
    ("model", "rows", "prior"),
    [
        (plain, {"y"}, set()),
        (by_factor, {"lik"}, set()),
        (two_sites, {"half", "other half"}, set()),
        (penalised, {"y"}, {"penalty", "pseudo"}),
        (nested, {"y"}, set()),
        (masked, {"y"}, set()),
        (cold, {"y"}, set()),
        (one_by_one, {"y0", "y1", "y2"}, set()),
    ],
)
def test_terms_are_the_rows_or_the_priors(model, rows, prior, example):
    """Of the rows it is what adds up with them, whatever it is called."""
    w = {"w": torch.tensor([0.4, -1.0, 0.2])}
    split = split_terms(model, w, example, bf.Key(0))
    assert (set(split.rows), set(split.prior), split.by_row) == (rows, prior, ())
    found = terms(model, w, DATA, split)
    joint = poutine.trace(poutine.condition(model, data=w)).get_trace(DATA.inputs, DATA.targets)
    total = sum(found.prior.values()) + sum(found.rows.values())
    assert model is one_by_one or float(total) == pytest.approx(float(joint.log_prob_sum()))
    assert {"w", *prior} <= found.prior.keys()


def idiom(inputs, targets=None):
    lik = of(inputs)
    with pyro.plate("data", ROWS, subsample=torch.arange(len(inputs))):
        pyro.sample("y", lik, obs=targets)


def scaled(inputs, targets=None):
    lik = of(inputs)
    with pyro.plate("data", len(inputs)), poutine.scale(scale=ROWS / len(inputs)):
        pyro.sample("y", lik, obs=targets)


def second_plate(inputs, targets=None):
    lik = of(inputs)
    with pyro.plate("data", len(inputs)):
        pyro.sample("y", lik, obs=targets)
    with pyro.plate("again", ROWS, subsample=torch.arange(len(inputs))):
        pyro.sample("z", lik, obs=targets)


def hard_coded(inputs, targets=None):
    lik = of(inputs)
    with pyro.plate("data", 3):
        pyro.sample("y", lik, obs=targets)


def few(inputs, targets=None):
    w = weights()
    with pyro.plate("data", len(inputs), subsample_size=2) as chosen:
        pyro.sample("y", dist.Normal(inputs[chosen] @ w, SD), obs=targets[chosen])


def mean_factor(inputs, targets=None):
    lik = of(inputs)
    pyro.factor("lik", lik.log_prob(targets).mean())


def columns(inputs, targets=None):
    w = weights()
    with pyro.plate("data", len(inputs)):
        pyro.sample("y", dist.Normal((inputs @ w).unsqueeze(-1), SD), obs=targets)


def mixed_factor(inputs, targets=None):
    w = weights()
    lik = dist.Normal(inputs @ w, SD).log_prob(targets).sum()
    pyro.factor("lik", lik - w.square().sum())


def prior_of_rows(inputs, targets=None):
    w = pyro.sample("w", dist.Normal(torch.zeros(3), 1 + inputs.abs().mean(0)).to_event(1))
    with pyro.plate("data", len(inputs)):
        pyro.sample("y", dist.Normal(inputs @ w, SD), obs=targets)


def standardised(inputs, targets=None):
    plain((inputs - inputs.mean(0)) / inputs.std(0, correction=0), targets)


def chosen(inputs, targets=None):
    plain(inputs, targets)
    if targets.mean() > 0:
        pyro.sample("b", dist.Normal(torch.tensor(0.0), 1.0))


def nothing_seen(inputs, targets=None):
    pyro.sample("c", dist.Normal(weights().sum(), 1.0), obs=torch.tensor(1.0))


def row_latents(inputs, targets=None):
    w = weights()
    with pyro.plate("data", len(inputs)):
        lam = pyro.sample("lam", dist.Gamma(2.0, 2.0))
        pyro.sample("y", dist.Normal(inputs @ w, SD / lam.sqrt()), obs=targets)


class Inside(PyroModule):
    @PyroSample
    def w(self):
        return dist.Normal(torch.zeros(3), 2.0).to_event(1)

    def forward(self, inputs, targets=None):
        with pyro.plate("data", len(inputs)):
            pyro.sample("y", dist.Normal((inputs * self.w).sum(-1), SD), obs=targets)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (idiom, "plate data: expected one of the rows, size 3, found size 48"),
        (scaled, "site 'y', scale: expected one for any number of rows, found 16 for 3 rows and 9"),
        (second_plate, "plate again: expected one of the rows, size 3, found size 48"),
        (hard_coded, "plate data: expected one of the rows, size 5, found size 3"),
        (few, "plate data: expected one of the rows, size 3, found size 2"),
        (mean_factor, "site 'lik': expected a log density that is the sum over rows"),
        (standardised, "site 'y': .*figures of all rows as constants"),
        (chosen, "site 'b': expected a prior that no rows enter"),
        (columns, r"site 'y': expected values of the shape .*, found \(3,\) for \(3, 3\)"),
        (mixed_factor, "site 'lik': .*and a term without rows in a factor of its own"),
        (prior_of_rows, "site 'w': expected a prior that no rows enter"),
        (nothing_seen, "a site that observes the targets, found none that rows enter"),
        (
            row_latents,
            "site lam: expected no latents under the plate of rows in AutoNormal, whose parameters "
            "have the example's 3 rows.*try an amortised guide, enumeration, or a plate named "
            "client",
        ),
        (Inside(), "site w: expected no latents .* try w = self.w before the plate"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_cannot_be_attributed_is_refused_at_the_declaration(model, words):
    with pytest.raises(ArgumentError, match=words):
        bf.federated_svi(model, AutoNormal, example=DATA[:3])


def test_a_likelihood_in_a_factor_counts_as_the_observed_one():
    """It went with the prior, by each client's share of it."""
    clients = bf.federate(DATA, bf.iid(ROWS, 4, bf.Key(0)))
    states = []
    for model in (plain, by_factor):
        algorithm = bf.federated_svi(
            model,
            AutoNormal,
            fusion=bf.SummedGradients(0.05),
            example=DATA[:2],
            training=bf.Training(steps=2, batch_size=None),
        )
        states.append(bf.run(algorithm, clients, rounds=3, progress=False).snapshot.state)
    assert all(torch.allclose(leaf, states[1][name]) for name, leaf in states[0].items())


def amortised(inputs, targets=None):
    scale = pyro.param("scale", torch.tensor(0.5), constraint=dist.constraints.positive)
    pyro.sample("w", dist.Normal(pyro.param("loc", torch.zeros(3)), scale).to_event(1))
    slope = pyro.param("slope", torch.tensor(0.1))
    with pyro.plate("data", len(inputs)):
        pyro.sample("lam", dist.LogNormal(slope * inputs[:, 0], scale))


def test_latents_of_rows_with_an_amortised_guide_are_weighed_as_rows():
    algorithm = bf.federated_svi(
        row_latents, amortised, fusion=bf.SummedGradients(0.1), example=DATA[:2]
    )
    layout = algorithm.posterior(algorithm.initial).layout
    assert (layout.sites, layout.split.by_row) == (("w",), ("lam",))
    clients = bf.federate(DATA, bf.iid(ROWS, 3, bf.Key(0)))
    result = bf.run(algorithm, clients, rounds=1, progress=False)
    assert result.posterior.draw(bf.Key(0)).keys() == {"w"}


def point(inputs, targets=None):
    pyro.sample("w", dist.Delta(pyro.param("at", torch.zeros(3))).to_event(1))


@pytest.mark.parametrize("guide", [AutoDelta, AutoLaplaceApproximation, point])
def test_guides_whose_draws_never_vary_are_refused(guide):
    words = "expected a guide with a distribution, .* whose draws never vary; try AutoNormal"
    with pytest.raises(ArgumentError, match=words):
        bf.federated_svi(plain, guide, example=DATA[:2])


def of_rows(inputs, targets=None):
    loc = pyro.param("loc", torch.zeros(3)) + inputs.mean(0)
    pyro.sample("w", dist.Normal(loc, 0.1).to_event(1))


def wider(inputs, targets=None):
    w = pyro.sample("w", dist.Normal(torch.zeros(4), 1.0).to_event(1))
    pyro.factor("y", -(targets - w.sum()).square().sum())


@pytest.mark.parametrize(
    ("guide", "words"),
    [
        (of_rows, "site 'w', guide: expected one distribution for all rows"),
        (AutoNormal(wider), r"site 'w', guide: .*model's shape \(3,\), found \(4,\)"),
    ],
    ids=["of rows", "of another model"],
)
def test_guides_that_rows_enter_or_that_are_of_another_model_are_refused(guide, words):
    with pytest.raises(ArgumentError, match=words):
        bf.federated_svi(plain, guide, example=DATA[:2])


def test_particles_that_the_model_takes_one_by_one_alone_are_told_at_the_declaration():
    together = Trace_ELBO(num_particles=4, vectorize_particles=True, max_plate_nesting=1)
    with pytest.raises(ArgumentError, match=r"elbo: expected a model .*try Trace_ELBO\(num_part"):
        bf.federated_svi(plain, AutoNormal, example=DATA[:2], elbo=together)
    bf.federated_svi(plain, AutoNormal, example=DATA[:2], elbo=Trace_ELBO(num_particles=4))


class OddError(ValueError):
    def __init__(self, ward, year):
        super().__init__(f"no ward {ward} in {year}")


@pytest.mark.parametrize("large", [False, True], ids=["declared", "at a client"])
@pytest.mark.parametrize("problem", [OddError(3, 1999), KeyError("ward"), ValueError("my size")])
def test_errors_of_a_model_come_through_as_they_were_raised(problem, large):
    """Pyro's tracing writes some anew, and cannot make those of two arguments."""
    problem.__notes__ = []

    def model(inputs, targets=None):
        w = weights()
        if len(inputs) > 10 or not large:
            raise problem
        with pyro.plate("data", len(inputs)):
            pyro.sample("y", dist.Normal(inputs @ w, SD), obs=targets)

    with pytest.raises(ClientError if large else type(problem)) as caught:
        bf.run(bf.federated_svi(model, example=DATA[:2]), {"a": DATA}, progress=False)
    if large:
        kind = type(problem).__name__
        expected = f"client 'a', round 1, stage 'fit': {kind}: {problem} (after site 'w')"
        assert str(caught.value) == expected
    else:
        assert caught.value is problem


def test_dropout_in_a_model_leaves_its_terms_to_their_shapes():
    """Densities differ from run to run, so that values say nothing."""
    noisy = nn.Dropout(0.5)

    def model(inputs, targets=None):
        w = weights()
        pyro.factor("penalty", -w.square().sum())
        with pyro.plate("data", len(inputs)):
            pyro.sample("y", dist.Normal(noisy(inputs) @ w, SD), obs=targets)

    split = split_terms(model, {"w": torch.ones(3)}, DATA[:3], bf.Key(0))
    assert (split.rows, split.prior) == (("y",), ("penalty",))


def test_labels_of_another_shape_are_refused_where_rows_are_looked_at():
    labels = bf.Dataset(torch.randn(24, 4), torch.rand(24, 2))
    net = bf.models.bayesian(bf.mlp([4, 64, 2], bf.Key(0)), likelihood=bf.Categorical())
    # The first two rows have a density by accident, four rows have none.
    algorithm = bf.federated_svi(net, example=labels[:2], observations=24)
    with pytest.raises(ArgumentError, match="class labels"):
        bf.run(algorithm, {"a": labels}, rounds=1, test=labels, progress=False)

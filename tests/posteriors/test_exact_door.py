"""However `federated_svi` is entered without a guide, it is the exact posterior up to 50 shared
values, and a fit that one importance round checks above.
"""

import json

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoNormal

import bayesfed as bf
from bayesfed.cli.main import main
from bayesfed.errors import (
    ArgumentError,
    ClientError,
    DataError,
    PosteriorError,
    UndeterminedWarning,
    UpdateError,
)
from bayesfed.inference.exact.form import Form
from bayesfed.inference.exact.traced import doubled, traced
from tests.posteriors.test_exact_runs import line, rows, run, same, sites

CLIENTS = sites(*rows())
TWO = CLIENTS["s0"][:2]


def declared(clients=CLIENTS, model=line, **given):
    return bf.run(bf.federated_svi(model, **given), clients, progress=False)


@pytest.fixture(scope="module")
def found():
    return run(CLIENTS)


@pytest.mark.parametrize(
    "given",
    [{"example": TWO}, {"observations": 60}, {"example": TWO, "observations": 60, "seed": 3}],
    ids=" ".join,
)
def test_what_is_known_of_the_rows_changes_nothing(found, given):
    assert same(declared(**given).snapshot.state, found.snapshot.state)


def test_what_is_known_of_the_rows_is_checked():
    with pytest.raises(ArgumentError, match="observations: expected 60, the rows of the pool"):
        declared(observations=100)
    wide = bf.Dataset(torch.zeros(2, 5), torch.zeros(2))
    with pytest.raises(RuntimeError, match="size mismatch"):
        declared(example=wide)
    other = bf.Dataset(torch.zeros(2, 2), torch.zeros(2, dtype=torch.int64))
    words = r"expected rows like those of the sites, found inputs \(2,\) of torch.float64, targets"
    with pytest.raises(DataError, match=words):
        declared(example=other)


def labelled(family, cast=torch.Tensor.float):
    """A model of labels, which are whole numbers."""

    def model(inputs, targets=None):
        beta = pyro.sample("beta", dist.Normal(torch.zeros(2), 2.0).to_event(1))
        scale = pyro.sample("scale", dist.LogNormal(0.0, 1.0))
        with pyro.plate("rows", len(inputs)):
            pyro.sample("y", family(inputs @ beta, scale, targets), obs=cast(targets))

    return model


def event(at, scale, y):
    return dist.Bernoulli(logits=at)


@pytest.mark.parametrize(
    ("family", "least", "refused"),
    [
        (event, 1, "values in its support, found 10 of 20 outside of Boolean"),
        (lambda at, scale, y: dist.Poisson(at.exp()), 0.5, "IntegerGreaterThan"),
        (lambda at, scale, y: dist.Binomial(1, logits=at), 1, "IntegerInterval"),
        (lambda at, scale, y: dist.Gamma(scale, at.exp()), -0.5, "GreaterThan"),
        (lambda at, scale, y: event(at, scale, y).mask(y < 2), 1, ""),
        (lambda at, scale, y: dist.Uniform(0.0, scale), 1000, ""),
    ],
    ids=["coded 1 and 2", "halves", "above trials", "negative", "masked", "wider latents may"],
)
def test_what_no_latents_can_have_made_is_refused(family, least, refused):
    data = bf.Dataset(CLIENTS["s0"].inputs, least + torch.arange(20) % 2)
    made = traced(labelled(family), Form.of(data), "client")
    with doubled():
        if not refused:
            return made.check(data)
        with pytest.raises(PosteriorError, match=f"site 'y', observed: expected .*{refused}"):
            made.check(data)


def test_labels_may_be_cast_to_32_bits_and_those_that_are_not_are_named():
    labels = torch.arange(60) % 2
    whole = {n: bf.Dataset(one.inputs, labels[: len(one)]) for n, one in CLIENTS.items()}
    wide = {n: bf.Dataset(one.inputs, one.targets.double()) for n, one in whole.items()}
    made = [declared(each, labelled(event)).posterior for each in (whole, wide)]
    assert made[0].status == "exact"
    assert torch.equal(made[0].state["value"], made[1].state["value"])
    with pytest.raises(PosteriorError, match=r"runs in 64 bits, .*; try targets.float\(\)"):
        declared(whole, labelled(event, cast=torch.Tensor.long))


def test_a_small_network_is_no_exception(found):
    net = bf.bayesian(torch.nn.Linear(2, 1, bias=False), bf.Gaussian(10.0), likelihood=bf.Normal())
    clients = {
        name: bf.Dataset(part.inputs.float(), part.targets[:, None].float())
        for name, part in CLIENTS.items()
    }
    result = declared(clients, net, observations=60, example=clients["s0"][:2])
    assert result.posterior.status == "exact"
    for what in ("mean", "sd"):
        other = found.posterior.constants[f"beta.{what}"]
        assert torch.allclose(result.posterior.constants[f"weight.{what}"][0], other, atol=2e-3)


class Frozen(torch.nn.Module):
    """A line of a buffer and a frozen layer of 32 bits."""

    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(2, 2).requires_grad_(False)
        self.head = torch.nn.Linear(2, 1)
        self.register_buffer("turn", torch.eye(2))

    def forward(self, inputs):
        return self.head(self.body(inputs @ self.turn))


def test_frozen_layers_and_buffers_of_a_small_network_are_taken_in_64_bits():
    net = bf.bayesian(Frozen(), bf.Gaussian(1.0), likelihood=bf.Normal())
    clients = {n: bf.Dataset(p.inputs.float(), p.targets[:, None]) for n, p in CLIENTS.items()}
    result = declared(clients, net)
    assert result.posterior.status == "exact"
    assert result.predictive(clients["s0"].inputs).mean.shape == (20, 1)


def logistic(inputs, targets=None):
    beta = pyro.sample("beta", dist.Normal(torch.zeros(60), 1.0).to_event(1))
    with pyro.plate("rows", len(inputs)):
        pyro.sample("y", dist.Bernoulli(logits=inputs @ beta), obs=targets)


def apart(inputs, targets=None):
    """Independent values, of which a fit of independent Gaussians is the posterior."""
    mean = pyro.sample("mean", dist.Normal(torch.zeros(60), 1.0).to_event(1))
    with pyro.plate("rows", len(inputs)):
        pyro.sample("y", dist.Normal(mean, 1.0).to_event(1), obs=targets)


def test_secure_sums_give_the_same_posterior_and_nothing_by_site(found):
    result = declared(secure=3)
    assert result.posterior.status == "exact"
    for name, leaf in found.posterior.constants.items():
        if name != "k_hat":
            assert torch.allclose(result.posterior.constants[name], leaf, rtol=1e-5), name
    for memory in result.snapshot.memories.values():
        with pytest.raises(PosteriorError, match="of a run in this process, without secure sums"):
            result.posterior.without(memory)
    with pytest.raises(UpdateError, match="at most 3 clients"):
        declared(CLIENTS | {"s3": CLIENTS["s0"]}, secure=3)


def test_sites_of_few_rows_are_named_or_refuse():
    few = {**CLIENTS, "s3": CLIENTS["s0"][:5]}
    with pytest.warns(UserWarning, match="expected 6 rows a site, 3 for each.* found 's3' 5; try"):
        run(few)
    declared(few, least_rows=5)
    with pytest.raises(ClientError, match="'s3'.*least_rows: expected 6 rows, found 5"):
        declared(few, least_rows=6)
    with pytest.raises(ArgumentError, match="secure: expected a model alone"):
        bf.federated_svi(line, fusion=bf.PVI(), example=TWO, secure=3)


def test_a_method_that_ends_by_itself_is_scored_at_its_end():
    scored = []
    score = bf.federated.evaluate(TWO, metric="mse")
    result = run(CLIENTS, callbacks=(score, lambda report: scored.append(report.metrics)))
    assert ["mse" in one for one in scored] == [False] * (len(result.history) - 1) + [True]


FILE = """\
import bayesfed as bf
from bayesfed.federated import Algorithm
from tests.posteriors.test_exact_runs import line, rows


def alone() -> Algorithm:
    return bf.federated_svi(line)


def data() -> bf.Dataset:
    return bf.Dataset(*rows())


def single() -> bf.Dataset:
    inputs, targets = rows()
    return bf.Dataset(inputs.float(), targets.float())
"""
TOP = 'partition = {{ kind = "iid", clients = 2 }}\ndata = {{ kind = "mine.py:{}" }}\n'
NET = """
net = { kind = "mlp", widths = [2, 1] }
[recipe]
kind = "federated_svi"
model = { prior = { kind = "Gaussian", sd = 10.0 }, likelihood = { kind = "Normal" } }
"""


@pytest.mark.parametrize(
    "text",
    [TOP.format("data") + '[recipe]\nkind = "mine.py:alone"\n', TOP.format("single") + NET],
    ids=["a model of one's own", "a network"],
)
def test_from_a_file_it_is_the_same_and_ends_by_itself(text, tmp_path):
    (tmp_path / "mine.py").write_text(FILE)
    (tmp_path / "mine.toml").write_text(text)
    assert main(["run", str(tmp_path / "mine.toml"), "--out", str(tmp_path / "out")]) == 0
    folder = tmp_path / "out" / "mine" / "seed-0"
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert lines[-1]["server"]["stage"] == 4
    assert len(lines) < 20
    assert ["nll" in line["metrics"] for line in lines] == [False] * (len(lines) - 1) + [True]
    assert (folder / "posterior.nc").is_file()


@pytest.mark.slow
def test_a_large_model_is_fitted_and_checked_once():
    targets = torch.randn(240, 60, generator=torch.Generator().manual_seed(0))
    clients = {f"s{k}": bf.Dataset(targets[k::2], targets[k::2]) for k in range(2)}
    result = declared(clients, apart, least_rows=1)
    mean, sd = targets.sum(0) / 241, 241**-0.5
    posterior = result.posterior
    assert posterior.status == "exact"
    assert ((posterior.constants["mean.mean"] - mean).abs() < 0.05 * sd).all()
    assert (posterior.constants["mean.sd"] / sd - 1).abs().max() < 0.05
    covariance = torch.eye(240).double() + 1
    normal = torch.distributions.MultivariateNormal(torch.zeros(240).double(), covariance)
    evidence, error = posterior.log_evidence
    assert abs(evidence - float(normal.log_prob(targets.T.double()).sum())) < 4 * error < 0.1
    stages = [int(record.server["stage"]) for record in result.history]
    assert stages[-2:] == [3, 4]


@pytest.mark.slow
def test_a_large_model_whose_fit_is_not_its_posterior_is_called_gaussian():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(600, 60, generator=generator) + torch.randn(600, 1, generator=generator)
    targets = (torch.rand(600, generator=generator) < torch.sigmoid(inputs[:, 0])).float()
    clients = {f"s{k}": bf.Dataset(inputs[k::2], targets[k::2]) for k in range(2)}
    with pytest.warns(UndeterminedWarning, match="its status is 'gaussian'"):
        result = declared(clients, logistic, least_rows=1)
    posterior = result.posterior
    assert posterior.k_hat > 0.5
    # Draws are of the fit, not of a handful of heavy points.
    drawn = torch.stack([posterior.draw(bf.Key(n))["beta"] for n in range(200)])
    assert len(drawn.unique(dim=0)) > 150
    with pytest.warns(UndeterminedWarning, match="ended in the stage 'fit'"):
        short = bf.run(bf.federated_svi(logistic, least_rows=1), clients, rounds=3, progress=False)
    assert short.posterior.draw(bf.Key(0))["beta"].shape == (60,)


def test_named_inputs_are_refused_in_words():
    named = {
        name: bf.Dataset({"x": part.inputs[:, 0]}, part.targets) for name, part in CLIENTS.items()
    }
    with pytest.raises(ClientError, match=r"one tensor of inputs, found rows of x; try Dataset"):
        declared(named)
    with pytest.raises(DataError, match="one tensor of inputs, found rows of x"):
        bf.federated_svi(line, AutoNormal, example=named["s0"][:2])

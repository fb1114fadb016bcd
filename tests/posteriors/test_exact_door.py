"""However `federated_svi` is entered without a guide, it is the exact posterior up to 50 shared
values, and a fit that one importance round checks above.
"""

import pyro
import pyro.distributions as dist
import pytest
import torch

import bayesfed as bf
from bayesfed.errors import ArgumentError, ClientError, DataError, UndeterminedWarning
from tests.posteriors.test_exact_runs import exact, line, rows, run, same, sites

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


def logistic(inputs, targets=None):
    beta = pyro.sample("beta", dist.Normal(torch.zeros(60), 1.0).to_event(1))
    with pyro.plate("rows", len(inputs)):
        pyro.sample("y", dist.Bernoulli(logits=inputs @ beta), obs=targets)


def apart(inputs, targets=None):
    """Independent values, of which a fit of independent Gaussians is the posterior."""
    mean = pyro.sample("mean", dist.Normal(torch.zeros(60), 1.0).to_event(1))
    with pyro.plate("rows", len(inputs)):
        pyro.sample("y", dist.Normal(mean, 1.0).to_event(1), obs=targets)

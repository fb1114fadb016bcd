"""Supports, priors, the declared Pyro model and its guide."""

import itertools
import math
import warnings

import networkx as nx
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from torch import nn

import bayesfed as bf
from bayesfed.errors import ArgumentError, DataError, OrderingWarning, PriorError
from bayesfed.inference import Structured
from bayesfed.keys import Key, forked
from bayesfed.models import Neighbourhood, SiteBelief, Transition, guide, weight_matrices
from bayesfed.models.random_fields.ising import Ising
from bayesfed.models.random_fields.support_priors import neighbour_share
from tests.support.beliefs import check_support


@pytest.mark.filterwarnings("ignore::bayesfed.errors.DensityWarning")
@pytest.mark.parametrize(
    ("support", "inputs"),
    [
        (bf.Independent(0.2), None),
        (bf.models.MarkovGrid(0.6, 0.55), None),
        (bf.models.MarkovGrid(0.4, 0.6, field=-1.0), None),
        (bf.models.MarkovGrid(Transition(0.7, 0.55), Transition(0.6, 0.5)), None),
        (bf.models.MarkovGrid(0.6, 0.62, field=-0.5, patch=(2, 3)), 6),
        (Neighbourhood(nx.cycle_graph(5), 0.6, -0.4), 5),
        (Neighbourhood(nx.path_graph(4), 0.8), 4),
    ],
)
def test_supports_obey_the_laws(support, inputs):
    check_support(support, inputs=inputs)


def test_the_grid_is_the_product_of_its_transitions():
    """The lowering to fields and couplings against the product of tables that defines the prior."""
    row, column = Transition(0.7, 0.6), Transition(0.55, 0.65)
    model = bf.models.MarkovGrid(row, column).lower((2, 3))

    def table(t, a, b):
        return math.log({(0, 0): t.off, (0, 1): 1 - t.off, (1, 0): 1 - t.on, (1, 1): t.on}[a, b])

    gaps = set()
    for state in itertools.product([0, 1], repeat=6):
        grid = [state[:3], state[3:]]
        direct = sum(table(row, r[m], r[m + 1]) for r in grid for m in range(2)) + sum(
            table(column, grid[0][m], grid[1][m]) for m in range(3)
        )
        # Each chain starts in its stationary state.
        direct += row.start() * sum(r[0] for r in grid) + column.start() * sum(grid[0])
        gaps.add(round(direct - float(model.energy(torch.tensor(grid))), 5))
    assert len(gaps) == 1


def test_strong_couplings_warn_and_say_what_will_happen():
    with pytest.warns(OrderingWarning, match="whole layers tend to switch"):
        bf.models.MarkovGrid(0.7, 0.7).lower((5, 5))
    with pytest.warns(OrderingWarning, match="the grid itself is ordered"):
        bf.models.MarkovGrid(0.9, 0.9).lower((5, 5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bf.models.MarkovGrid(0.65, 0.65).lower((5, 5))
        bf.models.MarkovGrid(0.9, 0.9).lower((1, 50))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: bf.models.MarkovGrid(1.0), r"MarkovGrid, row: expected a number in \(0, 1\)"),
        (lambda: bf.models.MarkovGrid(0.5, -0.1), "MarkovGrid, column"),
        (
            lambda: bf.models.MarkovGrid(field=math.inf),
            r"MarkovGrid, field: expected a number in \(-inf, inf\)",
        ),
        (lambda: bf.Independent(0.0), r"Independent, probability: expected a number in \(0, 1\)"),
        (lambda: bf.Independent(math.nan), r"Independent, probability: expected .*, found nan"),
        (lambda: Transition(0.5, 1.5), "Transition, on"),
        (lambda: bf.BernoulliGamma(slab_sd=0.0), "slab_sd: expected a number in"),
        (lambda: bf.BernoulliGamma(slab_sd=0.1, spike_sd=0.2), "spike_sd < slab_sd"),
        (lambda: bf.Categorical(temperature=0.0), "Categorical, temperature"),
        (lambda: bf.Normal(sd=-1.0), "Normal, sd"),
        (
            lambda: Ising(
                torch.zeros(3), torch.tensor([[0], [1]]), torch.ones(1), (3,), torch.zeros(3).long()
            ),
            "different colours",
        ),
        (
            lambda: Ising(
                torch.zeros(3), torch.zeros(2, 0).long(), torch.ones(1), (3,), torch.zeros(3).long()
            ),
            "shapes",
        ),
    ],
)
def test_bad_declarations_are_refused(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()


def test_declare_chooses_by_predicate(net):
    assert list(bf.declare(net).sites) == ["1.weight", "3.weight"]
    assert list(bf.declare(net, where=lambda name, module: name == "3.weight").sites) == [
        "3.weight"
    ]
    assert weight_matrices("conv.weight", nn.Conv2d(1, 2, 3))
    convolution = bf.declare(bf.cnn((3, 8, 8), 10, Key(0)))
    assert convolution.sites["0.weight"].matrix == (16, 27)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda net: bf.declare(net, where=lambda name, module: False),
            "a predicate that chooses a parameter, found none of",
        ),
        (
            lambda net: bf.declare(net, where=lambda name, module: True),
            "'1.bias': expected a matrix or kernel",
        ),
        (
            lambda net: bf.declare(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))),
            "without running statistics",
        ),
    ],
)
def test_declare_refuses(net, make, words):
    with pytest.raises(PriorError, match=words):
        make(net)


def test_hyperparameters_follow_the_layer(net):
    for name, site in bf.declare(net).sites.items():
        assert site.precision.rates[1] == pytest.approx(
            2.8**2 * float(net.get_parameter(name).detach().square().mean())
        )
    nn.init.zeros_(net[1].weight)
    assert bf.declare(net).sites["1.weight"].precision.rates[1] == pytest.approx(2.8**2 * 2 / 64)
    absolute = bf.Prior(
        precision=bf.BernoulliGamma(slab_sd=0.3, spike_sd=0.01, spike_shape=2.0, relative=False)
    )
    site = bf.declare(net, absolute).sites["1.weight"]
    assert site.precision.rates == pytest.approx((2e-4, 0.09))


@pytest.mark.parametrize("support", [bf.Independent(0.3), bf.models.MarkovGrid(0.6, 0.55)])
def test_the_declared_model_has_the_density_it_says(support):
    """Pyro's log density of a trace against the same written by hand from (1)-(3)."""
    torch.set_default_dtype(torch.float64)
    try:
        net = nn.Sequential(nn.Linear(4, 3))
        declared = bf.declare(
            net,
            bf.Prior(support=support, precision=bf.BernoulliGamma(slab_shape=2.0)),
            likelihood=bf.Categorical(temperature=0.5),
        )
        x, y, points = torch.randn(5, 4), torch.tensor([0, 1, 2, 1, 0]), {"0.bias": torch.randn(3)}
        trace = poutine.trace(declared.model).get_trace(points, x, y, scale=3.0)
        s, rho, w = (trace.nodes[f"0.weight.{leaf}"]["value"] for leaf in ("s", "rho", "w"))
        assert s.shape == rho.shape == w.shape == (3, 4)
        gammas = declared.sites["0.weight"].precision
        shape, rate = torch.tensor(gammas.shapes)[s.long()], torch.tensor(gammas.rates)[s.long()]
        log_s = (
            dist.Bernoulli(0.3).log_prob(s).sum()
            if isinstance(support, bf.Independent)
            else declared.sites["0.weight"].support.energy(s)
        )
        log_rho = (
            shape * rate.log() - torch.lgamma(shape) + (shape - 1) * rho.log() - rate * rho
        ).sum()
        log_w = (0.5 * (rho / (2 * math.pi)).log() - rho * w**2 / 2).sum()
        log_y = (
            3.0 / 0.5 * torch.log_softmax(x @ w.T + points["0.bias"], 1)[torch.arange(5), y].sum()
        )
        assert float(trace.log_prob_sum()) == pytest.approx(
            float(log_s + log_rho + log_w + log_y), rel=1e-6
        )
    finally:
        torch.set_default_dtype(torch.float32)


def test_the_guide_has_the_density_it_says(declared):
    site = declared.sites["3.weight"]
    mean = torch.randn(site.matrix)
    one = torch.ones(2, 1, 1)
    belief = Structured().update(
        SiteBelief(mean, torch.tensor(0.1), torch.zeros(site.matrix), one, one),
        torch.zeros(site.matrix),
        site.precision,
    )
    with forked(Key(0, "guide")):
        trace = poutine.trace(guide).get_trace({"3.weight": belief})
    w, s, rho = (trace.nodes[f"3.weight.{leaf}"]["value"] for leaf in ("w", "s", "rho"))
    shape, rate = belief.given(s)
    direct = (
        dist.Normal(mean, 0.1).log_prob(w).sum()
        + dist.Bernoulli(belief.inclusion).log_prob(s).sum()
        + dist.Gamma(shape, rate).log_prob(rho).sum()
    )
    assert float(trace.log_prob_sum()) == pytest.approx(float(direct), rel=1e-5)


def test_the_pyro_parameter_store_stays_empty(declared, digits):
    pyro.get_param_store().clear()
    train, _ = digits
    points = {name: leaf for name, leaf in declared.initial.items() if name not in declared.sites}
    poutine.trace(declared.model).get_trace(points, train.inputs[:4], train.targets[:4])
    assert not list(pyro.get_param_store().keys())


def test_likelihoods_check_targets():
    for likelihood, output, targets, words in (
        (
            bf.Categorical(),
            torch.zeros(2, 3),
            torch.tensor([0, 3]),
            "0 to 2, the network's outputs, found 0 to 3",
        ),
        (bf.Categorical(), torch.zeros(2, 3), torch.zeros(2), "integer labels"),
        (bf.Normal(), torch.zeros(2, 3), torch.zeros(2), r"float targets of shape \(2, 3\)"),
    ):
        with pytest.raises(DataError, match=words):
            likelihood.check(output, targets)


def test_neighbour_share():
    assert neighbour_share(torch.ones(3, 3)) == 1
    assert neighbour_share(torch.eye(3)) == 0
    assert math.isnan(neighbour_share(torch.zeros(2, 2)))
    assert neighbour_share(torch.tensor([[1, 1, 0]])) == pytest.approx(2 / 3)

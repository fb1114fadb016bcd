"""Whole runs on small real and drawn data: what the recipes are for."""

import pytest
import torch
from torch import nn

import bayesfed as bf
from bayesfed.algorithms.d_turbo_vbi import ToDensity, no_field, ramp
from bayesfed.federated import score
from bayesfed.inference import MeanField
from bayesfed.inference.turbo.exchange import Exchange
from bayesfed.models.random_fields.support_priors import neighbour_share
from tests.conftest import tree_equal
from tests.support.regression import sparse_regression


@pytest.mark.slow
def test_it_learns_digits_sparsely(digits, clients):
    train, test = digits
    net = bf.mlp([64, 64, 10], bf.Key(0, "net"))
    declared = bf.declare(net, likelihood=bf.Categorical(temperature=0.1))
    work = bf.Training(steps=40, batch_size=32, optimiser=bf.Adam(4e-3))
    algorithm = bf.d_turbo_vbi(
        declared, observations=len(train), training=work, density=ToDensity(0.19, keep=0.8)
    )
    result = bf.run(algorithm, clients, rounds=12, test=test, progress=False)
    assert result.final("accuracy") > 0.9
    assert result.final("density") < 0.2
    elbos = [value for _, value in result.series("elbo")]
    assert elbos[-1] > elbos[4] > elbos[0]
    assert all(record.server.get("bp_converged", True) for record in result.history)
    mask = result.model.parameters["1.weight"] != 0
    assert neighbour_share(mask) > 1.3 * float(mask.float().mean())
    # The model that counts is what was sent: entries with q(s) <= 1/2 are exactly zero.
    active = result.posterior.belief["1.weight"].active
    assert not bool((mask & ~active).any())


@pytest.mark.slow
def test_convolutions_are_matrices(digits, clients):
    train, test = digits
    declared = bf.declare(
        bf.cnn((1, 8, 8), 10, bf.Key(0, "net"), channels=(8, 8), hidden=16),
        likelihood=bf.Categorical(temperature=0.1),
    )
    assert {name: site.matrix for name, site in declared.sites.items()} == {
        "1.weight": (8, 9),
        "4.weight": (8, 72),
        "8.weight": (16, 32),
        "10.weight": (10, 16),
    }
    result = bf.run(
        bf.d_turbo_vbi(
            declared,
            observations=len(train),
            training=bf.Training(steps=20, batch_size=32, optimiser=bf.Adam(5e-3)),
        ),
        clients,
        rounds=4,
        test=test,
        progress=False,
    )
    assert result.final("accuracy") > 0.35
    assert result.final("density") < 0.9


def regression(key=0):
    truth = sparse_regression(
        bf.Key(key, "truth"), samples=600, outputs=8, features=20, block=5, noise_sd=0.5
    )
    declared = bf.declare(
        nn.Sequential(nn.Linear(20, 8, bias=False)),
        bf.Prior(precision=bf.BernoulliGamma(slab_sd=1.0, spike_sd=0.03, relative=False)),
        likelihood=bf.Normal(0.5),
    )
    return truth, declared


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"spread": "layer"}, marks=pytest.mark.slow),
        pytest.param({"spread": "weight"}, marks=pytest.mark.slow),
        pytest.param({"exchange": Exchange(turns=3), "codec": bf.Cast(32)}, marks=pytest.mark.slow),
    ],
)
def test_it_finds_a_planted_clustered_support(options):
    truth, declared = regression()
    clients = bf.federate(truth.data, bf.iid(600, 5, bf.Key(0, "parts")))
    work = {
        "training": bf.Training(steps=40, batch_size=60, optimiser=bf.Adam(0.02)),
        "initial_sd": 0.05,
        "field": ramp(0.0, 1),
        **options,
    }
    result = bf.run(
        bf.d_turbo_vbi(declared, observations=600, **work), clients, rounds=8, progress=False
    )
    found = result.posterior.belief["0.weight"].active
    right = int((found & truth.support).sum())
    precision, recall = right / int(found.sum()), right / int(truth.support.sum())
    # True weights are N(0, 1): a few are too small to tell from zero.
    assert precision > 0.9
    assert recall > 0.75
    assert float((result.posterior.belief["0.weight"].mean - truth.weights).abs().max()) < 0.25


def test_the_printed_order_prunes_by_the_weights_training_began_with():
    """Algorithm 1 updates q(s) before it averages: round 0 then switches off by initial values,
    before the data have spoken.
    """
    truth, declared = regression()
    clients = bf.federate(truth.data, bf.iid(600, 5, bf.Key(0, "parts")))
    work = {
        "training": bf.Training(steps=40, batch_size=60, optimiser=bf.Adam(0.02)),
        "initial_sd": 0.01,
        "field": no_field,
    }
    small = (declared.initial["0.weight"].abs() < 0.05) & truth.support
    assert bool(small.any())
    for before, lost in ((True, True), (False, False)):
        result = bf.run(
            bf.d_turbo_vbi(declared, observations=600, before_averaging=before, **work),
            clients,
            rounds=1,
            progress=False,
        )
        assert bool((~result.posterior.belief["0.weight"].active[small]).all()) is lost


def test_the_published_mean_field_guide_keeps_everything_on():
    """Bistable: with s on the precision stays of order one, and s stays on, for weights that are
    zero.
    """
    truth, declared = regression()
    clients = bf.federate(truth.data, bf.iid(600, 5, bf.Key(0, "parts")))
    work = {
        "training": bf.Training(steps=40, batch_size=60, optimiser=bf.Adam(0.02)),
        "initial_sd": 0.05,
        "field": no_field,
    }
    result = bf.run(
        bf.d_turbo_vbi(declared, observations=600, blocks=MeanField(), **work),
        clients,
        rounds=4,
        progress=False,
    )
    assert result.final("density") == 1.0


@pytest.mark.parametrize("count", [3, pytest.param(10, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_counting_rows_once_leaves_the_averaged_posterior_too_wide(count):
    """The likelihood scale N / N_t of (21) matters: with K clients the unscaled sd is about sqrt(K)
    times the exact one.
    """
    truth, _ = regression()
    declared = bf.declare(
        nn.Sequential(nn.Linear(20, 8, bias=False)),
        bf.Prior(bf.Independent(0.5), bf.BernoulliGamma(1.0, 0.9, relative=False)),
        likelihood=bf.Normal(0.5),
    )
    clients = bf.federate(truth.data, bf.iid(600, count, bf.Key(0, "parts")))
    exact = 0.5 / 600**0.5
    sds = {}
    for scale in ("global", "local"):
        algorithm = bf.d_turbo_vbi(
            declared,
            observations=600,
            likelihood_scale=scale,
            temperature=1.0,
            field=no_field,
            spread="weight",
            training=bf.Training(steps=60, batch_size=60, optimiser=bf.Adam(0.05)),
            initial_sd=0.05,
        )
        result = bf.run(algorithm, clients, rounds=5, progress=False)
        site = result.posterior.belief["0.weight"]
        sds[scale] = float(site.sd[site.active].median()) / exact
    assert sds["global"] == pytest.approx(1, abs=0.15)
    assert sds["local"] == pytest.approx(count**0.5, rel=0.15)


def test_models_are_scored_by_any_metric(digits, net):
    _, test = digits
    model = bf.run(
        bf.fed_avg(net, training=bf.Training(steps=1)), {"a": test}, rounds=1, progress=False
    ).model
    assert score(model, test, lambda outputs, targets: torch.ones(len(targets))) == pytest.approx(
        1.0
    )


def test_a_method_without_posterior_says_so(digits, net):
    with pytest.raises(bf.errors.ArgumentError, match="a Bayesian method, found fed_avg"):
        _ = bf.run(
            bf.fed_avg(net, training=bf.Training(steps=1)),
            {"a": digits[1]},
            rounds=1,
            progress=False,
        ).posterior


def test_a_run_begins_with_the_same_bits_on_any_number_of_cores(declared):
    def begun(threads):
        torch.set_num_threads(threads)
        return bf.d_turbo_vbi(declared, observations=1437).initial

    before = torch.get_num_threads()
    try:
        alone, together = begun(1), begun(2)
    finally:
        torch.set_num_threads(before)
    assert tree_equal(alone, together)

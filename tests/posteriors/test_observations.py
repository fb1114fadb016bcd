"""N, the number of rows of all clients, is that of the pool; clients that were never heard are
named.
"""

import pyro
import pyro.distributions as dist
import pytest
import torch

import bayesfed as bf
from bayesfed.errors import ArgumentError, UndeterminedWarning
from bayesfed.inference.variational.fusion import MeanParameters

ROWS = bf.Dataset(
    torch.randn(24, 3, generator=bf.Key(0).generator()),
    torch.randn(24, generator=bf.Key(1).generator()),
)
CLIENTS = bf.federate(ROWS, bf.iid(24, 3, bf.Key(0)))
ALL = bf.Training(steps=2, batch_size=None)


def model(inputs, targets=None):
    w = pyro.sample("w", dist.Normal(torch.zeros(3), 2.0).to_event(1))
    with pyro.plate("data", len(inputs)):
        return pyro.sample("y", dist.Normal(inputs @ w, 0.5), obs=targets)


def svi(**own):
    return bf.federated_svi(model, example=ROWS[:2], **{"training": ALL, **own})


def ran(algorithm, clients=CLIENTS, **own):
    return bf.run(algorithm, clients, **{"rounds": 2, "progress": False, **own})


@pytest.mark.parametrize("scale", ["local", "global"])
def test_without_a_number_it_is_the_pools(scale):
    rule = bf.PVI() if scale == "local" else bf.inference.ReverseKL()
    states = [
        ran(svi(fusion=rule, scale=scale, observations=number), clients).snapshot.state
        for number in (24, None)
        for clients in (CLIENTS, bf.InProcess(CLIENTS))
    ]
    for state in states[1:]:
        assert all(torch.equal(leaf, state[name]) for name, leaf in states[0].items())


def digits(make):
    targets = (ROWS.targets > 0).long()
    return make, bf.federate(bf.Dataset(ROWS.inputs, targets), bf.iid(24, 3, bf.Key(0)))


def net():
    return bf.mlp([3, 4, 2], bf.Key(0))


@pytest.mark.parametrize(
    ("make", "clients"),
    [
        (lambda n: svi(observations=n), CLIENTS),
        (
            lambda n: bf.local_privacy(
                svi(observations=n, fusion=MeanParameters()),
                clip=1.0,
                noise=0.0,
                key=bf.Key(0),
            ),
            CLIENTS,
        ),
        digits(lambda n: bf.d_turbo_vbi(bf.declare(net()), observations=n, training=ALL)),
        digits(
            lambda n: bf.federated_svi(
                bf.bayesian(net(), bf.Gaussian(1.0)),
                observations=n,
                example=bf.Dataset(ROWS.inputs[:2], torch.tensor([0, 1])),
                training=ALL,
            )
        ),
        digits(
            lambda n: bf.fed_avg(
                net(), training=bf.Training(steps=1, prior_precision=0.3, observations=n)
            )
        ),
    ],
    ids=["svi", "local_privacy", "d_turbo_vbi", "network", "training"],
)
def test_a_number_that_is_not_the_pools_is_refused_before_round_0(make, clients):
    for wrong in (32, 6):
        words = f"observations: expected 24, the rows of the pool, found {wrong}; try obs"
        with pytest.raises(ArgumentError, match=words):
            ran(make(wrong), clients)
    with pytest.warns(UserWarning, match="expected 24, the rows of the pool, found 25"):
        bf.run(make(25), clients, rounds=1, progress=False)


def test_a_network_says_that_it_needs_the_number_where_its_temperature_does():
    wide = bf.mlp([3, 16, 2], bf.Key(0))
    with pytest.raises(ArgumentError, match="observations: expected the rows of all clients"):
        bf.federated_svi(bf.bayesian(wide, bf.Gaussian(1.0)), example=ROWS[:2])
    with pytest.raises(ArgumentError, match="d_turbo_vbi, observations: expected the rows of all"):
        bf.d_turbo_vbi(bf.declare(wide))
    _, clients = digits(None)
    first, second = (
        bf.d_turbo_vbi(bf.declare(net()), observations=number, temperature=0.1)
        for number in (24, None)
    )
    states = [bf.run(made, clients, rounds=2).snapshot.state for made in (first, second)]
    assert all(torch.equal(leaf, states[1][name]) for name, leaf in states[0].items())


def test_a_client_that_was_never_heard_is_named_with_its_share():
    odd = bf.Dataset(torch.randn(8, 4), torch.zeros(8))
    words = r"never heard were 'odd' \(25.0% of the rows\), and the posterior lacks them"
    with pytest.warns(UndeterminedWarning, match=words):
        result = ran(svi(), {**CLIENTS, "odd": odd}, on_client_error="drop")
    assert result.unheard == {"odd": 0.25}
    with pytest.warns(UndeterminedWarning, match=r"'client-001' \(33.3% of the rows\), 'client-0"):
        ran(svi(), sampler=lambda round, names, key: names[:1])
    assert ran(svi()).unheard == {}


def test_few_rounds_do_not_tell_how_far_means_have_to_go():
    assert "not enough rounds to tell how far means have to go" in ran(svi()).settling.reasons

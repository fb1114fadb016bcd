"""Local differential privacy: what leaves a client is clipped and noisy, and accounted with the
sensitivity of any two changes.
"""

import math
from dataclasses import dataclass, replace

import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import norm as gaussian

import bayesfed as bf
from bayesfed.errors import ArgumentError
from bayesfed.federated import Layer, LocalOptions, layered
from bayesfed.federated.aggregation.changes import norm
from bayesfed.federated.clients.side import ClientSide
from bayesfed.federated.core.owners import owned
from bayesfed.trees import trainable, zip_map
from tests.conftest import tree_equal

WORK = bf.Training(steps=4, batch_size=16)
KEY = bf.Key(7, "secret")


def payload(algorithm, clients, client="client-000", round=0):
    side = ClientSide.of(algorithm.phases[0])
    return side.fit(
        owned(algorithm.initial, "model"),
        {},
        clients[client],
        bf.Key(0, "train", round, client, "fit"),
        LocalOptions(),
    )


@pytest.mark.parametrize("recipe", [bf.fed_avg, bf.fed_paq, bf.stc])
def test_without_clip_and_noise_it_is_the_method_with_equal_weights_bit_for_bit(
    recipe, net, clients
):
    algorithm = recipe(net, training=WORK)
    plain, free = (
        bf.run(one, clients, rounds=2, progress=False)
        for one in (
            bf.equal_weights(algorithm),
            bf.local_privacy(algorithm, clip=math.inf, noise=0.0, key=KEY),
        )
    )
    assert tree_equal(free.snapshot.state, plain.snapshot.state)
    assert all(figures == {} for record in free.history for figures in record.clients.values())


def test_what_leaves_a_client_is_within_the_bound_and_its_noise_has_the_sd(net, clients):
    plain = bf.fed_avg(net, training=WORK)
    within = payload(bf.local_privacy(plain, clip=0.05, noise=0.0, key=KEY), clients).payload
    assert norm(zip_map(torch.sub, within, owned(plain.initial, "model"))) == pytest.approx(
        0.05, rel=1e-4
    )
    noisy = bf.local_privacy(plain, clip=0.05, noise=3.0, key=KEY)

    def noise(**options):
        sent = payload(noisy, clients, **options).payload
        return torch.cat(
            [
                leaf.flatten()
                for leaf in zip_map(torch.sub, sent, owned(plain.initial, "model")).values()
            ]
        )

    first, other, later = noise(), noise(client="client-001"), noise(round=1)
    assert float(first.std()) == pytest.approx(0.15, rel=0.1)
    assert torch.equal(first, noise())
    for one in (other, later):
        assert abs(float(torch.corrcoef(torch.stack([first, one]))[0, 1])) < 0.1
    another = bf.local_privacy(plain, clip=0.05, noise=3.0, key=bf.Key(8, "secret"))
    assert not tree_equal(payload(another, clients).payload, payload(noisy, clients).payload)
    assert trainable(net).keys() == payload(noisy, clients).payload.keys()


@pytest.mark.parametrize(("noise", "rounds"), [(2.0, 1), (8.0, 50)])
def test_epsilon_is_that_of_a_sensitivity_of_twice_the_clip(noise, rounds):
    """Two changes within the bound are up to 2 clip apart; T rounds are one Gaussian mechanism of
    noise z / (2 sqrt(T)) (Balle and Wang, 2018).
    """
    mu = 2 * math.sqrt(rounds) / noise

    def delta(epsilon):
        return gaussian.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * gaussian.cdf(
            -mu / 2 - epsilon / mu
        )

    exact = brentq(lambda epsilon: delta(epsilon) - 1e-5, 1e-6, 100)
    assert bf.algorithms.epsilon(noise / 2, rounds, 1e-5) == pytest.approx(exact, rel=1e-9)


def test_every_round_is_reported_and_other_wrappers_go_around_it(net, clients):
    noisy = bf.local_privacy(
        bf.fed_avg(net, training=WORK), clip=1.0, noise=4.0, key=KEY, delta=1e-5
    )
    epsilons = [bf.algorithms.epsilon(2.0, rounds, 1e-5) for rounds in (1, 2)]
    for algorithm in (
        noisy,
        bf.robust(noisy, bf.federated.Median()),
        bf.personalised(noisy, steps=1),
    ):
        result = bf.run(algorithm, clients, rounds=2, progress=False)
        assert [value for _, value in result.series("local_epsilon")] == epsilons
        assert all(
            figures == {} for record in result.history for figures in record.clients.values()
        )


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"clip": 0.0, "noise": 1.0}, r"clip: expected a number in \(0, inf\]"),
        ({"clip": math.inf, "noise": 1.0}, "a finite clip with noise"),
        ({"clip": 1.0, "noise": 0.0, "delta": 1e-5}, "epsilon, noise: expected a positive"),
    ],
)
def test_wrong_settings_are_refused(options, match, net):
    with pytest.raises(ArgumentError, match=match):
        bf.local_privacy(bf.fed_avg(net), key=KEY, **options)


@dataclass(frozen=True)
class Tells(Layer):
    """Hands on a row beside, or in place of, what it is given."""

    owner: str = "tells"

    def receive(self, visit):
        return replace(
            visit,
            message={n: leaf + visit.data.inputs[0].sum() for n, leaf in visit.message.items()},
        )


def noisy(net, delta=1e-5, **work):
    plain = bf.fed_avg(net, training=bf.Training(steps=2, **work))
    return bf.local_privacy(plain, clip=0.5, noise=1e4, key=KEY, delta=delta)


BARE = {
    "laplace": lambda net: bf.laplace(noisy(net)),
    "laplace, nothing reported": lambda net: bf.laplace(noisy(net, None)),
    "ensemble": lambda net: bf.ensemble([noisy(net), bf.fed_avg(net)]),
    "own phase": lambda net: replace(
        noisy(net), phases=(*noisy(net).phases, replace(bf.fed_avg(net).phases[0], name="more"))
    ),
    "central, laplace": lambda net: bf.laplace(
        bf.private(bf.fed_avg(net), clip=1.0, noise=1.0, participants=4, key=KEY, delta=1e-5)
    ),
}


@pytest.mark.parametrize("case", BARE)
def test_phases_without_noise_are_refused(case, net):
    with pytest.raises(
        ArgumentError, match="epsilon would not hold: .* found others, without noise"
    ):
        BARE[case](net)


def test_what_epsilon_would_not_count_is_refused(net, clients):
    """Two noisy phases a round; a layer that adds what it likes; a prior by held-out scores; rounds
    before it.
    """
    twice = bf.ensemble([noisy(net), noisy(net)])
    with pytest.raises(
        ArgumentError, match="expected one phase with the layer that `local privacy`"
    ):
        bf.run(twice, clients, rounds=1, progress=False)
    with pytest.raises(ArgumentError, match="clients that send nothing beside their noise"):
        layered(noisy(net), Tells())
    with pytest.raises(ArgumentError, match="a method of one phase"):
        noisy(net, prior_precision="auto", observations=40)
    work = bf.Training(prior_precision="auto", observations=40)
    layer = noisy(net).phases[0].layers[0]
    with pytest.raises(ArgumentError, match="a method of one phase and one model"):
        bf.compose("own", net, training=work, layers=(layer,))
    before = bf.run(bf.fed_avg(net), clients, rounds=1, progress=False).snapshot
    resumed = {"resume": before, "resume_anyway": True}
    with pytest.raises(ArgumentError, match="a snapshot of a run with the same settings"):
        bf.run(noisy(net), clients, rounds=2, progress=False, **resumed)
    unreported = bf.ensemble([noisy(net, None), noisy(net, None)])
    assert bf.run(unreported, clients, rounds=1, progress=False).history

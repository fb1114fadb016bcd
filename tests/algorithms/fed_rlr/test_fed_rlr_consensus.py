"""FedRLR's consensus: the pull to the broadcast model, and Lemma 2."""

import math
from statistics import linear_regression

import pyro
import pytest
import torch

import bayesfed as bf
from bayesfed.algorithms.fed_rlr.local import RiemannianOptions
from bayesfed.federated import Sgd, inverse, rounds
from bayesfed.geometry import (
    metric_retraction,
    project,
    random_tangent,
    to_dense,
)
from bayesfed.models.low_rank.fixed_rank import points, with_points
from bayesfed.trees import parameters
from tests.algorithms.fed_rlr.fed_rlr_pieces import (
    WORK,
    Spy,
    dense_state,
    doubled,
    final,
    full_ranks,
    regression_net,
    regressions,
    rlr_local,
)
from tests.support.manifold import tangent_to_dense


def test_the_pull_is_the_gradient_of_a_gaussian_around_the_broadcast_model(clients):
    thin = bf.models.fixed_rank(bf.mlp([64, 12, 10], bf.Key(0, "net")).double(), 4)
    message, data = parameters(thin), doubled(clients)["client-000"]
    own = with_points(
        message,
        {
            n: metric_retraction(p, 0.3 * random_tangent(p, bf.Key(1, n)))
            for n, p in points(message).items()
        },
    )
    own["1.bias"] = message["1.bias"] + 1.0
    precision, rate = 2.0, 0.1
    spies = [Spy(), Spy()]
    for spy, pull in zip(spies, (0.0, precision * rate), strict=True):
        found = rlr_local(thin, spy).fit(
            message, own, data, bf.Key(0), RiemannianOptions(pull=pull)
        )
        assert found.info["consensus_gap"] > 0
    for name, (plain, pulled) in zip(
        points(own), zip(*(spy.asked for spy in spies), strict=True), strict=True
    ):
        here, centre = points(own)[name], to_dense(points(message)[name])
        assert torch.equal(plain[0].u, here.u)
        weight = to_dense(here).requires_grad_()
        prior = bf.Gaussian.around(centre, precision)
        pyro.poutine.trace(pyro.condition(prior.sample, {"w": weight})).get_trace(
            "w", weight
        ).log_prob_sum().neg().backward()
        penalty = project(here, weight.grad @ here.v, weight.grad.mT @ here.u)
        expected = tangent_to_dense(here, plain[1] - rate * penalty)
        assert torch.allclose(tangent_to_dense(here, pulled[1]), expected, atol=1e-12)
    # Of free leaves too.
    changes = [
        rlr_local(thin)
        .fit(message, own, data, bf.Key(0), RiemannianOptions(pull=p))
        .payload["1.bias"]
        for p in (0.0, precision * rate)
    ]
    assert torch.allclose(
        changes[1] - changes[0], -precision * rate * torch.ones(12).double(), atol=1e-12
    )


@pytest.mark.parametrize(
    "transmission",
    [pytest.param(bf.algorithms.Points(), marks=pytest.mark.slow), bf.algorithms.Tangents()],
    ids=["points", "tangents"],
)
@pytest.mark.slow
def test_lemma_2_the_consensus_gap_falls_like_the_square_of_the_step(transmission):
    """Full batches of four clients that want different things; eta = q / (nu + t), mu = c_1
    / eta.
    """
    q, nu, count = 0.05, 10, 90
    work = bf.Training(steps=1, batch_size=40, optimiser=Sgd(q), schedule=inverse(nu))
    options = {"likelihood": bf.Normal(1.0), "training": work, "reset": False}
    found = {}
    for consensus in (0.3, 0.0):
        algorithm = bf.fed_rlr(
            regression_net(),
            3,
            consensus=consensus,
            transmission=transmission,
            codec=bf.Cast(64),
            **options,
        )
        reports = rounds(algorithm, bf.InProcess(regressions()), rounds=count)
        found[consensus] = [
            sum(info["consensus_gap"] for info in report.clients.values()) / 4 for report in reports
        ]
    rates = [q / (1 + round / nu) for round in range(count)]
    ratios = [gap / rate**2 for gap, rate in zip(found[0.3], rates, strict=True)]
    late = slice(count // 3, None)
    assert min(found[0.3]) > 1e-4
    slope = linear_regression(
        [math.log(rate) for rate in rates[late]], [math.log(gap) for gap in found[0.3][late]]
    ).slope
    assert slope == pytest.approx(2, abs=0.25)
    # Bounded, and settled: not only falling.
    assert max(ratios) < 2 * ratios[-1]
    # Without the penalty clients part.
    assert found[0.0][-1] > 100 * found[0.3][-1]
    assert found[0.0][-1] > found[0.0][count // 3]


def test_a_reset_makes_the_penalty_of_one_step_nothing(clients, net):
    """Theta_k is Theta_0 when its gradient is taken: with one step mu is dead."""
    for steps, dead in ((1, True), (3, False)):
        work = {"training": bf.Training(steps=steps, batch_size=16), "codec": bf.Cast(64)}
        made = [bf.fed_rlr(net.double(), 4, consensus=pull, **work) for pull in (0.0, 0.9)]
        left, right = (dense_state(final(algorithm, doubled(clients)).state) for algorithm in made)
        assert (
            all(torch.allclose(leaf, right[name], atol=1e-10) for name, leaf in left.items())
            is dead
        )


def test_full_consensus_in_one_step_returns_to_the_broadcast_model(clients):
    net = bf.mlp([64, 12, 10], bf.Key(0, "net"))
    thin = bf.models.fixed_rank(net, full_ranks(net))
    message = parameters(thin)
    own = with_points(
        message,
        {
            n: metric_retraction(p, random_tangent(p, bf.Key(1, n)))
            for n, p in points(message).items()
        },
    )
    fit = rlr_local(thin, learning_rate=0.0).fit(
        message, own, clients["client-000"], bf.Key(0), RiemannianOptions(pull=1.0)
    )
    assert fit.info["consensus_gap"] < 1e-8


def test_consensus_may_be_a_function_of_the_round(clients, net):
    asked = []

    def share(round):
        asked.append(round)
        return 0.1 * round

    final(bf.fed_rlr(net, 4, consensus=share, reset=False, training=WORK), clients, 2)
    assert set(asked) == {0, 1}


def test_what_tangents_do_not_carry_is_reported(digits, clients):
    """Normal to the tangent space is what is of second order: steps of a tenth leave about a tenth
    of the share.
    """
    shares = []
    for rate in (0.02, 0.2):
        algorithm = bf.fed_rlr(
            bf.mlp([64, 16, 10], bf.Key(0, "net")),
            3,
            training=bf.Training(steps=5, optimiser=bf.Sgd(rate)),
        )
        infos = bf.run(algorithm, clients, rounds=1, progress=False).history[0].clients.values()
        shares.append(sum(info["off_tangent"] for info in infos) / len(infos))
    assert 0 < shares[0] < shares[1] / 4 < 0.25


def test_long_gradients_are_shortened_and_short_ones_are_not(clients):
    """A round of one step from the same point: the change is the rate times the gradient, or times
    the clip.
    """
    net, rate = bf.mlp([64, 16, 10], bf.Key(0, "net")), 1e-3
    name, data = next(iter(clients.items()))

    def moved(clip):
        algorithm = bf.fed_rlr(
            net, 3, training=bf.Training(steps=1, optimiser=bf.Sgd(rate)), clip=clip
        )
        info = bf.run(algorithm, {name: data}, rounds=1, progress=False)
        tree, start = info.snapshot.state, algorithm.initial
        weights = info.history[0].clients[name]["consensus_gap"]
        return math.sqrt(
            weights
            + sum(
                float((tree[leaf] - start[leaf]).square().sum())
                for leaf in tree
                if leaf.endswith("bias")
            )
        )

    free = moved(math.inf)
    assert moved(10 * free / rate) == free
    assert moved(0.2 * free / rate) == pytest.approx(0.2 * free, rel=1e-2)

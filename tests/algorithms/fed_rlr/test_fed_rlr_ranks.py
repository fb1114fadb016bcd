"""FedRLR's ranks that change between rounds, and long gradients."""

import math

import pytest
import torch

import bayesfed as bf
from bayesfed.algorithms.fed_rlr import Adapt, Retract
from bayesfed.algorithms.fed_rlr.local import RiemannianOptions
from bayesfed.errors import ArgumentError
from bayesfed.federated import Digital, Sum, Update, rounds
from bayesfed.geometry import (
    canonical,
    distance,
    grow,
    orthographic_retraction,
    random_point,
    random_tangent,
    singular_values,
)
from bayesfed.models.low_rank.fixed_rank_trees import points
from bayesfed.trees import is_finite, parameters, shapes
from tests.algorithms.fed_rlr.fed_rlr_pieces import SETTINGS, WORK, Spy, final, rlr_local
from tests.conftest import tree_equal


def spectral(net, values, key):
    """Return the network with a first layer of these singular values."""
    weight = net[1].weight
    point = random_point(*weight.shape, len(values), key)
    with torch.no_grad():
        weight.copy_(point.u @ torch.tensor(values).diag() @ point.v.mT)
    return net


def test_gradients_flow_into_new_directions_though_their_core_is_zero(clients, net):
    thin = bf.models.fixed_rank(net, 2)
    message = parameters(thin)
    grown = Adapt(every=1, loss=0.0, extra=2).step(message, 0)
    for name, point in points(grown).items():
        assert point.rank == 4
        assert float(distance(point, points(message)[name])) < 1e-5
        assert torch.allclose(point.u.mT @ point.u, torch.eye(4), atol=1e-5)
        assert not point.s[2:].any()
        assert not point.s[:, 2:].any()
        # The old columns keep their bits.
        assert torch.equal(point.u[:, :2], points(message)[name].u)
    spy, data = Spy(), clients["client-000"]
    fit = rlr_local(thin, spy, reset=True).fit(grown, {}, data, bf.Key(0), RiemannianOptions())
    for _, tangent in spy.asked:
        assert float(tangent.core[2:, 2:].abs().min()) > 0
        assert float(tangent.up[:, 2:].norm()) > 0
        assert float(tangent.vp[:, 2:].norm()) > 0
    reducer = Sum()
    reducer.add("a", Update(fit.payload, 1.0, "tangent"))
    state, _ = Retract(bf.Tangents()).step(grown, reducer, 0)
    assert all(float(singular_values(point)[-1]) > 1e-6 for point in points(state).values())
    # It pays: of one step with the new directions and one without, the first descends further.
    few, many = (
        list(
            rounds(
                bf.fed_rlr(bf.models.fixed_rank(net, 2), None, training=WORK, adapt=adapt),
                bf.InProcess(clients),
                rounds=8,
            )
        )
        for adapt in (None, Adapt(every=2, loss=0.0, extra=2))
    )
    assert sum(info["loss"] for info in many[-1].clients.values()) < sum(
        info["loss"] for info in few[-1].clients.values()
    )


def test_ranks_grow_where_it_helps_and_fall_where_a_spectrum_decays(clients):
    net = spectral(
        bf.mlp([64, 16, 10], bf.Key(0, "net")),
        [3.0, 2.0, 1e-3, 1e-4, 1e-5, 1e-6],
        bf.Key(0, "spectrum"),
    )
    algorithm = bf.fed_rlr(
        net,
        {"1": 6, "3": 2},
        adapt=Adapt(every=1, loss=1e-4, extra=2, largest=5),
        training=bf.Training(steps=1, optimiser=bf.Sgd(1e-4)),
    )
    reports = list(rounds(algorithm, bf.InProcess(clients), rounds=2))
    assert reports[0].server == {"1.rank": 2.0, "3.rank": 4.0}
    # A direction that a round of such steps could not fill is dropped again.
    assert reports[1].server == {"1.rank": 4.0, "3.rank": 2.0}
    algorithm = bf.fed_rlr(
        net,
        2,
        adapt=Adapt(every=2, loss=1e-4, extra=2, largest=5),
        training=bf.Training(steps=5, optimiser=bf.Sgd(0.3)),
    )
    reports = list(rounds(algorithm, bf.InProcess(clients), rounds=8))
    assert [report.server["3.rank"] for report in reports] == [2, 4, 4, 5, 5, 5, 5, 5]
    sent = [sum(row.bits for row in report.rows if row.direction == "up") for report in reports]
    assert sent[0] == sent[1] < sent[2] == sent[3] < sent[4]
    assert reports[-1].model(clients["client-000"].inputs).shape == (len(clients["client-000"]), 10)


@pytest.mark.parametrize(
    "adapt",
    [
        Adapt(every=1, loss=0.0, extra=0),
        Adapt(every=1, loss=0.0, extra=3, largest=4),
        Adapt(every=99),
    ],
)
@pytest.mark.parametrize(
    "settings",
    [{}, SETTINGS["own tangents"], SETTINGS["points"], SETTINGS["air"]],
    ids=["default", "own", "points", "air"],
)
def test_ranks_that_need_not_change_leave_every_bit(adapt, settings, clients, net):
    with_it, without = (
        final(bf.fed_rlr(net, 4, adapt=option, training=WORK, **settings), clients, 3)
        for option in (adapt, None)
    )
    assert tree_equal(with_it.state, without.state)
    assert with_it.server == {"1.rank": 4.0, "3.rank": 4.0}
    assert without.server == {}


def test_clients_of_another_rank_begin_anew(clients, net):
    """A client's own Theta_k of the rank before is no start for this round's: it takes the
    broadcast model.
    """
    thin = bf.models.fixed_rank(net, 2)
    message, data = parameters(thin), clients["client-000"]
    grown, local = Adapt(every=1, loss=0.0, extra=1).step(message, 0), rlr_local(thin)
    own = local.fit(message, {}, data, bf.Key(0), RiemannianOptions()).memory
    fresh, stale = (
        local.fit(grown, memory, data, bf.Key(1), RiemannianOptions()) for memory in ({}, own)
    )
    assert tree_equal(fresh.payload, stale.payload)
    assert shapes(stale.memory) == shapes(grown)
    kept = local.fit(message, own, data, bf.Key(1), RiemannianOptions())
    assert not tree_equal(
        kept.payload, local.fit(message, {}, data, bf.Key(1), RiemannianOptions()).payload
    )


FOLLOW = [
    (sent, link)
    for sent in (bf.Tangents(), bf.Factors("orthogonal"), bf.Points())
    for link in (Digital(), bf.OverTheAir(snr_db=25.0))
][:-1]


@pytest.mark.parametrize(("transmission", "link"), FOLLOW)
def test_every_transmission_follows_a_rank(transmission, link, clients, net):
    algorithm = bf.fed_rlr(
        net,
        2,
        transmission=transmission,
        link=link,
        reset=False,
        adapt=Adapt(every=2, loss=0.0, extra=3),
        training=WORK,
    )
    report = final(algorithm, clients, 5)
    assert report.server == {"1.rank": 8.0, "3.rank": 8.0}
    assert all(is_finite(leaf) for leaf in report.state.values())


def test_a_layer_never_grows_beyond_its_shape_nor_falls_to_nothing(clients, net):
    report = final(
        bf.fed_rlr(net, 9, adapt=Adapt(every=1, loss=0.0, extra=5), training=WORK), clients, 2
    )
    assert report.server == {"1.rank": 16.0, "3.rank": 10.0}
    report = final(
        bf.fed_rlr(net, 9, adapt=Adapt(every=1, loss=0.999, extra=5), training=WORK), clients, 1
    )
    assert report.server == {"1.rank": 1.0, "3.rank": 1.0}


def test_a_loss_of_zero_truncates_nothing(net):
    """Not even a direction that nothing has filled yet."""
    grown = Adapt(every=1, loss=0.0, extra=2).step(parameters(bf.models.fixed_rank(net, 2)), 0)
    assert tree_equal(Adapt(every=1, loss=0.0, extra=0).step(grown, 0), grown)
    assert {
        point.rank for point in points(Adapt(every=1, loss=1e-6, extra=0).step(grown, 0)).values()
    } == {2}


@pytest.mark.parametrize(
    "arguments",
    [
        {"every": 0},
        {"loss": 1.0},
        {"loss": -0.1},
        {"loss": math.nan},
        {"extra": -1},
        {"largest": 0},
    ],
)
def test_adaptations_are_checked(arguments):
    with pytest.raises(ArgumentError, match=f"Adapt, {next(iter(arguments))}: expected a .*number"):
        Adapt(**arguments)


def test_new_directions_are_the_same_on_every_machine(net):
    message = parameters(bf.models.fixed_rank(net, 2))
    first, again, later = (
        Adapt(every=1, loss=0.0, extra=1).step(message, round) for round in (0, 0, 1)
    )
    assert tree_equal(first, again)
    assert not torch.equal(first["1.u"], later["1.u"])
    assert float(canonical(points(first)["1"]).s[2, 2]) == 0
    point = points(message)["1"]
    with pytest.raises(ArgumentError, match="orthographic_retraction: expected an invertible"):
        orthographic_retraction(
            grow(point, first["1.u"][:, 2:], first["1.v"][:, 2:]),
            0.0 * random_tangent(points(first)["1"], bf.Key(0)),
        )


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

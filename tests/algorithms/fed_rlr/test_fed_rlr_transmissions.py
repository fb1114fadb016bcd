"""What travels in FedRLR: tangents, factors and points, precoders, and what of them is received
over the air.
"""

import math
from itertools import permutations

import pytest
import torch
from torch import nn

import bayesfed as bf
from bayesfed.algorithms.fed_rlr import Retract
from bayesfed.algorithms.fed_rlr.local import RiemannianOptions, sent_shapes
from bayesfed.errors import UpdateError
from bayesfed.federated import Digital, Keep, Sgd, Sum, Update
from bayesfed.federated.core.owners import owned
from bayesfed.geometry import (
    FixedRank,
    Tangent,
    difference,
    distance,
    from_dense,
    metric_retraction,
    orthographic_retraction,
    project,
    random_point,
    random_tangent,
    singular_values,
    to_dense,
    to_factors,
)
from bayesfed.models.low_rank.fixed_rank import points
from bayesfed.testing import check_view
from bayesfed.trees import parameters, shapes
from tests.algorithms.fed_rlr.fed_rlr_pieces import ALL, WORK, final, rlr_local
from tests.conftest import tree_equal
from tests.support.manifold import inner


def some_point(number, rows=7, columns=5, rank=3):
    return random_point(rows, columns, rank, bf.Key(number, "point"), dtype=torch.float64)


def z(found, expected, variance):
    """Return how many standard errors the means over draws ``(n, ...)`` are off, at worst."""
    off = (found.mean(0) - expected).abs()
    return float((off / (variance / len(found)).sqrt().clamp_min(1e-12)).max())


def update(transmission, base, own, weights):
    """Return what a sum of these points' payloads is."""
    sent = [
        transmission.send(base, point, bf.Key(0, "send", number))
        for number, point in enumerate(own)
    ]
    return {
        part: sum(w * tree[part] for w, tree in zip(weights, sent, strict=True)) for part in sent[0]
    }


@pytest.mark.parametrize("reach", [1e-6, 1.0, 100.0])
def test_one_clients_change_is_carried_without_loss(reach):
    """However far: the projection of the difference is the inverse of the orthographic
    retraction.
    """
    base, sent = some_point(0), bf.algorithms.Tangents(orthographic_retraction)
    own = (
        FixedRank(some_point(1).u, reach * some_point(1).s, some_point(1).v)
        if reach > 1e-3
        else metric_retraction(base, reach * random_tangent(base, bf.Key(2)))
    )
    received = sent.receive(base, [update(sent, base, [own], [3.0])], [3.0])
    assert float(distance(received, own)) < 1e-10 * max(1, float(singular_values(own)[0]))


@pytest.mark.parametrize("retraction", [metric_retraction, orthographic_retraction])
def test_tangents_of_many_are_the_retraction_of_their_mean(retraction):
    base, weights, sent = some_point(0), [1.0, 2.0, 5.0], bf.algorithms.Tangents(retraction)
    own = [some_point(number) for number in (1, 2, 3)]
    rows, columns = base.u @ base.u.mT, base.v @ base.v.mT
    mean = sum(w * to_dense(point) for w, point in zip(weights, own, strict=True)) / 8 - to_dense(
        base
    )
    projected = rows @ mean + mean @ columns - rows @ mean @ columns
    tangent = project(base, projected @ base.v, projected.mT @ base.u)
    received = sent.receive(base, [update(sent, base, own, weights)], [8.0])
    assert torch.allclose(to_dense(received), to_dense(retraction(base, tangent)), atol=1e-12)


def test_noise_outside_the_tangent_space_is_projected_off():
    base, sent = some_point(0), bf.algorithms.Tangents()
    total = update(sent, base, [some_point(1)], [1.0])
    generator = bf.Key(0, "noise").generator()
    noisy = {
        name: leaf + torch.randn(leaf.shape, generator=generator).double()
        for name, leaf in total.items()
    }
    clean = {
        "core": noisy["core"],
        "up": noisy["up"] - base.u @ (base.u.mT @ noisy["up"]),
        "vp": noisy["vp"] - base.v @ (base.v.mT @ noisy["vp"]),
    }
    expected = metric_retraction(base, Tangent(clean["core"], clean["up"], clean["vp"]))
    assert torch.allclose(
        to_dense(sent.receive(base, [noisy], [1.0])), to_dense(expected), atol=1e-12
    )
    along = {"core": torch.zeros(3, 3).double(), "up": base.u, "vp": base.v}
    assert float(distance(sent.receive(base, [along], [1.0]), base)) < 1e-12


def products(precoder, own, count):
    """Return draws of the received product before it is cut to its rank, ``(count, M, N)``."""
    sent, base, found = bf.algorithms.Factors(precoder), own[0], []
    for draw in range(count):
        payloads = [
            sent.send(base, point, bf.Key(draw, "client", number))
            for number, point in enumerate(own)
        ]
        found.append(
            sum(tree["left"] for tree in payloads)
            @ sum(tree["right"] for tree in payloads).mT
            / len(own)
        )
    return torch.stack(found)


def own_variance(point):
    """The variance of an entry of ``A F F^T B^T``, F of (25): F F^T is 1 on its diagonal, off it of
    variance 1 / R and symmetric.
    """
    a, b = to_factors(point)
    pairs = [(i, j) for i in range(point.rank) for j in range(i)]
    return (
        sum(
            (torch.outer(a[:, i], b[:, j]) + torch.outer(a[:, j], b[:, i])).square()
            for i, j in pairs
        )
        / point.rank
    )


def cross_variance(own):
    """Of all K (K - 1) cross terms: F_k F_l^T has entries of variance 1 / R, and that of l, k is
    its transpose.
    """
    total = torch.zeros(own[0].shape).double()
    for left, right in permutations(own, 2):
        (a, _), (_, b) = to_factors(left), to_factors(right)
        total += torch.outer(a.square().sum(1), b.square().sum(1)) + to_dense(left) * to_dense(
            right
        )
    return total / own[0].rank


def test_the_own_term_of_rademacher_precoders_is_noisy_as_predicted():
    point = some_point(3)
    found, variance = products("rademacher", [point], 3000), own_variance(point)
    assert z(found, to_dense(point), variance) < 4
    assert float((found.var(0) / variance).log().abs().max()) < 0.25
    values = singular_values(point)
    assert float(variance.sum()) == pytest.approx(
        float((values.sum() ** 2 - values.square().sum()) / 3)
    )
    # At most (R - 1) / R of the signal's energy: reached where singular values are alike.
    alike = FixedRank(point.u, torch.eye(3).double(), point.v)
    assert float(own_variance(alike).sum()) == pytest.approx(
        2 / 3 * float(to_dense(alike).square().sum())
    )
    assert float(variance.sum()) < 2 / 3 * float(to_dense(point).square().sum())


def test_an_orthogonal_precoder_leaves_the_own_term_alone():
    point = some_point(3)
    assert torch.allclose(
        products("orthogonal", [point], 20), to_dense(point).expand(20, -1, -1), atol=1e-12
    )


@pytest.mark.slow
@pytest.mark.parametrize("precoder", ["rademacher", "orthogonal"])
def test_the_received_product_is_the_mean_of_points_and_noise_as_predicted(precoder):
    own = [some_point(number) for number in (3, 4, 5)]
    mean, found = sum(map(to_dense, own)) / 3, products(precoder, own, 2000)
    variance = cross_variance(own) / 9
    if precoder == "rademacher":
        variance = variance + sum(map(own_variance, own)) / 9
    assert z(found, mean, variance) < 4
    assert float((found.var(0) / variance).log().abs().max()) < 0.25


def test_without_a_precoder_cross_terms_stay():
    own = [some_point(number) for number in (3, 4, 5)]
    mean = sum(map(to_dense, own)) / 3
    crossed = (
        sum(to_factors(left)[0] @ to_factors(right)[1].mT for left, right in permutations(own, 2))
        / 3
    )
    assert torch.allclose(products("none", own, 2), (mean + crossed).expand(2, -1, -1), atol=1e-12)
    # K equal clients make K times the matrix.
    assert torch.allclose(products("none", [own[0]] * 3, 1)[0], 3 * to_dense(own[0]), atol=1e-12)


@pytest.mark.parametrize("precoder", ["rademacher", "orthogonal"])
def test_precoders_have_mean_zero_and_unit_second_moment(precoder):
    draws = torch.stack(
        [
            bf.algorithms.Factors(precoder).draw(3, bf.Key(number, "precoder"))
            for number in range(3000)
        ]
    )
    assert z(draws, torch.zeros(3, 3), torch.full((3, 3), 1 / 3)) < 4
    gram = draws @ draws.mT
    off = (gram - torch.eye(3)).abs()
    assert (
        float(off.max()) < 1e-12
        if precoder == "orthogonal"
        else float(off.diagonal(dim1=1, dim2=2).max()) < 1e-12
    )
    assert tree_equal(
        bf.algorithms.Factors(precoder).send(some_point(0), some_point(0), bf.Key(1)),
        bf.algorithms.Factors(precoder).send(some_point(0), some_point(0), bf.Key(1)),
    )


@pytest.mark.parametrize("precoder", ["rademacher", "orthogonal"])
def test_every_client_round_and_layer_has_a_precoder_of_its_own(precoder, clients):
    net = bf.mlp([64, 10, 10, 10], bf.Key(0, "net")).double()
    algorithm = bf.fed_rlr(
        net,
        3,
        transmission=bf.algorithms.Factors(precoder),
        training=bf.Training(steps=1),
        codec=bf.Cast(64),
    )
    local, state = algorithm.phases[0].local, owned(algorithm.initial, "model")
    sound = points(state)
    empty = bf.Dataset(torch.ones(0, 64), torch.ones(0).long())
    drawn = []
    for client, round in (("a", 0), ("b", 0), ("a", 1)):
        payload = local.fit(
            state, {}, empty, bf.Key(0, "train", round, client), RiemannianOptions()
        ).payload
        for name, point in sound.items():
            sides = [
                torch.linalg.lstsq(factor, payload[f"{name}.{part}"]).solution
                for factor, part in zip(to_factors(point), ("left", "right"), strict=True)
            ]
            # One F for both sides of a product.
            assert torch.allclose(*sides, atol=1e-8)
            drawn.append(sides[0])
    assert len(drawn) == 9
    assert all(float((left - right).abs().max()) > 1e-3 for left, right in permutations(drawn, 2))


def test_factors_are_received_as_the_product_cut_to_its_rank():
    own, sent = [some_point(number) for number in (3, 4)], bf.algorithms.Factors("orthogonal")
    total = update(sent, own[0], own, [1.0, 1.0])
    received = sent.receive(own[0], [total], [2.0])
    assert torch.allclose(
        to_dense(received),
        to_dense(from_dense(total["left"] @ total["right"].mT / 2, 3)),
        atol=1e-12,
    )


def test_points_are_received_as_the_dense_mean_cut_by_its_svd():
    base, weights, sent = some_point(0), [1.0, 2.0, 5.0], bf.algorithms.Points()
    own = [some_point(number) for number in (1, 2, 3)]
    totals = [update(sent, base, [point], [w]) for point, w in zip(own, weights, strict=True)]
    mean = sum(w * to_dense(point) for w, point in zip(weights, own, strict=True)) / 8
    assert torch.allclose(
        to_dense(sent.receive(base, totals, weights)), to_dense(from_dense(mean, 3)), atol=1e-12
    )


@pytest.mark.slow
def test_equal_tangents_under_gbma_spread_as_predicted():
    """K equal payloads, no noise: the factor on the step has mean 1 and variance (4 /
    pi - 1) / K.
    """
    data = bf.Dataset(torch.eye(4)[:3], torch.arange(3))
    net, count = nn.Linear(4, 3), 100
    with torch.no_grad():
        net.weight.copy_(torch.eye(3, 4) + 0.1)
    # A step so short that what the retraction bends is below the comparison.
    work = {
        "training": bf.Training(steps=1, batch_size=3, optimiser=Sgd(1e-2)),
        "codec": bf.Cast(32),
    }
    air = bf.OverTheAir(bf.wireless.Gbma(), power_w=1.0, noise_w=0.0)
    clients = {f"c{number}": data for number in range(5)}
    algorithm = bf.fed_rlr(net, 2, link=air, **work)
    base, start = points(owned(algorithm.initial, "model"))[""], algorithm.initial["model/bias"]
    digital = owned(final(bf.fed_rlr(net, 2, **work), clients, 1).state, "model")
    whole = difference(base, points(digital)[""])
    found = []
    for seed in range(count):
        state = owned(final(algorithm, clients, 1, seed=seed).state, "model")
        factor = float(inner(whole, difference(base, points(state)[""])) / inner(whole, whole))
        assert torch.allclose(state["bias"] - start, factor * (digital["bias"] - start), atol=1e-4)
        found.append(factor)
    factors, variance = torch.tensor(found), (4 / math.pi - 1) / 5
    assert abs(float(factors.mean()) - 1) / math.sqrt(variance / count) < 4
    assert abs(math.log(float(factors.var()) / variance)) < 0.5


@pytest.mark.slow
def test_the_papers_power_control_is_for_products():
    """Own terms |h|^2 X have mean X under `Gbma("product")`; what is no product, a bias, comes back
    sqrt(pi) / 2 short in the mean.
    """
    net, count = nn.Linear(4, 3), 250
    with torch.no_grad():
        net.weight.copy_(torch.eye(3, 4) + 0.1)
    data, found = {"a": bf.Dataset(torch.eye(4)[:3], torch.arange(3))}, []
    air = bf.OverTheAir(bf.wireless.Gbma("product"), power_w=1.0, noise_w=0.0)
    made = {
        link: bf.fed_rlr(
            net,
            3,
            transmission=bf.algorithms.Factors("orthogonal"),
            link=link,
            training=bf.Training(steps=1, optimiser=bf.Sgd(0.1)),
        )
        for link in (air, Digital())
    }
    digital = owned(final(made[Digital()], data, 1).state, "model")
    start = made[air].initial["model/bias"]
    matrix, bias = to_dense(points(digital)[""]), digital["bias"] - start
    for seed in range(count):
        state = owned(final(made[air], data, 1, seed=seed).state, "model")
        received, moved = to_dense(points(state)[""]), state["bias"] - start
        found.append((float(received.norm() / matrix.norm()), float(moved.norm() / bias.norm())))
        assert torch.allclose(received, found[-1][0] * matrix, atol=1e-4)
    # |h|^2 is exponential, |h| Rayleigh.
    for values, mean, variance in zip(
        torch.tensor(found).T, (1.0, math.sqrt(math.pi) / 2), (1.0, 1 - math.pi / 4), strict=True
    ):
        assert abs(float(values.mean()) - mean) / math.sqrt(variance / count) < 4
    assert torch.allclose(torch.tensor(found)[:, 0], torch.tensor(found)[:, 1].square(), rtol=1e-3)


@pytest.mark.parametrize("transmission", ALL)
def test_payloads_have_the_shapes_and_kinds_promised(transmission, clients, net):
    thin = bf.models.fixed_rank(net, 4)
    message, local = parameters(thin), rlr_local(thin, transmission=transmission, reset=True)
    fit = local.fit(message, {}, clients["client-000"], bf.Key(0), RiemannianOptions())
    assert shapes(fit.payload) == dict(sent_shapes(message, transmission))
    assert local.kind == transmission.kind
    phase = bf.fed_rlr(net, 4, transmission=transmission, training=WORK).phases[0]
    profile = bf.InProcess(clients).profiles[0]
    assignment = phase.assign(message, 0, profile, bf.Key(0))
    check_view(assignment.view, fit.payload, transmission.kind)
    assert assignment.weight == (profile.samples if transmission.weighs else 1.0)
    assert isinstance(phase.reducer(), Sum if transmission.adds else Keep)


def test_kinds_and_reducers_are_guarded(net):
    state, zero = parameters(bf.models.fixed_rank(net, 4)), {}
    for transmission in ALL:
        wrong, server = (Keep() if transmission.adds else Sum()), Retract(transmission)
        wrong.add("a", Update(zero, 1.0, transmission.kind))
        with pytest.raises(
            UpdateError,
            match=f"updates of kind '{transmission.kind}', found {type(wrong).__name__}",
        ):
            server.step(state, wrong, 0)
        right = Sum() if transmission.adds else Keep()
        with pytest.raises(UpdateError, match="found"):
            server.step(state, right, 0)
        right.add("a", Update(zero, 1.0, "delta"))
        with pytest.raises(UpdateError, match="found .*'delta'"):
            server.step(state, right, 0)


def test_a_round_of_empty_clients_changes_nothing(net, clients):
    for transmission in ALL:
        state, reducer = (
            parameters(bf.models.fixed_rank(net, 4)),
            Sum() if transmission.adds else Keep(),
        )
        zeros = {
            name: torch.zeros(shape) for name, shape in sent_shapes(state, transmission).items()
        }
        reducer.add("a", Update(zeros, 0.0, transmission.kind))
        assert tree_equal(Retract(transmission).step(state, reducer, 0)[0], state)


@pytest.mark.parametrize(
    "codec", [bf.Cast(16), bf.compress.Coded(bf.compress.Uniform(8))], ids=["half", "8 bits"]
)
def test_rounding_on_the_way_down_is_no_change_to_send_back(codec, net):
    """A client that has not moved says so, whatever the codec did to its u and v."""
    algorithm = bf.fed_rlr(net, 4)
    sent = owned(algorithm.initial, "model")
    received, _ = codec.decode(codec.encode(sent, {}, bf.Key(0)), bf.Key(0))
    fit = rlr_local(bf.models.fixed_rank(net, 4), reset=True).fit(
        received,
        {},
        bf.Dataset(torch.ones(0, 64), torch.ones(0).long()),
        bf.Key(0),
        RiemannianOptions(),
    )
    assert max(float(leaf.abs().max()) for leaf in fit.payload.values()) < 1e-5
    assert fit.info["consensus_gap"] < 1e-9


def test_it_runs_with_codecs_that_round(clients, net):
    fine, coarse = (
        final(bf.fed_rlr(net, 4, codec=codec, training=WORK), clients, 3)
        for codec in (None, bf.Cast(16))
    )
    for name, point in points(owned(fine.state, "model")).items():
        assert float(distance(point, points(owned(coarse.state, "model"))[name])) < 0.02 * float(
            singular_values(point)[0]
        )

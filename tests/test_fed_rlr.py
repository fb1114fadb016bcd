"""FedRLR: FedAvg at full rank, the consensus of Lemma 2, what travels and what is made of it, failures, and ranks that change."""

import math
from dataclasses import replace
from itertools import permutations
from statistics import linear_regression

import pyro
import pytest
import torch
from torch import nn

import bayesfed as bf
from bayesfed.algorithms.fed_rlr.local import RiemannianOptions, free, sent_shapes
from bayesfed.errors import ArgumentError, ClientError, DataError, UpdateError
from bayesfed.federated import Adapt, Digital, Keep, Retract, RiemannianSgd, Sgd, Sum, Update, checkpoint, inverse, load, rounds
from bayesfed.federated.engine.ledger import channel_uses
from bayesfed.geometry import (
    FixedRank,
    Tangent,
    canonical,
    difference,
    distance,
    from_dense,
    grow,
    inner,
    metric_retraction,
    orthographic_retraction,
    project,
    random_point,
    random_tangent,
    singular_values,
    tangent_to_dense,
    to_dense,
    to_factors,
)
from bayesfed.models.low_rank.fixed_rank_trees import points, with_points
from bayesfed.testing import check_local, check_view
from bayesfed.trees import is_finite, parameters, shapes
from tests.conftest import tree_equal
from tests.test_air import CLEAR

WORK = bf.Training(steps=3, batch_size=16, optimiser=bf.Sgd(0.05))
ALL = [bf.Tangents(), bf.Tangents(orthographic_retraction), bf.Factors(), bf.Factors("orthogonal"), bf.Factors("none"), bf.Points()]


def doubled(clients):
    return {name: bf.Dataset(data.inputs.double(), data.targets) for name, data in clients.items()}


def full_ranks(net):
    return {name: min(weight.shape[0], weight[0].numel()) for name, weight in dense_weights(net).items()}


def dense_weights(net):
    return {name.removesuffix(".weight"): value for name, value in net.named_parameters() if value.ndim > 1}


def dense_state(state):
    return {name: to_dense(point) for name, point in points(state).items()} | free(state)


def flattened(state):
    return {name.removesuffix(".weight"): leaf.flatten(1) if leaf.ndim > 1 else leaf for name, leaf in state.items()}


def final(algorithm, clients, count=2, **run):
    pool = clients if isinstance(clients, bf.InProcess) else bf.InProcess(clients)
    return list(rounds(algorithm, pool, rounds=count, **run))[-1]


def some_point(number, rows=7, columns=5, rank=3):
    return random_point(rows, columns, rank, bf.Key(number, "point"), dtype=torch.float64)


def z(found, expected, variance):
    """Return how many standard errors the means over draws ``(n, ...)`` are off, at worst."""
    off = (found.mean(0) - expected).abs()
    return float((off / (variance / len(found)).sqrt().clamp_min(1e-12)).max())


def update(transmission, base, own, weights):
    """Return what a sum of these points' payloads is."""
    sent = [transmission.send(base, point, bf.Key(0, "send", number)) for number, point in enumerate(own)]
    return {part: sum(w * tree[part] for w, tree in zip(weights, sent, strict=True)) for part in sent[0]}


# What it is a case of.


@pytest.mark.parametrize("link", [Digital(), CLEAR], ids=["digital", "clear"])
@pytest.mark.parametrize("kind", ["mlp", "cnn"])
@pytest.mark.parametrize("transmission", [bf.Tangents(), bf.Tangents(orthographic_retraction)], ids=["metric", "orthographic"])
def test_at_full_rank_one_step_is_fed_avg(kind, link, transmission, clients):
    key = bf.Key(0, "net")
    net = (bf.mlp([64, 12, 10], key) if kind == "mlp" else bf.cnn((1, 8, 8), 10, key, channels=(4, 6), hidden=12)).double()
    common = {"training": bf.Training(steps=1, batch_size=16, optimiser=Sgd(0.2)), "codec": bf.Cast(64), "link": link}
    thin = final(bf.fed_rlr(net, full_ranks(net), transmission=transmission, **common), doubled(clients), 3)
    dense = final(bf.fed_avg(net, **common), doubled(clients), 3)
    found, expected = dense_state(thin.state), flattened(dense.state)
    assert found.keys() == expected.keys()
    for name, leaf in expected.items():
        assert leaf.dtype is found[name].dtype is torch.float64
        assert torch.allclose(found[name], leaf, rtol=1e-9, atol=1e-11), name
    losses = [[info["loss"] for info in report.clients.values()] for report in (thin, dense)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)
    inputs = next(iter(doubled(clients).values())).inputs
    assert torch.allclose(thin.model(inputs), dense.model(inputs), atol=1e-9)


@pytest.mark.parametrize("link", [Digital(), CLEAR], ids=["digital", "clear"])
def test_dense_layers_and_biases_take_plain_steps(link, clients):
    """Where one layer stays dense and another has full rank, it still is FedAvg."""
    net = bf.mlp([64, 12, 10], bf.Key(0, "net")).double()
    common = {"training": bf.Training(steps=1, batch_size=16, optimiser=Sgd(0.1)), "codec": bf.Cast(64), "link": link}
    thin = final(bf.fed_rlr(net, {"3": 10}, **common), doubled(clients), 2)
    assert set(points(thin.state)) == {"3"}
    assert set(free(thin.state)) == {"1.weight", "1.bias", "3.bias"}
    expected = final(bf.fed_avg(net, **common), doubled(clients), 2).state
    assert torch.allclose(thin.state["1.weight"], expected["1.weight"], atol=1e-12)
    assert torch.allclose(to_dense(points(thin.state)["3"]), expected["3.weight"], atol=1e-12)


def test_a_step_is_the_retraction_of_the_dense_projected_gradient(clients):
    """Below full rank, against autograd's dense gradient and (47) written out."""
    net = bf.mlp([64, 12, 10], bf.Key(0, "net")).double()
    data = doubled({"a": clients["client-000"]})
    algorithm = bf.fed_rlr(net, 4, training=bf.Training(steps=1, batch_size=10**6, optimiser=bf.Sgd(0.3)), codec=bf.Cast(64))
    twin, before = bf.mlp([64, 12, 10], bf.Key(0, "net")).double(), points(algorithm.initial)
    with torch.no_grad():
        for name, point in before.items():
            twin.get_submodule(name).weight.copy_(to_dense(point))
    nn.functional.cross_entropy(twin(data["a"].inputs), data["a"].targets).backward()
    for name, point in points(final(algorithm, data, 1).state).items():
        gradient, here = twin.get_submodule(name).weight.grad, before[name]
        rows, columns = here.u @ here.u.mT, here.v @ here.v.mT
        projected = rows @ gradient + gradient @ columns - rows @ gradient @ columns
        expected = from_dense(to_dense(here) - 0.3 * projected, 4)
        # The server retracts the tangent part of what the client's own retraction made of it.
        carried = metric_retraction(here, difference(here, expected))
        assert torch.allclose(to_dense(point), to_dense(carried), atol=1e-12)


def test_a_schedule_is_a_factor_on_the_rate(clients, net):
    work = bf.Training(steps=2, batch_size=16, optimiser=Sgd(0.1), schedule=lambda round: (1.0, 0.5)[round])
    scheduled = bf.fed_rlr(net, 4, training=work)
    one, two = (report.snapshot for report in rounds(scheduled, bf.InProcess(clients), rounds=2))
    halved = bf.fed_rlr(net, 4, training=bf.Training(steps=2, batch_size=16, optimiser=Sgd(0.05)))
    assert tree_equal(final(halved, clients, 2, resume=one).state, two.state)


def test_one_layer_may_be_the_whole_network():
    layer, data = nn.Linear(4, 3), {"a": bf.Dataset(torch.ones(4, 4), torch.tensor([0, 1, 2, 0]))}
    report = final(bf.fed_rlr(layer, 2, adapt=Adapt(every=1, loss=0.0), training=WORK), data, 2)
    assert report.server == {".rank": 3.0}
    assert set(report.state) == {"u", "s", "v", "bias"}


# Consensus.


class Spy:
    """The metric retraction, which writes down where it was asked to go."""

    def __init__(self):
        self.asked = []

    def __call__(self, point, tangent):
        self.asked.append((point, tangent))
        return metric_retraction(point, tangent)


def rlr_local(net, retraction=metric_retraction, **changes):
    arguments = {"transmission": bf.Tangents(), "learning_rate": 0.1, "steps": 1, "batch_size": 16, "reset": False}
    return RiemannianSgd(net, bf.Categorical(), **{**arguments, **changes}, retraction=retraction)


def test_the_pull_is_the_gradient_of_a_gaussian_around_the_broadcast_model(clients):
    thin = bf.fixed_rank(bf.mlp([64, 12, 10], bf.Key(0, "net")).double(), 4)
    message, data = parameters(thin), doubled(clients)["client-000"]
    own = with_points(message, {n: metric_retraction(p, 0.3 * random_tangent(p, bf.Key(1, n))) for n, p in points(message).items()})
    own["1.bias"] = message["1.bias"] + 1.0
    precision, rate = 2.0, 0.1
    spies = [Spy(), Spy()]
    for spy, pull in zip(spies, (0.0, precision * rate), strict=True):
        found = rlr_local(thin, spy).fit(message, own, data, bf.Key(0), RiemannianOptions(pull=pull))
        assert found.info["consensus_gap"] > 0
    for name, (plain, pulled) in zip(points(own), zip(*(spy.asked for spy in spies), strict=True), strict=True):
        here, centre = points(own)[name], to_dense(points(message)[name])
        assert torch.equal(plain[0].u, here.u)
        weight = to_dense(here).requires_grad_()
        prior = bf.Gaussian.around(centre, precision)
        pyro.poutine.trace(pyro.condition(prior.sample, {"w": weight})).get_trace("w", weight).log_prob_sum().neg().backward()
        penalty = project(here, weight.grad @ here.v, weight.grad.mT @ here.u)
        expected = tangent_to_dense(here, plain[1] - rate * penalty)
        assert torch.allclose(tangent_to_dense(here, pulled[1]), expected, atol=1e-12)
    # Of free leaves too.
    changes = [rlr_local(thin).fit(message, own, data, bf.Key(0), RiemannianOptions(pull=p)).payload["1.bias"] for p in (0.0, precision * rate)]
    assert torch.allclose(changes[1] - changes[0], -precision * rate * torch.ones(12).double(), atol=1e-12)


def regressions(count=4, rows=40):
    found = {}
    for number in range(count):
        generator = bf.Key(number, "regression").generator()
        x, w = torch.randn(rows, 12, generator=generator).double(), torch.randn(12, 8, generator=generator).double()
        found[f"c{number}"] = bf.Dataset(x, x @ w + 0.1 * torch.randn(rows, 8, generator=generator).double())
    return found


def regression_net():
    return bf.mlp([12, 8], bf.Key(0, "net")).double()


@pytest.mark.parametrize("transmission", [bf.Points(), bf.Tangents()], ids=["points", "tangents"])
def test_lemma_2_the_consensus_gap_falls_like_the_square_of_the_step(transmission):
    """Full batches of four clients that want different things; eta = q / (nu + t), mu = c_1 / eta."""
    q, nu, count = 0.05, 10, 90
    work = bf.Training(steps=1, batch_size=40, optimiser=Sgd(q), schedule=inverse(nu))
    options = {"likelihood": bf.Normal(1.0), "training": work, "reset": False}
    found = {}
    for consensus in (0.3, 0.0):
        algorithm = bf.fed_rlr(regression_net(), 3, consensus=consensus, transmission=transmission, codec=bf.Cast(64), **options)
        reports = rounds(algorithm, bf.InProcess(regressions()), rounds=count)
        found[consensus] = [sum(info["consensus_gap"] for info in report.clients.values()) / 4 for report in reports]
    rates = [q / (1 + round / nu) for round in range(count)]
    ratios = [gap / rate**2 for gap, rate in zip(found[0.3], rates, strict=True)]
    late = slice(count // 3, None)
    assert min(found[0.3]) > 1e-4
    slope = linear_regression([math.log(rate) for rate in rates[late]], [math.log(gap) for gap in found[0.3][late]]).slope
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
        assert all(torch.allclose(leaf, right[name], atol=1e-10) for name, leaf in left.items()) is dead


def test_full_consensus_in_one_step_returns_to_the_broadcast_model(clients):
    net = bf.mlp([64, 12, 10], bf.Key(0, "net"))
    thin = bf.fixed_rank(net, full_ranks(net))
    message = parameters(thin)
    own = with_points(message, {n: metric_retraction(p, random_tangent(p, bf.Key(1, n))) for n, p in points(message).items()})
    fit = rlr_local(thin, learning_rate=0.0).fit(message, own, clients["client-000"], bf.Key(0), RiemannianOptions(pull=1.0))
    assert fit.info["consensus_gap"] < 1e-8


def test_consensus_may_be_a_function_of_the_round(clients, net):
    asked = []

    def share(round):
        asked.append(round)
        return 0.1 * round

    final(bf.fed_rlr(net, 4, consensus=share, reset=False, training=WORK), clients, 2)
    assert set(asked) == {0, 1}


# What travels.


@pytest.mark.parametrize("reach", [1e-6, 1.0, 100.0])
def test_one_clients_change_is_carried_without_loss(reach):
    """However far: the projection of the difference is the inverse of the orthographic retraction."""
    base, sent = some_point(0), bf.Tangents(orthographic_retraction)
    own = (
        FixedRank(some_point(1).u, reach * some_point(1).s, some_point(1).v)
        if reach > 1e-3
        else metric_retraction(base, reach * random_tangent(base, bf.Key(2)))
    )
    received = sent.receive(base, [update(sent, base, [own], [3.0])], [3.0])
    assert float(distance(received, own)) < 1e-10 * max(1, float(singular_values(own)[0]))


@pytest.mark.parametrize("retraction", [metric_retraction, orthographic_retraction])
def test_tangents_of_many_are_the_retraction_of_their_mean(retraction):
    base, weights, sent = some_point(0), [1.0, 2.0, 5.0], bf.Tangents(retraction)
    own = [some_point(number) for number in (1, 2, 3)]
    rows, columns = base.u @ base.u.mT, base.v @ base.v.mT
    mean = sum(w * to_dense(point) for w, point in zip(weights, own, strict=True)) / 8 - to_dense(base)
    projected = rows @ mean + mean @ columns - rows @ mean @ columns
    tangent = project(base, projected @ base.v, projected.mT @ base.u)
    received = sent.receive(base, [update(sent, base, own, weights)], [8.0])
    assert torch.allclose(to_dense(received), to_dense(retraction(base, tangent)), atol=1e-12)


def test_noise_outside_the_tangent_space_is_projected_off():
    base, sent = some_point(0), bf.Tangents()
    total = update(sent, base, [some_point(1)], [1.0])
    generator = bf.Key(0, "noise").generator()
    noisy = {name: leaf + torch.randn(leaf.shape, generator=generator).double() for name, leaf in total.items()}
    clean = {
        "core": noisy["core"],
        "up": noisy["up"] - base.u @ (base.u.mT @ noisy["up"]),
        "vp": noisy["vp"] - base.v @ (base.v.mT @ noisy["vp"]),
    }
    expected = metric_retraction(base, Tangent(clean["core"], clean["up"], clean["vp"]))
    assert torch.allclose(to_dense(sent.receive(base, [noisy], [1.0])), to_dense(expected), atol=1e-12)
    along = {"core": torch.zeros(3, 3).double(), "up": base.u, "vp": base.v}
    assert float(distance(sent.receive(base, [along], [1.0]), base)) < 1e-12


def products(precoder, own, count):
    """Return draws of the received product before it is cut to its rank, ``(count, M, N)``."""
    sent, base, found = bf.Factors(precoder), own[0], []
    for draw in range(count):
        payloads = [sent.send(base, point, bf.Key(draw, "client", number)) for number, point in enumerate(own)]
        found.append(sum(tree["left"] for tree in payloads) @ sum(tree["right"] for tree in payloads).mT / len(own))
    return torch.stack(found)


def own_variance(point):
    """The variance of an entry of ``A F F^T B^T``, F of (25): F F^T is 1 on its diagonal, off it of variance 1 / R and symmetric."""
    a, b = to_factors(point)
    pairs = [(i, j) for i in range(point.rank) for j in range(i)]
    return sum((torch.outer(a[:, i], b[:, j]) + torch.outer(a[:, j], b[:, i])).square() for i, j in pairs) / point.rank


def cross_variance(own):
    """Of all K (K - 1) cross terms: F_k F_l^T has entries of variance 1 / R, and that of l, k is its transpose."""
    total = torch.zeros(own[0].shape).double()
    for left, right in permutations(own, 2):
        (a, _), (_, b) = to_factors(left), to_factors(right)
        total += torch.outer(a.square().sum(1), b.square().sum(1)) + to_dense(left) * to_dense(right)
    return total / own[0].rank


def test_the_own_term_of_rademacher_precoders_is_noisy_as_predicted():
    point = some_point(3)
    found, variance = products("rademacher", [point], 3000), own_variance(point)
    assert z(found, to_dense(point), variance) < 4
    assert float((found.var(0) / variance).log().abs().max()) < 0.25
    values = singular_values(point)
    assert float(variance.sum()) == pytest.approx(float((values.sum() ** 2 - values.square().sum()) / 3))
    # At most (R - 1) / R of the signal's energy: reached where singular values are alike.
    alike = FixedRank(point.u, torch.eye(3).double(), point.v)
    assert float(own_variance(alike).sum()) == pytest.approx(2 / 3 * float(to_dense(alike).square().sum()))
    assert float(variance.sum()) < 2 / 3 * float(to_dense(point).square().sum())


def test_an_orthogonal_precoder_leaves_the_own_term_alone():
    point = some_point(3)
    assert torch.allclose(products("orthogonal", [point], 20), to_dense(point).expand(20, -1, -1), atol=1e-12)


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
    crossed = sum(to_factors(left)[0] @ to_factors(right)[1].mT for left, right in permutations(own, 2)) / 3
    assert torch.allclose(products("none", own, 2), (mean + crossed).expand(2, -1, -1), atol=1e-12)
    # K equal clients make K times the matrix.
    assert torch.allclose(products("none", [own[0]] * 3, 1)[0], 3 * to_dense(own[0]), atol=1e-12)


@pytest.mark.parametrize("precoder", ["rademacher", "orthogonal"])
def test_precoders_have_mean_zero_and_unit_second_moment(precoder):
    draws = torch.stack([bf.Factors(precoder).draw(3, bf.Key(number, "precoder")) for number in range(3000)])
    assert z(draws, torch.zeros(3, 3), torch.full((3, 3), 1 / 3)) < 4
    gram = draws @ draws.mT
    off = (gram - torch.eye(3)).abs()
    assert float(off.max()) < 1e-12 if precoder == "orthogonal" else float(off.diagonal(dim1=1, dim2=2).max()) < 1e-12
    assert tree_equal(
        bf.Factors(precoder).send(some_point(0), some_point(0), bf.Key(1)), bf.Factors(precoder).send(some_point(0), some_point(0), bf.Key(1))
    )


@pytest.mark.parametrize("precoder", ["rademacher", "orthogonal"])
def test_every_client_round_and_layer_has_a_precoder_of_its_own(precoder, clients):
    net = bf.mlp([64, 10, 10, 10], bf.Key(0, "net")).double()
    algorithm = bf.fed_rlr(net, 3, transmission=bf.Factors(precoder), training=bf.Training(steps=1), codec=bf.Cast(64))
    local, sound = algorithm.phases[0].local, points(algorithm.initial)
    empty = bf.Dataset(torch.ones(0, 64), torch.ones(0).long())
    drawn = []
    for client, round in (("a", 0), ("b", 0), ("a", 1)):
        payload = local.fit(algorithm.initial, {}, empty, bf.Key(0, "train", round, client), RiemannianOptions()).payload
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
    own, sent = [some_point(number) for number in (3, 4)], bf.Factors("orthogonal")
    total = update(sent, own[0], own, [1.0, 1.0])
    received = sent.receive(own[0], [total], [2.0])
    assert torch.allclose(to_dense(received), to_dense(from_dense(total["left"] @ total["right"].mT / 2, 3)), atol=1e-12)


def test_points_are_received_as_the_dense_mean_cut_by_its_svd():
    base, weights, sent = some_point(0), [1.0, 2.0, 5.0], bf.Points()
    own = [some_point(number) for number in (1, 2, 3)]
    totals = [update(sent, base, [point], [w]) for point, w in zip(own, weights, strict=True)]
    mean = sum(w * to_dense(point) for w, point in zip(weights, own, strict=True)) / 8
    assert torch.allclose(to_dense(sent.receive(base, totals, weights)), to_dense(from_dense(mean, 3)), atol=1e-12)


def test_equal_tangents_under_gbma_spread_as_predicted():
    """K equal payloads, no noise: the factor on the step has mean 1 and variance (4 / pi - 1) / K."""
    data = bf.Dataset(torch.eye(4)[:3], torch.arange(3))
    net, count = nn.Linear(4, 3), 100
    with torch.no_grad():
        net.weight.copy_(torch.eye(3, 4) + 0.1)
    # A step so short that what the retraction bends is below the comparison.
    work = {"training": bf.Training(steps=1, batch_size=3, optimiser=Sgd(1e-2)), "codec": bf.Cast(32)}
    air = bf.OverTheAir(bf.Gbma(), power_w=1.0, noise_w=0.0)
    clients = {f"c{number}": data for number in range(5)}
    algorithm = bf.fed_rlr(net, 2, link=air, **work)
    base, start = points(algorithm.initial)[""], algorithm.initial["bias"]
    digital = final(bf.fed_rlr(net, 2, **work), clients, 1).state
    whole = difference(base, points(digital)[""])
    found = []
    for seed in range(count):
        state = final(algorithm, clients, 1, seed=seed).state
        factor = float(inner(whole, difference(base, points(state)[""])) / inner(whole, whole))
        assert torch.allclose(state["bias"] - start, factor * (digital["bias"] - start), atol=1e-4)
        found.append(factor)
    factors, variance = torch.tensor(found), (4 / math.pi - 1) / 5
    assert abs(float(factors.mean()) - 1) / math.sqrt(variance / count) < 4
    assert abs(math.log(float(factors.var()) / variance)) < 0.5


def test_the_papers_power_control_is_for_products():
    """Own terms |h|^2 X have mean X under `Gbma("product")`; what is no product, a bias, comes back sqrt(pi) / 2 short in the mean."""
    net, count = nn.Linear(4, 3), 250
    with torch.no_grad():
        net.weight.copy_(torch.eye(3, 4) + 0.1)
    data, found = {"a": bf.Dataset(torch.eye(4)[:3], torch.arange(3))}, []
    air = bf.OverTheAir(bf.Gbma("product"), power_w=1.0, noise_w=0.0)
    made = {
        link: bf.fed_rlr(net, 3, transmission=bf.Factors("orthogonal"), link=link, training=bf.Training(steps=1, optimiser=bf.Sgd(0.1)))
        for link in (air, Digital())
    }
    digital = final(made[Digital()], data, 1).state
    matrix, bias = to_dense(points(digital)[""]), digital["bias"] - made[air].initial["bias"]
    for seed in range(count):
        state = final(made[air], data, 1, seed=seed).state
        received, moved = to_dense(points(state)[""]), state["bias"] - made[air].initial["bias"]
        found.append((float(received.norm() / matrix.norm()), float(moved.norm() / bias.norm())))
        assert torch.allclose(received, found[-1][0] * matrix, atol=1e-4)
    # |h|^2 is exponential, |h| Rayleigh.
    for values, mean, variance in zip(torch.tensor(found).T, (1.0, math.sqrt(math.pi) / 2), (1.0, 1 - math.pi / 4), strict=True):
        assert abs(float(values.mean()) - mean) / math.sqrt(variance / count) < 4
    assert torch.allclose(torch.tensor(found)[:, 0], torch.tensor(found)[:, 1].square(), rtol=1e-3)


@pytest.mark.parametrize("transmission", ALL)
def test_payloads_have_the_shapes_and_kinds_promised(transmission, clients, net):
    thin = bf.fixed_rank(net, 4)
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
    state, zero = parameters(bf.fixed_rank(net, 4)), {}
    for transmission in ALL:
        wrong, server = (Keep() if transmission.adds else Sum()), Retract(transmission)
        wrong.add("a", Update(zero, 1.0, transmission.kind))
        with pytest.raises(UpdateError, match=f"updates of kind '{transmission.kind}', found {type(wrong).__name__}"):
            server.step(state, wrong, 0)
        right = Sum() if transmission.adds else Keep()
        with pytest.raises(UpdateError, match="found"):
            server.step(state, right, 0)
        right.add("a", Update(zero, 1.0, "delta"))
        with pytest.raises(UpdateError, match="found .*'delta'"):
            server.step(state, right, 0)


def test_a_round_of_empty_clients_changes_nothing(net, clients):
    for transmission in ALL:
        state, reducer = parameters(bf.fixed_rank(net, 4)), Sum() if transmission.adds else Keep()
        zeros = {name: torch.zeros(shape) for name, shape in sent_shapes(state, transmission).items()}
        reducer.add("a", Update(zeros, 0.0, transmission.kind))
        assert tree_equal(Retract(transmission).step(state, reducer, 0)[0], state)


@pytest.mark.parametrize("codec", [bf.Cast(16), bf.Coded(bf.compress.Uniform(8))], ids=["half", "8 bits"])
def test_rounding_on_the_way_down_is_no_change_to_send_back(codec, net):
    """A client that has not moved says so, whatever the codec did to its u and v."""
    algorithm = bf.fed_rlr(net, 4)
    received, _ = codec.decode(codec.encode(algorithm.initial, {}, bf.Key(0)), bf.Key(0))
    fit = rlr_local(bf.fixed_rank(net, 4), reset=True).fit(
        received, {}, bf.Dataset(torch.ones(0, 64), torch.ones(0).long()), bf.Key(0), RiemannianOptions()
    )
    assert max(float(leaf.abs().max()) for leaf in fit.payload.values()) < 1e-5
    assert fit.info["consensus_gap"] < 1e-9


def test_it_runs_with_codecs_that_round(clients, net):
    fine, coarse = (final(bf.fed_rlr(net, 4, codec=codec, training=WORK), clients, 3) for codec in (None, bf.Cast(16)))
    for name, point in points(fine.state).items():
        assert float(distance(point, points(coarse.state)[name])) < 0.02 * float(singular_values(point)[0])


# Clients.


@pytest.mark.parametrize("transmission", ALL)
@pytest.mark.parametrize("reset", [True, False])
def test_the_local_obeys_the_laws_of_locals(transmission, reset, clients, net):
    thin = bf.fixed_rank(net, 4)
    local = rlr_local(thin, transmission=transmission, reset=reset, steps=2)
    check_local(local, parameters(thin), clients["client-000"], RiemannianOptions(pull=0.1))


def test_the_local_obeys_them_with_dropout_and_draws_from_its_own_stream(clients):
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 10))
    thin = bf.fixed_rank(net, 4)
    check_local(rlr_local(thin, uses_global_randomness=True), parameters(thin), clients["client-000"])
    assert bf.fed_rlr(net, 4).phases[0].local.uses_global_randomness
    serial = final(bf.fed_rlr(net, 4, training=WORK), clients)
    with bf.InProcess(clients, workers=2) as pool:
        assert tree_equal(final(bf.fed_rlr(net, 4, training=WORK), pool).state, serial.state)


SETTINGS = {
    "default": {},
    "paper": {"transmission": bf.Factors(), "reset": False, "consensus": 0.1},
    "paper on the air": {
        "transmission": bf.Factors("orthogonal"),
        "reset": False,
        "consensus": 0.1,
        "link": bf.OverTheAir(bf.Gbma("product"), snr_db=25.0),
    },
    "own tangents": {"reset": False, "consensus": 0.1},
    "points": {"transmission": bf.Points(), "reset": False},
    "air": {"link": bf.OverTheAir(snr_db=25.0, estimate_variance=0.1)},
    "adapted": {"reset": False, "adapt": Adapt(every=1, loss=1e-3)},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_workers_order_and_resuming_do_not_change_a_bit(settings, clients, net, tmp_path):
    algorithm = bf.fed_rlr(net, 4, training=WORK, **settings)
    whole, half = final(algorithm, clients, 3).snapshot, final(algorithm, clients, 2).snapshot
    again = final(algorithm, clients, 3, resume=half).snapshot
    assert tree_equal(again.state, whole.state)
    assert whole.memories.keys() == again.memories.keys() == (set() if settings.get("reset", True) else set(clients))
    assert all(tree_equal(memory, again.memories[name]) for name, memory in whole.memories.items())
    list(map(checkpoint(tmp_path / "run"), [list(rounds(algorithm, bf.InProcess(clients), rounds=2))[-1]]))
    assert tree_equal(final(algorithm, clients, 3, resume=load(tmp_path / "run")).snapshot.state, whole.state)
    for kind in ("process", "thread"):
        with bf.InProcess(dict(reversed(clients.items())), workers=2, kind=kind) as pool:
            found = final(algorithm, pool, 3).snapshot
        assert tree_equal(found.state, whole.state)
        assert all(tree_equal(memory, found.memories[name]) for name, memory in whole.memories.items())


@pytest.mark.parametrize("transmission", ALL)
@pytest.mark.parametrize("reset", [True, False])
def test_empty_clients_and_clients_of_one_row(transmission, reset, clients, net):
    data = clients["client-000"]
    empty, single = bf.Dataset(data.inputs[:0], data.targets[:0]), bf.Dataset(data.inputs[:1], data.targets[:1])
    algorithm = bf.fed_rlr(net, 4, transmission=transmission, reset=reset, training=WORK)
    others = {"a": data, "b": clients["client-001"]}
    report, without = final(algorithm, {**others, "void": empty}), final(algorithm, others)
    assert tree_equal(report.state, without.state)
    assert "void" not in report.snapshot.memories
    assert report.clients["void"] == {
        "samples": 0.0,
        "loss": 0.0,
        "nll": 0.0,
        "consensus_gap": pytest.approx(0, abs=1e-8),
        "off_tangent": pytest.approx(0, abs=1),
    }
    for point in points(final(algorithm, {**others, "one": single}).state).values():
        assert point.rank == 4
    assert all(is_finite(leaf) for leaf in final(algorithm, {"one": single}).state.values())


@pytest.mark.parametrize("link", [Digital(), CLEAR], ids=["digital", "clear"])
def test_clients_weigh_by_their_rows(link, net):
    """A client that holds everybody's rows, or each row three times, weighs so; full batches, one step, full rank."""
    generator = bf.Key(0, "rows").generator()
    inputs, targets = torch.randn(12, 64, generator=generator).double(), torch.arange(12) % 10
    whole = {"all": bf.Dataset(inputs, targets)}
    parts = {"a": bf.Dataset(inputs[:2], targets[:2]), "b": bf.Dataset(inputs[2:], targets[2:])}
    algorithm = bf.fed_rlr(
        net.double(), full_ranks(net), training=bf.Training(steps=1, batch_size=12, optimiser=bf.Sgd(0.1)), codec=bf.Cast(64), link=link
    )
    together, apart = (dense_state(final(algorithm, clients, 2).state) for clients in (whole, parts))
    assert all(torch.allclose(leaf, apart[name], atol=1e-10) for name, leaf in together.items())


def test_factors_weigh_clients_alike(clients, net):
    algorithm = bf.fed_rlr(net, 4, transmission=bf.Factors("orthogonal"), training=WORK)
    seen, honest = [], algorithm.phases[0]

    class Noted(Retract):
        def step(self, state, reducer, round):
            seen.append(reducer.total.weight)
            return super().step(state, reducer, round)

    final(replace(algorithm, phases=(replace(honest, server=Noted(bf.Factors("orthogonal"))),)), clients, 1)
    assert seen == [len(clients)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_other_likelihoods(dtype):
    data = {name: bf.Dataset(part.inputs.to(dtype), part.targets.to(dtype)) for name, part in regressions().items()}
    net = regression_net().to(dtype)
    codec = bf.Cast(64 if dtype is torch.float64 else 32)
    algorithm = bf.fed_rlr(net, 4, likelihood=bf.Normal(1.0), training=bf.Training(steps=5, optimiser=bf.Sgd(0.02)), codec=codec)
    reports = list(rounds(algorithm, bf.InProcess(dict.fromkeys("ab", data["c0"])), rounds=8))
    losses = [sum(info["nll"] for info in report.clients.values()) for report in reports]
    assert losses[-1] < 0.6 * losses[0]
    assert all(leaf.dtype is dtype for leaf in reports[-1].state.values())


@pytest.mark.parametrize("link", [Digital(), CLEAR], ids=["digital", "clear"])
def test_the_state_keeps_its_dtype(link, clients):
    """A float64 network whose messages are 32 bits wide: trained in 32, kept in 64."""
    net = bf.mlp([64, 8, 10], bf.Key(0, "net")).double()
    state = final(bf.fed_rlr(net, 3, link=link, training=WORK), clients).state
    assert {leaf.dtype for leaf in state.values()} == {torch.float64}


def test_a_sum_in_64_bits_does_not_widen_the_state(net):
    state, reducer = parameters(bf.fixed_rank(net, 4)), Sum()
    reducer.add("a", Update({name: torch.ones(shape).double() for name, shape in sent_shapes(state, bf.Tangents()).items()}, 1.0, "tangent"))
    assert {leaf.dtype for leaf in Retract(bf.Tangents()).step(state, reducer, 0)[0].values()} == {torch.float32}


def test_a_layer_that_is_not_reached_stays_and_shared_layers_are_one(clients):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.idle, self.shared, self.last = nn.Linear(64, 8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 10)
            self.again = self.shared

        def forward(self, x):
            return self.last(self.again(self.shared(self.first(x.flatten(1)).relu()).relu()))

    with torch.random.fork_rng():
        net = Odd()
    algorithm = bf.fed_rlr(net, 3, training=WORK)
    state = final(algorithm, clients).state
    before, after = points(algorithm.initial), points(state)
    assert set(after) == {"first", "idle", "shared", "last"}
    assert float(distance(before["idle"], after["idle"])) < 1e-5
    assert float(distance(before["shared"], after["shared"])) > 1e-3


# Failures.


def diverging(clients, name="client-001", size=1e30):
    data = clients[name]
    return {**clients, name: bf.Dataset(data.inputs * size, data.targets)}


@pytest.mark.parametrize("settings", [s for n, s in SETTINGS.items() if n != "adapted"], ids=[n for n in SETTINGS if n != "adapted"])
@pytest.mark.parametrize("size", [1e12, 1e25, 1e38])
def test_a_client_that_diverges_is_named_and_the_others_go_on(settings, size, clients, net):
    algorithm = bf.fed_rlr(net, 4, training=WORK, **settings)
    report = final(algorithm, diverging(clients, size=size), on_client_error="drop")
    assert list(report.refused) == ["client-001"]
    without = final(algorithm, {name: data for name, data in clients.items() if name != "client-001"})
    assert tree_equal(report.state, without.state)
    assert report.snapshot.memories.keys() == without.snapshot.memories.keys()
    assert all(tree_equal(memory, without.snapshot.memories[name]) for name, memory in report.snapshot.memories.items())
    with pytest.raises(ClientError, match="client 'client-001', round 0"):
        final(algorithm, diverging(clients, size=size))


def test_where_a_client_diverged_is_said_in_words(clients, net):
    with pytest.raises(ClientError, match=r"stage 'fit': local Riemannian SGD.*smaller learning rate"):
        final(bf.fed_rlr(net, 4, training=WORK), diverging(clients, size=1e25))
    thin = bf.fixed_rank(net, 4)
    with pytest.raises(DataError, match="local Riemannian SGD, layer '1'.*orthographic"):
        rlr_local(thin, lambda point, tangent: orthographic_retraction(point, Tangent(-point.s, tangent.up, tangent.vp))).fit(
            parameters(thin), {}, clients["client-000"], bf.Key(0), RiemannianOptions()
        )


def test_labels_the_network_has_not_are_said_in_words(clients, net):
    data = clients["client-001"]
    odd = {**clients, "client-001": bf.Dataset(data.inputs, data.targets + 7)}
    with pytest.raises(ClientError, match=r"client 'client-001', round 0, stage 'fit': .*labels: expected 0 to 9"):
        final(bf.fed_rlr(net, 4, training=WORK), odd)


def test_a_mean_that_no_point_belongs_to_names_layer_and_round(net):
    state, sent = parameters(bf.fixed_rank(net, 4)), bf.Tangents(orthographic_retraction)
    zeros = {name: torch.zeros(shape) for name, shape in sent_shapes(state, sent).items()}
    reducer = Sum()
    reducer.add("a", Update({**zeros, "3.core": -state["3.s"]}, 1.0, "tangent"))
    with pytest.raises(UpdateError, match="Retract, layer '3', round 5: orthographic_retraction: expected an invertible"):
        Retract(sent).step(state, reducer, 5)


def test_memory_of_clients_not_heard_does_not_advance(clients, net):
    """Silent under channel inversion: a client's own Theta_k goes on from where it was last heard."""
    air = bf.OverTheAir(bf.ChannelInversion(0.9), power_w=1.0, noise_w=0.0)
    algorithm = bf.fed_rlr(net, 4, reset=False, link=air, training=WORK)
    before, seen = {}, set()
    for report in rounds(algorithm, bf.InProcess(clients), rounds=6, on_client_error="drop"):
        heard = {row.client for row in report.rows if row.direction == "up" and row.accepted}
        seen.add(len(heard))
        for name in clients:
            now, then = report.snapshot.memories.get(name, {}), before.get(name, {})
            assert tree_equal(now, then) == (name not in heard), name
        before = report.snapshot.memories
    assert seen - {0, len(clients)}


def test_ragged_payloads_are_refused(clients, net):
    algorithm = bf.fed_rlr(net, 4, training=WORK)
    phase = algorithm.phases[0]

    class Ragged(RiemannianSgd):
        def fit(self, message, memory, data, key, options):
            fit = super().fit(message, memory, data, key, options)
            return fit._replace(payload={**fit.payload, "1.up": fit.payload["1.up"][:, :3]}) if len(data) == rows else fit

    rows = len(clients["client-002"])
    ragged = Ragged(*(getattr(phase.local, name) for name in phase.local.__dataclass_fields__))
    for link in (Digital(), CLEAR):
        odd = replace(algorithm, phases=(replace(phase, local=ragged, link=link),))
        report = final(odd, clients, 1, on_client_error="drop")
        assert list(report.refused) == ["client-002"]
        assert "'1.up': expected shape (16, 4), found (16, 3)" in report.refused["client-002"]


def test_nobody_on_the_air_is_an_error_in_words(clients, net):
    air = bf.OverTheAir(bf.ChannelInversion(9.0), power_w=1.0)
    with pytest.raises(ClientError, match="a client on the air"):
        final(bf.fed_rlr(net, 4, link=air, training=WORK), clients)
    with pytest.raises(DataError, match="a client with data"):
        final(bf.fed_rlr(net, 4, training=WORK), {})


@pytest.mark.parametrize(
    ("rank", "arguments", "words"),
    [
        (0, {}, r"layer '1': expected a rank from 1 to 16, found 0"),
        (17, {}, r"layer '1': expected a rank from 1 to 16, found 17"),
        (True, {}, "a rank from 1 to 16"),
        (1.5, {}, r"a ratio in \(0, 1\]"),
        ({"9": 2}, {}, r"layers among \['1', '3'\]"),
        (None, {}, "layers of fixed rank, found none"),
        (4, {"consensus": -0.1}, r"consensus: expected a share in \[0, 1\], found -0.1"),
        (4, {"consensus": 1.1}, r"a share in \[0, 1\]"),
        (4, {"consensus": math.nan}, r"a share in \[0, 1\]"),
        (4, {"training": bf.Training(optimiser=bf.Adam(0.01))}, "fed_rlr, training.optimiser: expected Sgd without momentum and decay"),
        (4, {"training": bf.Training(optimiser=bf.Sgd(0.1, momentum=0.9))}, "Sgd without momentum and decay"),
        (4, {"training": bf.Training(optimiser=bf.Sgd(0.1, weight_decay=0.1))}, "Sgd without momentum and decay"),
        (4, {"clip": 0.0}, "clip: expected a norm above 0"),
        (4, {"clip": math.nan}, "clip: expected a norm above 0"),
        (4, {"transmission": bf.Points(), "link": CLEAR}, "a transmission that adds, found Points"),
        (4, {"adapt": Adapt(), "retraction": orthographic_retraction}, "metric_retraction where ranks grow"),
        (4, {"adapt": Adapt(), "transmission": bf.Tangents(orthographic_retraction)}, "metric_retraction where ranks grow"),
    ],
)
def test_arguments_are_checked(rank, arguments, words, net):
    with pytest.raises(ArgumentError, match=words):
        bf.fed_rlr(net, rank, **arguments)


def test_running_statistics_are_refused():
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4))
    with pytest.raises(ArgumentError, match=r"without running statistics, found .*running_mean.*GroupNorm"):
        bf.fed_rlr(net, 2)


def test_consensus_of_a_round_is_checked_in_that_round(clients, net):
    algorithm = bf.fed_rlr(net, 4, consensus=lambda round: 2.0 * round, training=WORK)
    with pytest.raises(ArgumentError, match=r"consensus, round 1: expected a share in \[0, 1\], found 2.0"):
        final(algorithm, clients)


def test_rules_that_need_points_apart_are_refused_by_the_air(clients, net):
    algorithm = bf.fed_rlr(net, 4, transmission=bf.Points(), training=WORK)
    air = replace(algorithm, phases=(replace(algorithm.phases[0], link=CLEAR),))
    with pytest.raises(ArgumentError, match="expected a sum, found Keep"):
        final(air, clients)


def test_unknown_precoders_and_snrs_are_refused():
    with pytest.raises(ArgumentError, match="'rademacher', 'orthogonal' or 'none', found 'haar'"):
        bf.Factors("haar")
    with pytest.raises(ArgumentError, match="a finite snr_db"):
        bf.OverTheAir(snr_db=math.nan)


def test_finiteness_of_leaves_that_record_gradients_is_looked_at_without_a_warning():
    leaf = torch.ones(3, requires_grad=True)
    assert is_finite(leaf)
    assert not is_finite(leaf * math.nan)
    # Their sum overflows.
    assert is_finite(torch.full((4,), 3e38))
    assert not is_finite(torch.tensor([math.inf, -math.inf, 1.0]))


# It learns.


def test_it_learns_digits_at_rank_4_and_over_the_air(digits):
    train, test = digits
    clients = bf.federate(train, bf.dirichlet(train.targets, 5, 1.0, bf.Key(0, "partition")))
    net = bf.mlp([64, 32, 10], bf.Key(0, "net"))
    work = bf.Training(steps=20, batch_size=32, optimiser=Sgd(1.0))
    found = {}
    for name, link in (("digital", Digital()), ("air", bf.OverTheAir(snr_db=25.0))):
        result = bf.run(bf.fed_rlr(net, 4, link=link, training=work), clients, rounds=12, test=test, progress=False)
        found[name] = result.final("accuracy")
        for point in points(result.model.parameters).values():
            assert point.rank == 4
            assert float(singular_values(point)[-1]) > 0
            assert torch.linalg.matrix_rank(to_dense(point)) == 4
        first = result.history[0].rows
        numbers = sum(4 * sum(point.shape) + 16 for point in points(result.snapshot.state).values()) + 32 + 10
        if name == "air":
            assert channel_uses(first) == numbers
        else:
            up = [row.bits for row in first if row.direction == "up"]
            # 32 bits a number, and a header.
            assert all(0 < bits - 32 * numbers < 8 * 1024 for bits in up)
    assert found["digital"] > 0.8
    assert found["air"] == pytest.approx(found["digital"], abs=0.06)


def test_factors_take_as_many_numbers_as_the_paper_counts(clients, net):
    report = final(
        bf.fed_rlr(net, 4, transmission=bf.Factors("orthogonal"), link=bf.OverTheAir(bf.Gbma("product"), snr_db=25.0), training=WORK), clients, 1
    )
    assert channel_uses(report.rows) == 4 * (64 + 16) + 4 * (16 + 10) + 16 + 10


@pytest.mark.slow
@pytest.mark.parametrize("transmission", [bf.Points(), bf.Tangents()], ids=["points", "tangents"])
def test_it_learns_with_clients_that_keep_their_own_points(transmission, digits):
    """The paper's own mode: one step a round from the client's own Theta_k."""
    train, test = digits
    clients = bf.federate(train, bf.dirichlet(train.targets, 4, 1.0, bf.Key(0, "partition")))
    net, work = bf.mlp([64, 32, 10], bf.Key(0, "net")), bf.Training(steps=1, batch_size=32, optimiser=Sgd(0.7))
    algorithm = bf.fed_rlr(net, 4, transmission=transmission, reset=False, consensus=0.5, training=work)
    assert bf.run(algorithm, clients, rounds=200, test=test, progress=False).final("accuracy") > 0.75


# Ranks that change.


def spectral(net, values, key):
    """Return the network with a first layer of these singular values."""
    weight = net[1].weight
    point = random_point(*weight.shape, len(values), key)
    with torch.no_grad():
        weight.copy_(point.u @ torch.tensor(values).diag() @ point.v.mT)
    return net


def test_gradients_flow_into_new_directions_though_their_core_is_zero(clients, net):
    thin = bf.fixed_rank(net, 2)
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
        list(rounds(bf.fed_rlr(bf.fixed_rank(net, 2), None, training=WORK, adapt=adapt), bf.InProcess(clients), rounds=8))
        for adapt in (None, Adapt(every=2, loss=0.0, extra=2))
    )
    assert sum(info["loss"] for info in many[-1].clients.values()) < sum(info["loss"] for info in few[-1].clients.values())


def test_ranks_grow_where_it_helps_and_fall_where_a_spectrum_decays(clients):
    net = spectral(bf.mlp([64, 16, 10], bf.Key(0, "net")), [3.0, 2.0, 1e-3, 1e-4, 1e-5, 1e-6], bf.Key(0, "spectrum"))
    algorithm = bf.fed_rlr(
        net, {"1": 6, "3": 2}, adapt=Adapt(every=1, loss=1e-4, extra=2, largest=5), training=bf.Training(steps=1, optimiser=bf.Sgd(1e-4))
    )
    reports = list(rounds(algorithm, bf.InProcess(clients), rounds=2))
    assert reports[0].server == {"1.rank": 2.0, "3.rank": 4.0}
    # A direction that a round of such steps could not fill is dropped again.
    assert reports[1].server == {"1.rank": 4.0, "3.rank": 2.0}
    algorithm = bf.fed_rlr(net, 2, adapt=Adapt(every=2, loss=1e-4, extra=2, largest=5), training=bf.Training(steps=5, optimiser=bf.Sgd(0.3)))
    reports = list(rounds(algorithm, bf.InProcess(clients), rounds=8))
    assert [report.server["3.rank"] for report in reports] == [2, 4, 4, 5, 5, 5, 5, 5]
    sent = [sum(row.bits for row in report.rows if row.direction == "up") for report in reports]
    assert sent[0] == sent[1] < sent[2] == sent[3] < sent[4]
    assert reports[-1].model(clients["client-000"].inputs).shape == (len(clients["client-000"]), 10)


@pytest.mark.parametrize("adapt", [Adapt(every=1, loss=0.0, extra=0), Adapt(every=1, loss=0.0, extra=3, largest=4), Adapt(every=99)])
@pytest.mark.parametrize("settings", [{}, SETTINGS["own tangents"], SETTINGS["points"], SETTINGS["air"]], ids=["default", "own", "points", "air"])
def test_ranks_that_need_not_change_leave_every_bit(adapt, settings, clients, net):
    with_it, without = (final(bf.fed_rlr(net, 4, adapt=option, training=WORK, **settings), clients, 3) for option in (adapt, None))
    assert tree_equal(with_it.state, without.state)
    assert with_it.server == {"1.rank": 4.0, "3.rank": 4.0}
    assert without.server == {}


def test_clients_of_another_rank_begin_anew(clients, net):
    """A client's own Theta_k of the rank before is no start for this round's: it takes the broadcast model."""
    thin = bf.fixed_rank(net, 2)
    message, data = parameters(thin), clients["client-000"]
    grown, local = Adapt(every=1, loss=0.0, extra=1).step(message, 0), rlr_local(thin)
    own = local.fit(message, {}, data, bf.Key(0), RiemannianOptions()).memory
    fresh, stale = (local.fit(grown, memory, data, bf.Key(1), RiemannianOptions()) for memory in ({}, own))
    assert tree_equal(fresh.payload, stale.payload)
    assert shapes(stale.memory) == shapes(grown)
    kept = local.fit(message, own, data, bf.Key(1), RiemannianOptions())
    assert not tree_equal(kept.payload, local.fit(message, {}, data, bf.Key(1), RiemannianOptions()).payload)


FOLLOW = [(sent, link) for sent in (bf.Tangents(), bf.Factors("orthogonal"), bf.Points()) for link in (Digital(), bf.OverTheAir(snr_db=25.0))][:-1]


@pytest.mark.parametrize(("transmission", "link"), FOLLOW)
def test_every_transmission_follows_a_rank(transmission, link, clients, net):
    algorithm = bf.fed_rlr(net, 2, transmission=transmission, link=link, reset=False, adapt=Adapt(every=2, loss=0.0, extra=3), training=WORK)
    report = final(algorithm, clients, 5)
    assert report.server == {"1.rank": 8.0, "3.rank": 8.0}
    assert all(is_finite(leaf) for leaf in report.state.values())


def test_a_layer_never_grows_beyond_its_shape_nor_falls_to_nothing(clients, net):
    report = final(bf.fed_rlr(net, 9, adapt=Adapt(every=1, loss=0.0, extra=5), training=WORK), clients, 2)
    assert report.server == {"1.rank": 16.0, "3.rank": 10.0}
    report = final(bf.fed_rlr(net, 9, adapt=Adapt(every=1, loss=0.999, extra=5), training=WORK), clients, 1)
    assert report.server == {"1.rank": 1.0, "3.rank": 1.0}


def test_a_loss_of_zero_truncates_nothing(net):
    """Not even a direction that nothing has filled yet."""
    grown = Adapt(every=1, loss=0.0, extra=2).step(parameters(bf.fixed_rank(net, 2)), 0)
    assert tree_equal(Adapt(every=1, loss=0.0, extra=0).step(grown, 0), grown)
    assert {point.rank for point in points(Adapt(every=1, loss=1e-6, extra=0).step(grown, 0)).values()} == {2}


@pytest.mark.parametrize("arguments", [{"every": 0}, {"loss": 1.0}, {"loss": -0.1}, {"loss": math.nan}, {"extra": -1}, {"largest": 0}])
def test_adaptations_are_checked(arguments):
    with pytest.raises(ArgumentError, match=r"Adapt: expected every >= 1, loss in \[0, 1\)"):
        Adapt(**arguments)


def test_new_directions_are_the_same_on_every_machine(net):
    message = parameters(bf.fixed_rank(net, 2))
    first, again, later = (Adapt(every=1, loss=0.0, extra=1).step(message, round) for round in (0, 0, 1))
    assert tree_equal(first, again)
    assert not torch.equal(first["1.u"], later["1.u"])
    assert float(canonical(points(first)["1"]).s[2, 2]) == 0
    point = points(message)["1"]
    with pytest.raises(ArgumentError, match="orthographic_retraction: expected an invertible"):
        orthographic_retraction(grow(point, first["1.u"][:, 2:], first["1.v"][:, 2:]), 0.0 * random_tangent(points(first)["1"], bf.Key(0)))


def test_what_tangents_do_not_carry_is_reported(digits, clients):
    """Normal to the tangent space is what is of second order: steps of a tenth leave about a tenth of the share."""
    shares = []
    for rate in (0.02, 0.2):
        algorithm = bf.fed_rlr(bf.mlp([64, 16, 10], bf.Key(0, "net")), 3, training=bf.Training(steps=5, optimiser=bf.Sgd(rate)))
        infos = bf.run(algorithm, clients, rounds=1, progress=False).history[0].clients.values()
        shares.append(sum(info["off_tangent"] for info in infos) / len(infos))
    assert 0 < shares[0] < shares[1] / 4 < 0.25


def test_long_gradients_are_shortened_and_short_ones_are_not(clients):
    """A round of one step from the same point: the change is the rate times the gradient, or times the clip."""
    net, rate = bf.mlp([64, 16, 10], bf.Key(0, "net")), 1e-3
    name, data = next(iter(clients.items()))

    def moved(clip):
        algorithm = bf.fed_rlr(net, 3, training=bf.Training(steps=1, optimiser=bf.Sgd(rate)), clip=clip)
        info = bf.run(algorithm, {name: data}, rounds=1, progress=False)
        tree, start = info.snapshot.state, algorithm.initial
        weights = info.history[0].clients[name]["consensus_gap"]
        return math.sqrt(weights + sum(float((tree[leaf] - start[leaf]).square().sum()) for leaf in tree if leaf.endswith("bias")))

    free = moved(math.inf)
    assert moved(10 * free / rate) == free
    assert moved(0.2 * free / rate) == pytest.approx(0.2 * free, rel=1e-2)

"""FedRLR's clients: laws, workers, weights, empty clients, and those that fail."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import bayesfed as bf
from bayesfed.algorithms.fed_rlr import Retract, RiemannianSgd
from bayesfed.algorithms.fed_rlr.local import RiemannianOptions, sent_shapes
from bayesfed.errors import ArgumentError, ClientError, DataError, UpdateError
from bayesfed.federated import Digital, Sum, Update, checkpoint, load, rounds
from bayesfed.federated.core.owners import owned
from bayesfed.geometry import (
    Tangent,
    distance,
    orthographic_retraction,
)
from bayesfed.models.low_rank.fixed_rank import points
from bayesfed.testing import check_local
from bayesfed.trees import is_finite, parameters
from tests.algorithms.fed_rlr.fed_rlr_pieces import (
    ALL,
    SETTINGS,
    WORK,
    dense_state,
    final,
    full_ranks,
    regression_net,
    regressions,
    rlr_local,
)
from tests.conftest import tree_equal
from tests.wireless.test_air import CLEAR


# Clients.
@pytest.mark.parametrize("transmission", ALL)
@pytest.mark.parametrize("reset", [True, False])
def test_the_local_obeys_the_laws_of_locals(transmission, reset, clients, net):
    thin = bf.models.fixed_rank(net, 4)
    local = rlr_local(thin, transmission=transmission, reset=reset, steps=2)
    check_local(local, parameters(thin), clients["client-000"], RiemannianOptions(pull=0.1))


def test_the_local_obeys_them_with_dropout_and_draws_from_its_own_stream(clients):
    net = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 10)
    )
    thin = bf.models.fixed_rank(net, 4)
    check_local(rlr_local(thin), parameters(thin), clients["client-000"])
    serial = final(bf.fed_rlr(net, 4, training=WORK), clients)
    with bf.InProcess(clients, workers=2) as pool:
        assert tree_equal(final(bf.fed_rlr(net, 4, training=WORK), pool).state, serial.state)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(
            one, id=name, marks=[pytest.mark.slow] * (name not in ("default", "paper on the air"))
        )
        for name, one in SETTINGS.items()
    ],
)
def test_workers_order_and_resuming_do_not_change_a_bit(settings, clients, net, tmp_path):
    algorithm = bf.fed_rlr(net, 4, training=WORK, **settings)
    whole, half = final(algorithm, clients, 3).snapshot, final(algorithm, clients, 2).snapshot
    again = final(algorithm, clients, 3, resume=half).snapshot
    assert tree_equal(again.state, whole.state)
    assert (
        whole.memories.keys()
        == again.memories.keys()
        == (set() if settings.get("reset", True) else set(clients))
    )
    assert all(tree_equal(memory, again.memories[name]) for name, memory in whole.memories.items())
    list(
        map(
            checkpoint(tmp_path / "run"),
            [list(rounds(algorithm, bf.InProcess(clients), rounds=2))[-1]],
        )
    )
    assert tree_equal(
        final(algorithm, clients, 3, resume=load(tmp_path / "run")).snapshot.state, whole.state
    )
    for kind in ("process", "thread"):
        with bf.InProcess(dict(reversed(clients.items())), workers=2, kind=kind) as pool:
            found = final(algorithm, pool, 3).snapshot
        assert tree_equal(found.state, whole.state)
        assert all(
            tree_equal(memory, found.memories[name]) for name, memory in whole.memories.items()
        )


@pytest.mark.parametrize("transmission", ALL)
@pytest.mark.parametrize("reset", [True, False])
def test_empty_clients_and_clients_of_one_row(transmission, reset, clients, net):
    data = clients["client-000"]
    empty, single = (
        bf.Dataset(data.inputs[:0], data.targets[:0]),
        bf.Dataset(data.inputs[:1], data.targets[:1]),
    )
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
    for point in points(owned(final(algorithm, {**others, "one": single}).state, "model")).values():
        assert point.rank == 4
    assert all(is_finite(leaf) for leaf in final(algorithm, {"one": single}).state.values())


@pytest.mark.parametrize("link", [Digital(), CLEAR], ids=["digital", "clear"])
def test_clients_weigh_by_their_rows(link, net):
    """A client that holds everybody's rows, or each row three times, weighs so; full batches, one
    step, full rank.
    """
    generator = bf.Key(0, "rows").generator()
    inputs, targets = torch.randn(12, 64, generator=generator).double(), torch.arange(12) % 10
    whole = {"all": bf.Dataset(inputs, targets)}
    parts = {"a": bf.Dataset(inputs[:2], targets[:2]), "b": bf.Dataset(inputs[2:], targets[2:])}
    algorithm = bf.fed_rlr(
        net.double(),
        full_ranks(net),
        training=bf.Training(steps=1, batch_size=12, optimiser=bf.Sgd(0.1)),
        codec=bf.Cast(64),
        link=link,
    )
    together, apart = (
        dense_state(final(algorithm, clients, 2).state) for clients in (whole, parts)
    )
    assert all(torch.allclose(leaf, apart[name], atol=1e-10) for name, leaf in together.items())


def test_factors_weigh_clients_alike(clients, net):
    algorithm = bf.fed_rlr(net, 4, transmission=bf.algorithms.Factors("orthogonal"), training=WORK)
    seen, honest = [], algorithm.phases[0]

    class Noted(Retract):
        def step(self, state, reducer, round):
            seen.append(reducer.total.weight)
            return super().step(state, reducer, round)

    final(
        replace(
            algorithm, phases=(replace(honest, server=Noted(bf.algorithms.Factors("orthogonal"))),)
        ),
        clients,
        1,
    )
    assert seen == [len(clients)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_other_likelihoods(dtype):
    data = {
        name: bf.Dataset(part.inputs.to(dtype), part.targets.to(dtype))
        for name, part in regressions().items()
    }
    net = regression_net().to(dtype)
    codec = bf.Cast(64 if dtype is torch.float64 else 32)
    algorithm = bf.fed_rlr(
        net,
        4,
        likelihood=bf.Normal(1.0),
        training=bf.Training(steps=5, optimiser=bf.Sgd(0.02)),
        codec=codec,
    )
    reports = list(rounds(algorithm, bf.InProcess(dict.fromkeys("ab", data["c0"])), rounds=8))
    losses = [sum(info["nll"] for info in report.clients.values()) for report in reports]
    assert losses[-1] < 0.6 * losses[0]
    assert all(leaf.dtype is dtype for leaf in reports[-1].state.values())


@pytest.mark.parametrize("link", [Digital(), CLEAR], ids=["digital", "clear"])
def test_the_state_keeps_its_dtype(link, clients):
    net = bf.mlp([64, 8, 10], bf.Key(0, "net")).double()
    wide = {name: replace(part, inputs=part.inputs.double()) for name, part in clients.items()}
    state = final(bf.fed_rlr(net, 3, link=link, training=WORK), wide).state
    assert {leaf.dtype for leaf in state.values()} == {torch.float64}


def test_a_sum_in_64_bits_does_not_widen_the_state(net):
    state, reducer = parameters(bf.models.fixed_rank(net, 4)), Sum()
    reducer.add(
        "a",
        Update(
            {
                name: torch.ones(shape).double()
                for name, shape in sent_shapes(state, bf.algorithms.Tangents()).items()
            },
            1.0,
            "tangent",
        ),
    )
    assert {
        leaf.dtype for leaf in Retract(bf.algorithms.Tangents()).step(state, reducer, 0)[0].values()
    } == {torch.float32}


def test_a_layer_that_is_not_reached_stays_and_shared_layers_are_one(clients):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.idle, self.shared, self.last = (
                nn.Linear(64, 8),
                nn.Linear(8, 8),
                nn.Linear(8, 8),
                nn.Linear(8, 10),
            )
            self.again = self.shared

        def forward(self, x):
            return self.last(self.again(self.shared(self.first(x.flatten(1)).relu()).relu()))

    with torch.random.fork_rng():
        net = Odd()
    algorithm = bf.fed_rlr(net, 3, training=WORK)
    before, after = (
        points(owned(state, "model"))
        for state in (algorithm.initial, final(algorithm, clients).state)
    )
    assert set(after) == {"first", "idle", "shared", "last"}
    assert float(distance(before["idle"], after["idle"])) < 1e-5
    assert float(distance(before["shared"], after["shared"])) > 1e-3


# Failures.
def diverging(clients, name="client-001", size=1e30):
    data = clients[name]
    return {**clients, name: bf.Dataset(data.inputs * size, data.targets)}


@pytest.mark.parametrize(
    "settings",
    SETTINGS.values(),
    ids=SETTINGS,
)
@pytest.mark.parametrize("size", [1e12, 1e25, 1e38])
def test_a_client_that_diverges_is_named_and_the_others_go_on(settings, size, clients, net):
    algorithm = bf.fed_rlr(net, 4, training=WORK, **settings)
    report = final(algorithm, diverging(clients, size=size), on_client_error="drop")
    assert list(report.refused) == ["client-001"]
    without = final(
        algorithm, {name: data for name, data in clients.items() if name != "client-001"}
    )
    assert tree_equal(report.state, without.state)
    assert report.snapshot.memories.keys() == without.snapshot.memories.keys()
    assert all(
        tree_equal(memory, without.snapshot.memories[name])
        for name, memory in report.snapshot.memories.items()
    )
    with pytest.raises(ClientError, match="client 'client-001', round 0"):
        final(algorithm, diverging(clients, size=size))


def test_where_a_client_diverged_is_said_in_words(clients, net):
    with pytest.raises(
        ClientError, match=r"stage 'fit': local Riemannian SGD.*smaller learning rate"
    ):
        final(bf.fed_rlr(net, 4, training=WORK), diverging(clients, size=1e25))
    thin = bf.models.fixed_rank(net, 4)
    with pytest.raises(DataError, match="local Riemannian SGD, layer '1'.*orthographic"):
        rlr_local(
            thin,
            lambda point, tangent: orthographic_retraction(
                point, Tangent(-point.s, tangent.up, tangent.vp)
            ),
        ).fit(parameters(thin), {}, clients["client-000"], bf.Key(0), RiemannianOptions())


def test_labels_the_network_has_not_are_said_in_words(clients, net):
    data = clients["client-001"]
    odd = {**clients, "client-001": bf.Dataset(data.inputs, data.targets + 7)}
    with pytest.raises(
        ClientError, match=r"client 'client-001', round 0, stage 'fit': .*labels: expected 0 to 9"
    ):
        final(bf.fed_rlr(net, 4, training=WORK), odd)


def test_a_mean_that_no_point_belongs_to_names_layer_and_round(net):
    state, sent = (
        parameters(bf.models.fixed_rank(net, 4)),
        bf.algorithms.Tangents(orthographic_retraction),
    )
    zeros = {name: torch.zeros(shape) for name, shape in sent_shapes(state, sent).items()}
    reducer = Sum()
    reducer.add("a", Update({**zeros, "3.core": -state["3.s"]}, 1.0, "tangent"))
    with pytest.raises(
        UpdateError,
        match="Retract, layer '3', round 5: orthographic_retraction: expected an invertible",
    ):
        Retract(sent).step(state, reducer, 5)


def test_memory_of_clients_not_heard_does_not_advance(clients, net):
    """Silent under channel inversion: a client's own Theta_k goes on from where it was last
    heard.
    """
    air = bf.OverTheAir(bf.wireless.ChannelInversion(0.9), power_w=1.0, noise_w=0.0)
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
            return (
                fit._replace(payload={**fit.payload, "1.up": fit.payload["1.up"][:, :3]})
                if len(data) == rows
                else fit
            )

    rows = len(clients["client-002"])
    ragged = Ragged(*(getattr(phase.local, name) for name in phase.local.__dataclass_fields__))
    for link in (Digital(), CLEAR):
        odd = replace(algorithm, phases=(replace(phase, local=ragged, link=link),))
        report = final(odd, clients, 1, on_client_error="drop")
        assert list(report.refused) == ["client-002"]
        assert "'1.up': expected shape (16, 4), found (16, 3)" in report.refused["client-002"]


def test_nobody_on_the_air_is_an_error_in_words(clients, net):
    air = bf.OverTheAir(bf.wireless.ChannelInversion(9.0), power_w=1.0)
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
        (1.5, {}, r"a number in \(0, 1\]"),
        ({"9": 2}, {}, r"layers among \['1', '3'\]"),
        (None, {}, "layers of fixed rank, found none"),
        (4, {"consensus": -0.1}, r"consensus: expected a number in \[0, 1\], found -0.1"),
        (4, {"consensus": 1.1}, r"a number in \[0, 1\]"),
        (4, {"consensus": math.nan}, r"a number in \[0, 1\]"),
        (
            4,
            {"training": bf.Training(optimiser=bf.Adam(0.01))},
            "fed_rlr, training.optimiser: expected Sgd without momentum and decay",
        ),
        (
            4,
            {"training": bf.Training(optimiser=bf.Sgd(0.1, momentum=0.9))},
            "Sgd without momentum and decay",
        ),
        (
            4,
            {"training": bf.Training(optimiser=bf.Sgd(0.1, weight_decay=0.1))},
            "Sgd without momentum and decay",
        ),
        (4, {"clip": 0.0}, r"clip: expected a number in \(0, inf\]"),
        (4, {"clip": math.nan}, r"clip: expected a number in \(0, inf\]"),
        (
            4,
            {"transmission": bf.algorithms.Points(), "link": CLEAR},
            "a transmission that adds, found Points",
        ),
    ],
)
def test_arguments_are_checked(rank, arguments, words, net):
    with pytest.raises(ArgumentError, match=words):
        bf.fed_rlr(net, rank, **arguments)


def test_running_statistics_are_refused():
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4))
    with pytest.raises(
        ArgumentError, match=r"without running statistics, found .*running_mean.*GroupNorm"
    ):
        bf.fed_rlr(net, 2)


def test_consensus_of_a_round_is_checked_in_that_round(clients, net):
    algorithm = bf.fed_rlr(net, 4, consensus=lambda round: 2.0 * round, training=WORK)
    with pytest.raises(
        ArgumentError, match=r"consensus, round 1: expected a number in \[0, 1\], found 2.0"
    ):
        final(algorithm, clients)


def test_rules_that_need_points_apart_are_refused_by_the_air(clients, net):
    algorithm = bf.fed_rlr(net, 4, transmission=bf.algorithms.Points(), training=WORK)
    air = replace(algorithm, phases=(replace(algorithm.phases[0], link=CLEAR),))
    with pytest.raises(ArgumentError, match="expected a sum, found Keep"):
        final(air, clients)


def test_unknown_precoders_and_snrs_are_refused():
    with pytest.raises(ArgumentError, match="'rademacher', 'orthogonal', 'none', found 'haar'"):
        bf.algorithms.Factors("haar")
    with pytest.raises(
        ArgumentError, match=r"snr_db: expected a number in \(-inf, inf\), found nan"
    ):
        bf.OverTheAir(snr_db=math.nan)


def test_finiteness_of_leaves_that_record_gradients_is_looked_at_without_a_warning():
    leaf = torch.ones(3, requires_grad=True)
    assert is_finite(leaf)
    assert not is_finite(leaf * math.nan)
    # Their sum overflows.
    assert is_finite(torch.full((4,), 3e38))
    assert not is_finite(torch.tensor([math.inf, -math.inf, 1.0]))

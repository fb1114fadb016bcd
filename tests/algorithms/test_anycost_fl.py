"""AnycostFL on devices: the exact limit, aggregation by entry, who is left out,
what a round costs.
"""

import math
from dataclasses import replace

import pytest
import torch

import bayesfed as bf
from bayesfed.algorithms.anycost_fl.recipe import ALPHAS, anycost_fl, public_settings
from bayesfed.algorithms.anycost_fl.weights import aggregation_weight
from bayesfed.algorithms.baselines.fed_hq import fed_hq
from bayesfed.algorithms.wrappers.on_devices import Planner, on_devices, planned_size
from bayesfed.compress.budgets import Budgeted
from bayesfed.errors import ArgumentError, ClientError, UpdateError
from bayesfed.federated import score
from bayesfed.federated.aggregation.servers import Add
from bayesfed.federated.aggregation.views import Kept, Slice, Whole
from bayesfed.federated.clients.pools import InProcess
from bayesfed.federated.core.protocols import Profile, Skip
from bayesfed.federated.core.sums import Sum
from bayesfed.federated.engine.assembly import assembled
from bayesfed.federated.engine.reports import energy_j, latency_s, macs
from bayesfed.federated.links.deadline import Cell
from bayesfed.models import Share, channel_graph, shrunk, shrunk_shares
from bayesfed.trees import parameters, shapes, size
from bayesfed.wireless.devices import Device, fleet
from bayesfed.wireless.energy import round_cost, work_cycles
from tests.conftest import tree_equal

KEY = bf.Key(0, "anycost")
# What makes the budgets bite for a network and a data set as small as these.
SMALL = Device(macs_per_cycle=8e-4, bandwidth_hz=4e3)
PLENTY = Device(energy_j=1e6, bandwidth_hz=1e9)


def net():
    return bf.mlp([64, 32, 16, 10], bf.Key(0, "net"))


def pool(clients, like=SMALL):
    return InProcess(
        clients,
        devices={
            name: device.figures()
            for name, device in fleet(sorted(clients), KEY, like=like).items()
        },
    )


def plenty(clients):
    return InProcess(clients, devices={name: PLENTY.figures() for name in clients})


@pytest.fixture(scope="module")
def settings(digits):
    return public_settings(net(), digits[0][:16], KEY)


@pytest.fixture(scope="module")
def run(digits, settings):
    train, _ = digits
    clients = bf.federate(train, bf.iid(len(train), 6, KEY))
    algorithm = anycost_fl(
        net(),
        train.inputs[:1],
        deadline_s=5.0,
        settings=settings,
        training=bf.Training(epochs=1.0, batch_size=32, optimiser=bf.Sgd(0.2)),
    )
    return algorithm, bf.run(
        algorithm, pool(clients), rounds=15, progress=False, on_client_error="drop"
    )


def test_exact_devices_are_fed_avg_with_uniform_weights_bit_for_bit(digits, clients):
    """alpha = beta = 1 in 32-bit floats: no shrinking, no compression, one say for all."""
    train, _ = digits
    algorithm = anycost_fl(
        net(),
        train.inputs[:1],
        deadline_s=1e6,
        alphas=[1.0],
        beta=(1.0, 1.0),
        training=bf.Training(epochs=1.0, batch_size=32, optimiser=bf.Sgd(0.1)),
    )
    ours = bf.run(algorithm, plenty(clients), rounds=3, progress=False)
    work = bf.Training(steps=1, batch_size=32, optimiser=bf.Sgd(0.1))
    same = bf.compose("fed_avg", net(), work.fitting(net(), kind="delta"), training=work)
    (phase,) = same.phases

    def assign(state, round, profile, key):
        return replace(
            phase.assign(state, round, profile, key),
            weight=1.0,
            options=bf.federated.LocalOptions(steps=profile.samples // 32),
        )

    theirs = bf.run(
        replace(same, phases=(replace(phase, assign=assign),)), clients, rounds=3, progress=False
    )
    assert tree_equal(ours.snapshot.state, theirs.snapshot.state)
    assert not tree_equal(ours.snapshot.state, algorithm.initial)


@pytest.mark.slow
def test_it_learns_at_every_width_within_every_budget(digits, run):
    _, test = digits
    algorithm, result = run
    scores = [
        score(predictor(result.snapshot.state), test) for predictor in algorithm.sizes.values()
    ]
    assert len(scores) == len(ALPHAS)
    assert next(iter(algorithm.sizes)) == "1"
    assert list(algorithm.sizes)[-1] == "0.25"
    assert scores[0] > 0.85
    assert min(scores) > 0.75
    counts = [
        size(predictor(result.snapshot.state).parameters) for predictor in algorithm.sizes.values()
    ]
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] < counts[0] / 2
    rows = [row for record in result.history for row in record.rows if row.direction == "up"]
    budgets = {
        name: device.energy_j
        for name, device in fleet(sorted({row.client for row in rows}), KEY, like=SMALL).items()
    }
    assert all(
        row.cost.latency_s <= 5.0 and row.cost.energy_j <= budgets[row.client] for row in rows
    )
    assert len({row.cost.macs for row in rows}) >= 3


@pytest.mark.slow
def test_channels_stay_sorted(digits, run):
    algorithm, result = run
    for state in (algorithm.initial, result.snapshot.state):
        norms = state["model/1.weight"].double().norm(dim=1)
        assert (norms.diff() <= 1e-9).all()


@pytest.mark.slow
def test_the_ledger_is_what_was_really_sent(digits, clients, settings):
    """Seconds and joules by hand from the bits of each row."""
    train, _ = digits
    algorithm = anycost_fl(net(), train.inputs[:1], deadline_s=5.0, settings=settings)
    placed = pool(clients)
    result = bf.run(algorithm, placed, rounds=2, progress=False, on_client_error="drop")
    devices, rows = (
        {profile.name: Device.from_figures(profile.device) for profile in placed.profiles},
        [r for h in result.history for r in h.rows],
    )
    up = [row for row in rows if row.direction == "up" and row.cost.bits]
    (phase,) = algorithm.phases
    for row in up:
        (profile,) = (profile for profile in placed.profiles if profile.name == row.client)
        load = (
            assembled(phase)
            .assign(
                algorithm.initial,
                row.round,
                profile,
                bf.Key(0, "train", row.round, row.client).child("assign"),
            )
            .load
        )
        found = round_cost(
            devices[row.client],
            load.gain,
            cycles=load.cycles,
            bits=row.bits,
            frequency_hz=load.frequency_hz,
        )
        assert (found.compute_s, found.uplink_s, found.compute_j, found.uplink_j) == (
            row.cost.compute_s,
            row.cost.uplink_s,
            row.cost.compute_j,
            row.cost.uplink_j,
        )
        assert 0 < row.cost.alpha**4 * row.cost.beta <= 1 / 15
        assert row.cost.macs == pytest.approx(load.cycles * SMALL.macs_per_cycle)
    assert energy_j(rows) == pytest.approx(
        sum(row.cost.compute_j + row.cost.uplink_j for row in up)
    )
    slowest = [max(row.cost.latency_s for row in up if row.round == number) for number in (0, 1)]
    assert latency_s(rows) == pytest.approx(sum(slowest))
    assert latency_s(rows, 1.0) == 2.0
    assert macs(rows) == sum(row.cost.macs for row in up)


def test_a_plan_is_of_the_size_with_the_largest_gain(digits):
    train, _ = digits
    rows = shrunk_shares(net(), channel_graph(net(), train.inputs[:1]), train.inputs[:1], ALPHAS)
    planner, profile = (
        Planner(tuple(rows), 5.0, (1 / 200, 1 / 15), epochs=1.0),
        Profile("a", 200, SMALL.figures()),
    )
    alone = [Planner((row,), 5.0, (1 / 200, 1 / 15), epochs=1.0)(profile, 3, KEY) for row in rows]
    best, found = (
        max((one for one in alone if not isinstance(one, Skip)), key=lambda one: one.learning_gain),
        planner(profile, 3, KEY),
    )
    assert found.load == best.load
    assert found.steps == 6
    assert rows[found.size].alpha == found.load.alpha
    assert planned_size(planner)(profile, 3, KEY) == found.size
    cycles = work_cycles(
        rows[found.size].macs, 200, macs_per_cycle=SMALL.macs_per_cycle, epochs=6 * 32 / 200
    )
    assert found.load.cycles == cycles
    cost = found.load.cost(found.load.beta * 32 * rows[found.size].parameters)
    assert cost.latency_s <= 5.0
    assert cost.energy_j <= SMALL.energy_j


def test_entries_are_averaged_over_those_who_sent_them():
    """(5), against loops."""
    full = {"w": (3, 4)}
    views = [Kept(Slice(full, {"w": shape})) for shape in ((3, 4), (2, 3))]
    sent = [
        torch.tensor([[1.0, 0, 2, 0], [0, 3, 0, 0], [4, 0, 0, 0]]),
        torch.tensor([[5.0, 6, 0], [0, 7, 0]]),
    ]
    weights, state, reducer = [1.5, 0.25], {"w": torch.ones(3, 4)}, Sum()
    for number, (view, leaf) in enumerate(zip(views, sent, strict=True)):
        reducer.add(str(number), view.lift({"w": leaf}, weights[number], "delta"))
    expected = torch.ones(3, 4)
    for i in range(3):
        for j in range(4):
            entries = [
                (weight, leaf[i, j])
                for weight, leaf in zip(weights, sent, strict=True)
                if i < leaf.shape[0] and j < leaf.shape[1]
            ]
            said = [(weight, entry) for weight, entry in entries if entry != 0]
            if said:
                expected[i, j] += sum(weight * entry for weight, entry in said) / sum(
                    weight for weight, _ in said
                )
    assert torch.allclose(Add().step(state, reducer, 0)[0]["w"], expected)
    with pytest.raises(UpdateError, match="covers entries itself"):
        Kept(Whole(full)).lift({"w": torch.ones(3, 4)}, 1.0, "delta")


def test_weights_and_codecs_follow_the_plan(digits, settings):
    train, _ = digits
    profile = Profile("a", 200, SMALL.figures())
    found = {}
    for aggregation in ("optimal", "uniform"):
        algorithm = anycost_fl(
            net(), train.inputs[:1], deadline_s=5.0, settings=settings, aggregation=aggregation
        )
        found[aggregation] = assembled(algorithm.phases[0]).assign(
            algorithm.initial, 0, profile, KEY
        )
    alpha = ALPHAS[found["optimal"].options.size]
    assert isinstance(found["optimal"].up, Budgeted)
    assert isinstance(found["optimal"].view, Kept)
    assert isinstance(found["uniform"].view, Slice)
    assert found["optimal"].weight == aggregation_weight(alpha, found["optimal"].up.beta)
    assert found["uniform"].weight == 1


def test_who_cannot_take_part_is_left_out_with_the_reason(digits, clients, settings):
    train, _ = digits
    names = sorted(clients)
    able = replace(SMALL, macs_per_cycle=5e-3)
    devices = {name: able.figures() for name in names} | {
        names[0]: replace(SMALL, energy_j=0.0).figures()
    }
    empty = clients | {names[1]: clients[names[1]][:0]}
    algorithm = anycost_fl(net(), train.inputs[:1], deadline_s=5.0, settings=settings)
    result = bf.run(algorithm, InProcess(empty, devices=devices), rounds=1, progress=False)
    refused = result.history[0].refused
    assert set(refused) == {names[0], names[1]}
    assert "energy: needs" in refused[names[0]]
    assert "no rows" in refused[names[1]]
    assert [row.bits for row in result.history[0].rows if row.client == names[0]] == [0]
    nobody = {name: replace(SMALL, energy_j=0.0).figures() for name in names}
    with pytest.raises(ClientError, match="no client is left.*energy: needs"):
        bf.run(algorithm, InProcess(clients, devices=nobody), rounds=1, progress=False)
    kept = bf.run(
        algorithm,
        InProcess(clients, devices=nobody),
        rounds=1,
        progress=False,
        on_client_error="drop",
    )
    assert tree_equal(kept.snapshot.state, algorithm.initial)


def test_who_is_late_is_dropped_and_reported(digits, clients):
    """Messages a hundred times longer than planned: their energy is spent, their updates are not in
    the sum.
    """
    train, _ = digits
    row = shrunk_shares(net(), channel_graph(net(), train.inputs[:1]), train.inputs[:1], [1.0])
    slow = replace(SMALL, macs_per_cycle=1.0, energy_j=1e3, bandwidth_hz=100.0)
    names = sorted(clients)
    devices = {name: slow.figures() for name in names} | {names[2]: PLENTY.figures()}
    algorithm = on_devices(
        bf.fed_avg(net(), training=bf.Training(batch_size=32)),
        Planner(tuple(row), 5.0, (1e-4, 1e-4)),
    )
    result = bf.run(
        algorithm,
        InProcess(clients, devices=devices),
        rounds=1,
        progress=False,
        on_client_error="drop",
    )
    record = result.history[0]
    assert set(record.refused) == set(names) - {names[2]}
    assert list(record.clients) == [names[2]]
    assert all("deadline:" in reason and "had 5 s" in reason for reason in record.refused.values())
    late = [row for row in record.rows if row.direction == "up" and row.reason]
    assert all(row.cost.latency_s > 5 and row.cost.uplink_j > 0 and row.bits for row in late)
    alone = bf.run(
        algorithm,
        InProcess({names[2]: clients[names[2]]}, devices=devices),
        rounds=1,
        progress=False,
    )
    assert tree_equal(result.snapshot.state, alone.snapshot.state)


def test_messages_longer_than_planned_are_reported(digits, clients, settings):
    """A beta that no message of so small a network can have: even the smallest is longer than
    planned, and says so.
    """
    train, _ = digits
    tight = settings.least / 8
    algorithm = anycost_fl(
        net(), train.inputs[:1], deadline_s=5.0, settings=settings, beta=(tight, tight)
    )
    able = {
        name: replace(SMALL, macs_per_cycle=1.0, bandwidth_hz=1e6).figures() for name in clients
    }
    result = bf.run(algorithm, InProcess(clients, devices=able), rounds=1, progress=False)
    up = [row for row in result.ledger if row.direction == "up"]
    numbers = {
        alpha: size(parameters(shrunk(net(), channel_graph(net(), train.inputs[:1]), alpha)))
        for alpha in {row.cost.alpha for row in up}
    }
    assert all(
        row.cost.overrun_bits == math.ceil(row.bits - tight * 32 * numbers[row.cost.alpha]) > 0
        for row in up
    )
    algorithm = anycost_fl(
        net(), train.inputs[:1], deadline_s=5.0, settings=settings, beta=(0.2, 0.2)
    )
    roomy = bf.run(algorithm, InProcess(clients, devices=able), rounds=1, progress=False)
    assert not any(row.cost.overrun_bits for row in roomy.ledger)


def test_bad_input_is_refused_in_words(digits, settings):
    train, _ = digits
    sample = train.inputs[:1]
    for alphas in ([], [0.5, 1.0], [1.0, 1.0], [2.0, 1.0], [1.0, 0.0]):
        with pytest.raises(ArgumentError):
            anycost_fl(net(), sample, deadline_s=5.0, settings=settings, alphas=alphas)
    with pytest.raises(ArgumentError, match="one of 'optimal', 'uniform'"):
        anycost_fl(net(), sample, deadline_s=5.0, aggregation="mean")
    for deadline in (0.0, -1.0, float("nan")):
        with pytest.raises(ArgumentError, match="deadline_s"):
            anycost_fl(net(), sample, deadline_s=deadline, settings=settings)
    for beta in ((0.0, 0.1), (0.2, 0.1), (0.1, 2.0)):
        with pytest.raises(ArgumentError, match="beta"):
            anycost_fl(net(), sample, deadline_s=5.0, settings=settings, beta=beta)
    with pytest.raises(ArgumentError, match="running statistics"):
        anycost_fl(
            torch.nn.Sequential(
                torch.nn.Linear(64, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 10)
            ),
            sample,
            deadline_s=5.0,
        )
    algorithm = anycost_fl(net(), sample, deadline_s=5.0, settings=settings)
    with pytest.raises(ArgumentError, match="devices=.name: device.figures"):
        bf.run(algorithm, {"a": train[:50]}, rounds=1, progress=False)
    with pytest.raises(ArgumentError, match="public rows"):
        public_settings(net(), train[:0], KEY)
    plain = bf.fed_avg(net())
    with pytest.raises(UpdateError, match="an assignment with a load"):
        bf.run(
            replace(plain, phases=(replace(plain.phases[0], link=Cell(5.0)),)),
            {"a": train[:50]},
            rounds=1,
            progress=False,
        )
    with pytest.raises(
        ArgumentError, match=r"Cell, deadline_s: expected a number in \(0, inf\], found 0.0"
    ):
        Cell(0.0)
    with pytest.raises(ArgumentError, match="one phase"):
        on_devices(
            replace(
                algorithm, phases=(*algorithm.phases, replace(algorithm.phases[0], name="more"))
            ),
            Planner((Share(1.0, 1, 1, 1, 1),), 5.0),
        )
    with pytest.raises(ArgumentError, match="the whole network"):
        fed_hq(net(), Planner((Share(0.5, 1, 1, 1, 1),), 5.0), settings)
    with pytest.raises(ArgumentError, match="settings of one share"):
        fed_hq(net(), Planner((Share(1.0, 1, 1, 1, 1),), 5.0), settings)
    with pytest.raises(ArgumentError, match="one size or more"):
        Planner((), 5.0)


def test_a_view_of_fewer_leaves_is_refused(digits):
    graph = channel_graph(net(), digits[0].inputs[:1])
    half = parameters(shrunk(net(), graph, 0.25))
    with pytest.raises(UpdateError):
        Slice(shapes(parameters(net())), shapes(half)).lift(parameters(net()), 1.0, "delta")

"""Every method on devices has the same budgets of energy, time and channel: plans, recomputed from
the formulas, take the steps that fit, and who could take one step is not left out.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import bayesfed as bf
from bayesfed.algorithms.wrappers.on_devices import Planner, on_devices
from bayesfed.federated.clients.pools import InProcess
from bayesfed.federated.core.protocols import Profile, Skip
from bayesfed.models import Share, channel_graph, shrunk_shares
from bayesfed.wireless.devices import Device, fleet
from tests.algorithms.test_anycost_fl import KEY, SMALL, net

T_MAX = 5.0
DATA = bf.Dataset(torch.ones(4, 2), torch.ones(4, 1))


def drawn_rate(device, client, round, key):
    """(8): bits a second over the drawn channel."""
    distance = device.distance_m(key, client, round)
    loss = device.loss_db_at_1_km + 10 * device.path_loss_exponent * math.log10(distance / 1e3)
    band = device.bandwidth_hz
    return band * math.log2(1 + 10 ** (-loss / 10) * device.power_w / device.noise_w_per_hz / band)


def joules(device, macs, bits, rate, hertz):
    """(6), (7), (9): seconds and joules of forward passes' MACs, three a step, and of bits."""
    cycles = 3 * macs / device.macs_per_cycle
    seconds = cycles / hertz, bits / rate
    work = device.joules_per_cycle_hz2 * hertz**2 * cycles
    return sum(seconds), work + device.power_w * seconds[1]


def fits(device, macs, bits, rate):
    """Whether any clock keeps to both budgets: the slowest that is in time is the cheapest."""
    left = T_MAX - bits / rate
    if left <= 0:
        return False
    cycles = 3 * macs / device.macs_per_cycle
    hertz = max(cycles / left, device.min_frequency_hz)
    spent = joules(device, macs, bits, rate, hertz)[1]
    return hertz <= device.max_frequency_hz and spent <= device.energy_j


def test_plans_take_the_size_of_one_epoch_and_the_steps_that_fit_then():
    draw = np.random.default_rng(0)
    seen = set()
    for trial in range(300):
        rows, macs, size = int(draw.integers(1, 900)), *np.exp(draw.uniform(6, 11, 2)).tolist()
        device = replace(
            SMALL,
            energy_j=float(draw.uniform(0.05, 4)),
            bandwidth_hz=float(np.exp(draw.uniform(6, 12))),
        )
        beta = float(draw.uniform(0.01, 0.2))
        sizes = [
            Share(alpha, round(alpha * macs), round(alpha * size), alpha, alpha)
            for alpha in (1.0, 0.25)
        ]
        planned = Planner(tuple(sizes), T_MAX, (beta, beta), epochs=2.0)(
            Profile("a", rows, device.figures()), trial, KEY
        )
        rate = drawn_rate(device, "a", trial, KEY)
        once, whole = (max(1, int(epochs * rows / 32)) for epochs in (1, 2))
        # By counting on: no halving, and no plan.
        could = [
            [
                steps
                for steps in range(1, whole + 1)
                if fits(device, row.macs * steps * min(32, rows), beta * 32 * row.parameters, rate)
            ]
            for row in sizes
        ]
        if isinstance(planned, Skip):
            assert not any(could)
            continue
        row = sizes[planned.size]
        # The larger size, if an epoch fits there; else the one at which most steps of it do.
        first = 0 if once in could[0] else max((0, 1), key=lambda size: could[size][-1:])
        assert planned.size == first
        assert planned.steps == len(could[first]) == max(could[first])
        seconds, spent = joules(
            device,
            row.macs * planned.steps * min(32, rows),
            planned.load.bits,
            rate,
            planned.load.frequency_hz,
        )
        assert seconds <= T_MAX * (1 + 1e-9)
        assert spent <= device.energy_j * (1 + 1e-9)
        assert planned.load.macs == pytest.approx(3 * row.macs * planned.steps * min(32, rows))
        seen.add((planned.size, planned.steps < whole))
    # Whole epochs at either size, and parts of them.
    assert {(0, False), (0, True), (1, False), (1, True)} <= seen


@pytest.fixture(scope="module")
def uneven(digits):
    """Six clients, one of them with twenty times the rows of another, on the fleet of `SMALL`."""
    train, _ = digits
    data = {f"c{k}": train[: 40 + 150 * k] for k in range(6)}
    devices = fleet(sorted(data), KEY, like=SMALL)
    return data, devices


def method(name, sample):
    """AnycostFL by its defaults, or a rival on devices."""
    if name == "anycost_fl":
        return bf.anycost_fl(net(), sample, deadline_s=T_MAX)
    whole = tuple(shrunk_shares(net(), channel_graph(net(), sample), sample, [1.0]))
    work = bf.Training(batch_size=32)
    if name == "qsgd":
        return on_devices(
            bf.qsgd(net(), share=0.02, training=work), Planner(whole, T_MAX, (0.06, 0.06))
        )
    return on_devices(bf.fed_avg(net(), training=work), Planner(whole, T_MAX))


@pytest.mark.parametrize("name", ["anycost_fl", "qsgd", "fed_avg"])
def test_each_clients_joules_are_within_its_budget_and_who_could_take_a_step_takes_it(uneven, name):
    data, devices = uneven
    if name == "fed_avg":  # 32-bit floats need a wider channel
        devices = {key: replace(each, bandwidth_hz=3e5) for key, each in devices.items()}
    sample = data["c0"].inputs[:1]
    result = bf.run(
        method(name, sample),
        InProcess(data, devices={key: each.figures() for key, each in devices.items()}),
        rounds=2,
        progress=False,
        on_client_error="drop",
    )
    assert not any(record.refused for record in result.history)
    rows = [row for row in result.ledger if row.direction == "up"]
    assert len(rows) == 2 * len(data)
    for row in rows:
        device, cost = devices[row.client], row.cost
        assert not cost.overrun_bits
        assert 0 < cost.latency_s <= T_MAX
        assert cost.energy_j <= device.energy_j
        # The clock that the seconds say, the joules that the clock says.
        hertz = cost.macs / device.macs_per_cycle / cost.compute_s
        assert cost.compute_j == pytest.approx(
            device.joules_per_cycle_hz2 * hertz**2 * cost.macs / device.macs_per_cycle
        )
        assert cost.uplink_j == pytest.approx(device.power_w * cost.uplink_s)
    least = {row.client: row.cost.macs for row in rows if not row.round}
    # Who has too many rows for its budget takes part of an epoch: less work a row than the others.
    assert least["c5"] / len(data["c5"]) < least["c0"] / len(data["c0"])


def test_the_default_of_anycost_fl_is_for_channels_and_floats_are_asked_for(uneven):
    data, devices = uneven
    sample = data["c0"].inputs[:1]
    narrow = {key: replace(each, bandwidth_hz=100.0).figures() for key, each in devices.items()}
    floats = bf.anycost_fl(net(), sample, deadline_s=T_MAX, beta=(1.0, 1.0))
    with pytest.raises(bf.errors.ClientError, match=r"no client is left.*latency: needs"):
        bf.run(floats, InProcess(data, devices=narrow), rounds=1, progress=False)
    wide = {key: replace(each, bandwidth_hz=3e5).figures() for key, each in devices.items()}
    result = bf.run(floats, InProcess(data, devices=wide), rounds=1, progress=False)
    assert not result.history[0].refused
    assert {row.cost.beta for row in result.ledger if row.direction == "up"} == {1.0}


def test_a_network_whose_floats_are_shorter_than_what_is_coded_sends_floats():
    tiny = bf.mlp([2, 8, 1], KEY)
    algorithm = bf.anycost_fl(tiny, DATA.inputs, deadline_s=T_MAX, likelihood=bf.Normal())
    devices = {"a": replace(SMALL, energy_j=100.0).figures()}
    result = bf.run(algorithm, InProcess({"a": DATA}, devices=devices), rounds=1, progress=False)
    assert result.bits("up") > 32 * (2 * 8 + 8 + 8 + 1)


def test_a_device_without_a_joule_is_left_out_with_the_reason():
    planner = Planner((Share(1.0, 1e3, 10, 1.0, 1.0),), T_MAX)
    reason = planner(Profile("a", 100, Device(energy_j=0.0).figures()), 0, KEY)
    assert isinstance(reason, Skip)
    assert "energy: needs" in reason.reason

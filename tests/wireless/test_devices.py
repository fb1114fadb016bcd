"""Devices, and what a round costs them."""

import math

import numpy as np
import pytest

import bayesfed as bf
from bayesfed.errors import ArgumentError
from bayesfed.federated.core.protocols import Profile
from bayesfed.inspect import plot_client_costs
from bayesfed.models.costs import costs, total_cost
from bayesfed.wireless.allocation import plan
from bayesfed.wireless.devices import Device, fleet
from bayesfed.wireless.energy import RoundCost, device_rate, round_cost, work_cycles
from tests.wireless.test_planning import CNN, KEY, NAMES

# Devices.


def test_a_device_travels_in_a_profile_without_loss():
    device = fleet(["a"], KEY, distance_m=(100.0, 400.0), like=Device(noise_w_per_hz=1 / 3e20))["a"]
    profile = Profile("a", 10, {**device.figures(), "memory_bytes": 1e9})
    assert Device.from_figures(profile.device) == device
    with pytest.raises(ArgumentError, match="expected power_w, found"):
        Device.from_figures(
            {name: value for name, value in device.figures().items() if name != "power_w"}
        )
    train, _ = bf.digits()
    pool = bf.InProcess({"a": train}, devices={"a": device.figures()})
    assert Device.from_figures(pool.profiles[0].device) == device


def test_impossible_devices_are_refused():
    for name in Device().figures():
        with pytest.raises(ArgumentError, match=f"Device, {name}: expected a number, found nan"):
            Device(**{name: math.nan})
        with pytest.raises(ArgumentError, match=rf"Device\.{name}: expected a finite"):
            Device(**{name: math.inf})
    for name in (
        "bandwidth_hz",
        "power_w",
        "macs_per_cycle",
        "joules_per_cycle_hz2",
        "min_frequency_hz",
        "min_distance_m",
        "noise_w_per_hz",
    ):
        for wrong in (0.0, -1.0):
            with pytest.raises(ArgumentError, match=f"Device.{name}"):
                Device(**{name: wrong})
    with pytest.raises(ArgumentError, match="Device.energy_j"):
        Device(energy_j=-1.0)
    with pytest.raises(ArgumentError, match="min_frequency_hz: expected at most max_frequency_hz"):
        Device(min_frequency_hz=2e9)
    with pytest.raises(ArgumentError, match="min_distance_m: expected at most max_distance_m"):
        Device(min_distance_m=600.0)
    with pytest.raises(
        ArgumentError, match=r"Device.gain, distance_m: expected a number in \(0, inf\)"
    ):
        Device().gain(0.0)


def test_path_loss_falls_by_its_exponent_and_is_3gpp_at_a_kilometre():
    device = Device()
    assert device.gain(1000.0) == pytest.approx(10**-14.81, rel=1e-12)
    assert device.gain(200.0) / device.gain(400.0) == pytest.approx(2**3.76, rel=1e-12)
    assert device.noise_w_per_hz == pytest.approx(3.981e-21, rel=1e-3)
    rates = [device_rate(device, device.gain(metres)) / 1e6 for metres in (100, 367, 550)]
    assert rates == pytest.approx([7.813, 1.425, 0.4524], rel=1e-3)


def test_the_usual_device_sends_longer_than_it_trains():
    """AnycostFL, Fig. 1: 1_000 rows of a CNN of 12.27e6 MACs, an update of 53.2 Mb."""
    device = Device()
    cycles = work_cycles(12.27e6, 1_000, macs_per_cycle=device.macs_per_cycle)
    found = {
        (metres, gigahertz): round_cost(
            device,
            device.gain(metres),
            cycles=cycles,
            bits=53.2e6,
            frequency_hz=gigahertz * 1e9,
        )
        for metres in (367.0, 550.0)
        for gigahertz in (0.5, 1.5)
    }
    slow, fast = found[367.0, 0.5], found[367.0, 1.5]
    assert [f"{one:.2g}" for one in (slow.uplink_s, slow.uplink_j)] == ["37", "3.7"]
    assert [f"{one:.2g}" for one in (fast.compute_s, slow.compute_s)] == ["1.5", "4.6"]
    assert [f"{one:.2g}" for one in (slow.compute_j, fast.compute_j)] == ["4.3", "39"]
    assert f"{found[550.0, 1.5].uplink_s:.3g}" == "118"


def test_positions_are_uniform_over_the_disc_and_named():
    device = Device(min_distance_m=35.0, max_distance_m=550.0)
    found = np.array([device.distance_m(KEY, "a", round) for round in range(2000)])
    assert found.min() >= 35
    assert found.max() <= 550
    shares = (found**2 - 35**2) / (550**2 - 35**2)
    assert np.abs(np.sort(shares) - np.linspace(0, 1, 2000)).max() < 0.05
    assert device.distance_m(KEY, "a", 7) == found[7]
    assert device.distance_m(KEY, "b", 7) != found[7]
    assert Device(min_distance_m=120.0, max_distance_m=120.0).distance_m(KEY, "a", 3) == 120.0


def test_fleets_are_drawn_by_name():
    devices = fleet(NAMES, KEY)
    assert fleet(NAMES[::-1], KEY) == devices
    assert fleet(NAMES[5:6], KEY) == {NAMES[5]: devices[NAMES[5]]}
    for name, low, high in (("joules_per_cycle_hz2", 5e-27, 1e-26), ("energy_j", 1.5, 4.5)):
        values = [getattr(device, name) for device in devices.values()]
        assert low <= min(values) < low + 0.2 * (high - low)
        assert high >= max(values) > high - 0.2 * (high - low)
    half = math.sqrt(3 * 2500.0)
    ring = (400.0 - half, 400.0 + half)
    spread = fleet([str(k) for k in range(2000)], KEY, distance_m=ring)
    distances = np.array([device.distance_m(KEY, "x", 0) for device in spread.values()])
    assert distances.mean() == pytest.approx(400, abs=8)
    assert distances.var() == pytest.approx(2500, rel=0.15)
    with pytest.raises(ArgumentError, match="distinct names"):
        fleet(["a", "a"], KEY)
    for wrong in ((4.0, 3.0), (0.0, 1.0), (1.0, math.inf)):
        with pytest.raises(ArgumentError, match=r"fleet.energy_j: expected 0 < low <= high"):
            fleet(["a"], KEY, energy_j=wrong)


# Costs.


def test_costs_of_a_two_layer_net_by_hand():
    net = bf.mlp([64, 16, 10], bf.Key(0, "net"))
    macs = total_cost(costs(net, bf.digits()[0].inputs[:1])).macs
    assert macs == 64 * 16 + 16 * 10
    device = Device(
        macs_per_cycle=4.0,
        joules_per_cycle_hz2=2e-27,
        power_w=0.2,
        bandwidth_hz=2e6,
        noise_w_per_hz=1e-20,
    )
    cycles = work_cycles(macs, 50, macs_per_cycle=device.macs_per_cycle, epochs=2)
    assert cycles == 1184 * 3 * 50 * 2 / 4  # 88 800
    # |h| P / (N0 b) = 3, so the rate is 2 bits per second and Hz.
    found = round_cost(device, 3e-13, cycles=cycles, bits=32 * 1210, frequency_hz=5e8)
    assert found.compute_s == pytest.approx(88_800 / 5e8, rel=1e-12)
    assert found.compute_j == pytest.approx(2e-27 * 25e16 * 88_800, rel=1e-12)
    assert found.uplink_s == pytest.approx(38_720 / 4e6, rel=1e-12)
    assert found.uplink_j == pytest.approx(0.2 * 38_720 / 4e6, rel=1e-12)
    assert found.latency_s == pytest.approx(1.776e-4 + 9.68e-3, rel=1e-12)
    assert found.energy_j == pytest.approx(4.44e-5 + 1.936e-3, rel=1e-12)
    nothing = round_cost(device, 3e-13, cycles=0, bits=0, frequency_hz=5e8)
    assert nothing == RoundCost(0, 0, 0, 0)


def test_bad_figures_of_costs_are_refused():
    with pytest.raises(
        ArgumentError,
        match="samples: expected a whole number >= 1, found 0; try leaving this client out",
    ):
        work_cycles(100, 0, macs_per_cycle=1.0)
    for call in (
        lambda wrong: work_cycles(wrong, 1, macs_per_cycle=1.0),
        lambda wrong: work_cycles(1.0, 1, macs_per_cycle=wrong),
        lambda wrong: device_rate(Device(), wrong),
        lambda wrong: round_cost(Device(), wrong, cycles=1.0, bits=1.0, frequency_hz=1.0),
        lambda wrong: round_cost(Device(), 1e-13, cycles=1.0, bits=1.0, frequency_hz=wrong),
        lambda wrong: plan(Device(), wrong, **CNN),
        lambda wrong: plan(Device(), 1e-13, **{**CNN, "cycles": wrong}),
        lambda wrong: plan(Device(), 1e-13, **{**CNN, "size_bits": wrong}),
    ):
        for wrong in (0.0, -1.0, math.inf):
            with pytest.raises(ArgumentError, match="a positive finite number"):
                call(wrong)
        with pytest.raises(ArgumentError, match="expected a (positive finite )?number, found nan"):
            call(math.nan)
    for cycles, bits in ((-1.0, 1.0), (1.0, math.nan)):
        with pytest.raises(ArgumentError, match="from 0 up"):
            round_cost(Device(), 1e-13, cycles=cycles, bits=bits, frequency_hz=1.0)


# Pictures.


def _board(cores, hertz, watts):
    # All power of the module is attributed to the clock, epsilon = P / f^3. Small networks reach
    # 0.1 of the peak of one MAC per core and cycle.
    return Device(
        macs_per_cycle=0.1 * cores,
        min_frequency_hz=hertz / 8,
        max_frequency_hz=hertz,
        joules_per_cycle_hz2=watts / hertz**3,
    )


def jetsons():
    """Return devices like the boards of Fig. 1, with their GPU at its highest clock frequency.

    CUDA cores, GPU clock and power budget of the power modes are those of NVIDIA's data sheets and
    Jetson Linux guides ("Supported Modes and Power Efficiency"): Nano 128 at 921.6 MHz in 10 W,
    Xavier NX 384 at 1100 MHz in 15 W, AGX Xavier 512 at 900 MHz in 30 W. The share of the peak that
    training reaches is a guess, 0.1 for all three; it scales seconds and joules of computing alike.
    """
    return {
        "Nano": _board(128, 921.6e6, 10.0),
        "Xavier NX": _board(384, 1100e6, 15.0),
        "AGX Xavier": _board(512, 900e6, 30.0),
    }


def test_pictures_of_costs():
    found = {}
    for name, device in jetsons().items():
        cycles = work_cycles(12_273_152, 1000, macs_per_cycle=device.macs_per_cycle)
        states = {"good": 100.0, "medium": 300.0, "poor": 450.0}
        found[name] = {
            state: round_cost(
                device,
                device.gain(metres),
                cycles=cycles,
                bits=3.5e6,
                frequency_hz=device.max_frequency_hz,
            )
            for state, metres in states.items()
        }
    # What the paper reads off its Fig. 1: the Nano over a poor channel is several times slower than
    # the AGX over a good one; energy is computing.
    assert found["Nano"]["poor"].latency_s > 4 * found["AGX Xavier"]["good"].latency_s
    assert all(
        cost.compute_j > 0.9 * cost.energy_j
        for states in found.values()
        for cost in states.values()
    )
    costs = found["Nano"]
    above, below = plot_client_costs(costs, latency_s=5.0, energy_j={"good": 30.0})
    for axes, unit in ((above, "s"), (below, "j")):
        assert [round(bar.get_height(), 9) for bar in axes.containers[0]] == [
            round(getattr(cost, f"compute_{unit}"), 9) for cost in costs.values()
        ]
    assert "deadline 5 s" in [text.get_text() for text in above.get_legend().get_texts()]
    assert "budget" in [text.get_text() for text in below.get_legend().get_texts()]
    assert [label.get_text() for label in below.get_xticklabels()] == ["good", "medium", "poor"]
    with pytest.raises(ArgumentError, match="at least one client"):
        plot_client_costs({})

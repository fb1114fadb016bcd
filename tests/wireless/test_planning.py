"""Devices, what a round costs them, and plans within deadlines and budgets."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import bayesfed as bf
from bayesfed.algorithms.anycost_fl.weights import (
    aggregation_weight,
    aggregation_weights,
    divergence_bound,
)
from bayesfed.errors import ArgumentError
from bayesfed.federated.core.protocols import Profile
from bayesfed.inspect import plot_client_costs
from bayesfed.models.costs import costs, total_cost
from bayesfed.wireless.allocation import Infeasible, Plan, plan
from bayesfed.wireless.devices import Device, fleet
from bayesfed.wireless.energy import (
    RoundCost,
    device_rate,
    round_cost,
    work_cycles,
)

KEY = bf.Key(0, "planning")
NAMES = [f"client-{k}" for k in range(60)]
# The paper's CNN: 5 x 5 convolutions of 32 and 64 channels, padded, and 512 hidden units.
CNN = {
    "cycles": work_cycles(12_273_152, 1000, macs_per_cycle=16),
    "size_bits": 32 * 1_663_370,
    "latency_s": 5.0,
}


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
        for wrong in (math.nan, math.inf):
            with pytest.raises(ArgumentError, match=f"Device.{name}: expected a finite"):
                Device(**{name: wrong})
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
    with pytest.raises(ArgumentError, match="a distance_m > 0"):
        Device().gain(0.0)


def test_path_loss_falls_by_its_exponent_and_is_3gpp_at_a_kilometre():
    device = Device()
    assert device.gain(1000.0) == pytest.approx(10**-14.81, rel=1e-12)
    assert device.gain(200.0) / device.gain(400.0) == pytest.approx(2**3.76, rel=1e-12)
    assert device.noise_w_per_hz == pytest.approx(3.981e-21, rel=1e-3)
    rates = [device_rate(device, device.gain(metres)) / 1e6 for metres in (100, 367, 550)]
    assert rates == pytest.approx([7.813, 1.425, 0.4524], rel=1e-3)


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
        for wrong in (0.0, -1.0, math.nan, math.inf):
            with pytest.raises(ArgumentError, match="a positive finite number"):
                call(wrong)
    for cycles, bits in ((-1.0, 1.0), (1.0, math.nan)):
        with pytest.raises(ArgumentError, match="from 0 up"):
            round_cost(Device(), 1e-13, cycles=cycles, bits=bits, frequency_hz=1.0)


# Plans.


def random_tasks(count, seed=0):
    """Devices and tasks of all sorts: an order of magnitude and more each way of the paper's, so
    that every constraint is active somewhere.
    """
    draw = np.random.default_rng(seed)

    def about(low, high):
        return np.exp(draw.uniform(np.log(low), np.log(high), count)).tolist()

    names = [
        "joules_per_cycle_hz2",
        "power_w",
        "min_frequency_hz",
        "ratio",
        "gain",
        "cycles",
        "size_bits",
        "latency_s",
        "energy_j",
    ]
    ranges = [
        (1e-27, 5e-26),
        (0.01, 2),
        (5e7, 6e8),
        (1, 20),
        (1e-15, 1e-11),
        (1e8, 1e10),
        (1e6, 3e8),
        (0.5, 30),
        (0.1, 30),
    ]
    drawn = dict(zip(names, (about(*bounds) for bounds in ranges), strict=True))
    tasks = []
    for k in range(count):
        one = {name: values[k] for name, values in drawn.items()}
        device = Device(
            joules_per_cycle_hz2=one["joules_per_cycle_hz2"],
            power_w=one["power_w"],
            min_frequency_hz=one["min_frequency_hz"],
            max_frequency_hz=one["min_frequency_hz"] * one["ratio"],
        )
        tasks.append(
            (
                device,
                one["gain"],
                {name: one[name] for name in ("cycles", "size_bits", "latency_s", "energy_j")},
            )
        )
    return tasks


def best_on_grid(tasks, *, betas=None, points=40, alphas=(0.25, 1.0), beta_max=1 / 15):
    """Return the best gain ``(K,)`` over alpha and f, with beta on a grid too or the largest that
    fits; 0 where nothing does.
    """
    pick = {
        "eps": [d.joules_per_cycle_hz2 for d, _, _ in tasks],
        "power": [d.power_w for d, _, _ in tasks],
        "low": [d.min_frequency_hz for d, _, _ in tasks],
        "high": [d.max_frequency_hz for d, _, _ in tasks],
        "rate": [device_rate(d, gain) for d, gain, _ in tasks],
        **{
            name: [task[name] for _, _, task in tasks]
            for name in ("cycles", "size_bits", "latency_s", "energy_j")
        },
    }
    v = {name: np.array(values)[:, None, None] for name, values in pick.items()}
    alpha = np.linspace(*alphas, points)[None, :, None]
    f = v["low"] * (v["high"] / v["low"]) ** np.linspace(0, 1, points)[None, None, :]
    time_left = v["latency_s"] - alpha * v["cycles"] / f
    energy_left = (v["energy_j"] - v["eps"] * f**2 * alpha * v["cycles"]) / v["power"]
    beta = np.minimum(time_left, energy_left) * v["rate"] / (alpha * v["size_bits"])
    if betas is None:
        best = np.clip(beta, 0, beta_max)
    else:
        grid = np.asarray(betas)
        best = np.where(
            beta >= grid[0],
            grid[np.clip(np.searchsorted(grid, beta, side="right") - 1, 0, None)],
            0.0,
        )
    return (alpha**4 * best).max(axis=(1, 2))


def assert_kept(found, device, gain, task, alphas=(0.25, 1.0), betas=(0.0, 1 / 15)):
    cost = round_cost(
        device,
        gain,
        cycles=found.alpha * task["cycles"],
        bits=found.bits,
        frequency_hz=found.frequency_hz,
    )
    assert cost == found.cost
    assert cost.latency_s <= task["latency_s"]
    assert cost.energy_j <= task["energy_j"]
    assert alphas[0] <= found.alpha <= alphas[1]
    assert betas[0] <= found.beta <= betas[1]
    assert device.min_frequency_hz <= found.frequency_hz <= device.max_frequency_hz
    assert found.bits == found.alpha * found.beta * task["size_bits"]


def test_plans_keep_every_constraint_and_beat_every_grid_point():
    tasks = random_tasks(10_000)
    plans = [plan(device, gain, **task) for device, gain, task in tasks]
    for found, (device, gain, task) in zip(plans, tasks, strict=True):
        if isinstance(found, Plan):
            assert_kept(found, device, gain, task)
    gains = np.array([found.learning_gain if isinstance(found, Plan) else 0.0 for found in plans])
    grid = np.concatenate(
        [best_on_grid(tasks[start : start + 500]) for start in range(0, 10_000, 500)]
    )
    # One-sided: a grid finds no more than there is, and a refusal means that it finds nothing.
    assert (gains >= grid * (1 - 1e-9)).all()
    assert np.median(grid[grid > 0] / gains[grid > 0]) > 0.95
    kept = [found for found in plans if isinstance(found, Plan)]
    assert 0.3 < len(kept) / 10_000 < 0.9
    # Every face is met: bounds of alpha and beta, of f, slack budgets, and none of them.
    interior = [p for p in kept if 0.25 < p.alpha < 1 and p.beta < 1 / 15]
    for face in (
        [p for p in kept if p.alpha == 1],
        [p for p in kept if p.alpha == 0.25],
        [p for p in kept if p.beta == 1 / 15],
        interior,
    ):
        assert len(face) > 150
    assert {found.binding for found in plans if isinstance(found, Infeasible)} == {
        "latency",
        "energy",
        "frequency",
    }


def test_plans_beat_a_grid_over_all_three():
    tasks = random_tasks(400, seed=1)
    grid = best_on_grid(tasks, betas=np.linspace(0, 1 / 15, 60), points=60)
    gains = np.array(
        [
            found.learning_gain if isinstance(found := plan(d, gain, **task), Plan) else 0.0
            for d, gain, task in tasks
        ]
    )
    assert (gains >= grid * (1 - 1e-9)).all()
    assert (grid > 0).sum() > 100


def test_no_small_step_from_a_plan_is_better():
    # The problem is concave in logarithms, so a plan that no neighbour beats is the best there is.
    tried = 0
    for device, gain, task in random_tasks(400, seed=6):
        found = plan(device, gain, **task)
        if not isinstance(found, Plan):
            continue
        tried += 1
        f = np.clip(
            found.frequency_hz * np.linspace(0.99, 1.01, 4001),
            device.min_frequency_hz,
            device.max_frequency_hz,
        )
        for step in (-1e-3, -1e-5, 1e-5, 1e-3):
            alpha = min(max(found.alpha * (1 + step), 0.25), 1.0)
            time_left = task["latency_s"] - alpha * task["cycles"] / f
            energy_left = (
                task["energy_j"] - device.joules_per_cycle_hz2 * f**2 * alpha * task["cycles"]
            ) / device.power_w
            beta = (
                np.minimum(time_left, energy_left)
                * device_rate(device, gain)
                / (alpha * task["size_bits"])
            )
            assert (alpha**4 * np.clip(beta, 0, 1 / 15)).max() <= found.learning_gain * (1 + 1e-10)
    assert tried > 150


@pytest.mark.parametrize(
    "fixed",
    [
        {"alpha_min": 1.0, "alpha_max": 1.0},
        {"beta_min": 0.02, "beta_max": 0.02},
        {"alpha_max": 0.5, "beta_min": 0.01},
    ],
)
def test_fixed_figures_are_kept_and_the_rest_is_best(fixed):
    tasks = random_tasks(1500, seed=2)
    alphas = fixed.get("alpha_min", 0.25), fixed.get("alpha_max", 1.0)
    bounds = fixed.get("beta_min", 0.0), fixed.get("beta_max", 1 / 15)
    plans = [plan(device, gain, **task, **fixed) for device, gain, task in tasks]
    for found, (device, gain, task) in zip(plans, tasks, strict=True):
        if isinstance(found, Plan):
            assert_kept(found, device, gain, task, alphas, bounds)
    gains = np.array([found.learning_gain if isinstance(found, Plan) else 0.0 for found in plans])
    betas = np.linspace(*bounds, 50) if bounds[0] < bounds[1] else np.array([bounds[0]])
    grid = best_on_grid(tasks, betas=betas, alphas=alphas)
    assert (gains >= grid * (1 - 1e-9)).all()
    assert (gains > 0).mean() > 0.2


def test_both_budgets_are_spent_inside_and_the_split_is_24():
    device, task = Device(energy_j=3.0), {**CNN, "latency_s": 5.0}
    found = plan(device, device.gain(520.0), **task)
    assert 0.25 < found.alpha < 1
    assert found.beta < 1 / 15
    assert found.cost.latency_s == pytest.approx(5.0, rel=1e-11)
    assert found.cost.energy_j == pytest.approx(3.0, rel=1e-11)
    phi, other = split(3.0, 0.1 * 5.0)
    assert found.cost.compute_s / 5 == pytest.approx(phi, rel=1e-9)
    assert other < 0
    # A loud radio, that could not send all the time: the second root is in (0, 1), but leaves
    # nothing to compute with.
    loud = replace(device, power_w=2.0, energy_j=5.0)
    found = plan(loud, device.gain(550.0) / 200, **task)
    phi, other = split(5.0, 10.0)
    assert found.cost.compute_s / 5 == pytest.approx(phi, rel=1e-9)
    assert 0 < other < 1
    assert 5.0 - (1 - other) * 10.0 < 0


def split(energy, radio):
    """Both roots of (24), the last term of the second with its sign put right."""
    psi = 4 * radio**2 - 4 * energy * radio + 9 * energy**2
    return (math.sqrt(psi) - 3 * energy) / (8 * radio) + 3 / 4, -(math.sqrt(psi) + 3 * energy) / (
        8 * radio
    ) + 3 / 4


def test_more_budget_is_never_worse():
    for device, gain, task in random_tasks(150, seed=3):
        for name in ("latency_s", "energy_j"):
            found = [
                plan(device, gain, **{**task, name: task[name] * share})
                for share in (0.3, 0.6, 1.0, 2.0, 5.0, math.inf)
            ]
            gains = [one.learning_gain if isinstance(one, Plan) else 0.0 for one in found]
            assert all(after >= before * (1 - 1e-10) for before, after in pairwise(gains))


def test_slack_budgets_are_not_spent():
    device = Device()
    found = plan(
        device, device.gain(100.0), cycles=1e8, size_bits=1e6, latency_s=10.0, energy_j=math.inf
    )
    assert (found.alpha, found.beta) == (1.0, 1 / 15)
    # Done well before the deadline at the slowest clock, which is the cheapest.
    assert found.frequency_hz == device.min_frequency_hz
    assert found.cost.latency_s < 2
    unbounded = plan(
        device, device.gain(100.0), **{**CNN, "latency_s": math.inf}, energy_j=math.inf
    )
    assert (unbounded.alpha, unbounded.beta) == (1.0, 1 / 15)


def test_refusals_name_the_constraint_and_how_much_is_missing():
    device = Device()
    gain = device.gain(200.0)
    task = {"cycles": 4e9, "size_bits": 1e7, "beta_min": 0.01}
    sending = 0.25 * 0.01 * 1e7 / device_rate(device, gain)
    slow = plan(device, gain, **task, latency_s=0.5, energy_j=100.0)
    assert (slow.binding, slow.allowed) == ("frequency", 1.5e9)
    assert slow.needed == pytest.approx(1e9 / (0.5 - sending))
    fast = plan(replace(device, min_frequency_hz=1e9), gain, **task, latency_s=60.0, energy_j=1.0)
    assert (fast.binding, fast.allowed) == ("frequency", 1e9)
    assert fast.excess < 0
    late = plan(device, gain, **task, latency_s=0.1, energy_j=1.0)
    assert late.binding == "latency"
    assert late.needed == pytest.approx(1e9 / 1.5e9 + sending)
    assert late.excess == late.needed - 0.1
    poor = plan(device, gain, **task, latency_s=2.0, energy_j=0.5)
    assert poor.binding == "energy"
    assert poor.needed == pytest.approx(7.5e-27 * (1e9 / (2 - sending)) ** 2 * 1e9 + 0.1 * sending)
    assert poor.reason == f"energy: needs {poor.needed:.4g} J, has 0.5 J"


@pytest.mark.parametrize("tiny", [0.0, 5e-324, 1e-300, 1e-30])
def test_budgets_of_nothing_are_refused_in_words(tiny):
    device = Device()
    gain = device.gain(200.0)
    assert plan(device, gain, **{**CNN, "latency_s": tiny}).binding == "latency"
    assert plan(device, gain, **CNN, energy_j=tiny).binding == "energy"
    assert plan(replace(device, energy_j=tiny), gain, **CNN).binding == "energy"
    assert plan(device, 1e-300, **CNN).binding == "latency"
    assert plan(device, 5e-324, **CNN, energy_j=math.inf).reason.startswith("latency: needs inf s")
    assert plan(device, 5e-324, **{**CNN, "latency_s": math.inf}).binding == "latency"
    # Computing that takes no time beside the sending.
    found = plan(device, 1e-19, cycles=1e-9, size_bits=1e9, latency_s=1e4, energy_j=math.inf)
    assert found.cost.latency_s <= 1e4


def test_bad_budgets_and_bounds_are_errors():
    for wrong in (-1.0, math.nan):
        for name in ("latency_s", "energy_j"):
            with pytest.raises(ArgumentError, match=f"plan, {name}: expected a budget from 0 up"):
                plan(Device(), 1e-13, **{**CNN, name: wrong})
    for bounds in (
        {"alpha_min": 1.5},
        {"alpha_min": 0.0},
        {"alpha_min": 0.5, "alpha_max": 0.4},
        {"alpha_max": 1.1},
        {"alpha_min": math.nan},
    ):
        with pytest.raises(ArgumentError, match="0 < alpha_min <= alpha_max <= 1"):
            plan(Device(), 1e-13, **CNN, **bounds)
    for bounds in (
        {"beta_min": 0.1},
        {"beta_max": 1.1},
        {"beta_max": 0.0},
        {"beta_min": -0.1},
        {"beta_max": math.nan},
    ):
        with pytest.raises(ArgumentError, match="0 <= beta_min <= beta_max <= 1"):
            plan(Device(), 1e-13, **CNN, **bounds)


def test_the_papers_settings_are_neither_too_hard_nor_too_easy():
    plans = [
        plan(device, device.gain(device.distance_m(KEY, name, round)), **CNN)
        for name, device in fleet(NAMES, KEY).items()
        for round in range(5)
    ]
    assert all(isinstance(found, Plan) for found in plans)
    alphas, betas = (
        np.array([found.alpha for found in plans]),
        np.array([found.beta for found in plans]),
    )
    assert 0.6 < np.median(alphas) < 0.85
    assert 0.03 < np.median(betas) < 1 / 15
    assert (alphas == 1).mean() < 0.1
    assert (betas == 1 / 15).mean() < 0.5


# What follows for the sum.


def test_shares_of_the_sum_and_their_limits():
    alphas, betas = [1.0, 0.5, 0.25], [1 / 15, 1 / 15, 0.01]
    shares = aggregation_weights(alphas, betas)
    assert sum(shares) == pytest.approx(1, abs=1e-15)
    assert shares == sorted(shares, reverse=True)
    apart = [aggregation_weight(alpha, beta) for alpha, beta in zip(alphas, betas, strict=True)]
    assert np.array(apart) / sum(apart) == pytest.approx(shares, rel=1e-12)
    assert max(apart) < 1.82
    # Theorem 1: no other shares have a smaller bound (14).
    roots = np.sqrt(
        [divergence_bound(alpha, beta) for alpha, beta in zip(alphas, betas, strict=True)]
    )
    others = np.random.default_rng(0).dirichlet(np.ones(3), 2000)
    assert ((others**2 @ roots**2) >= np.square(shares) @ roots**2).all()
    assert aggregation_weights([1.0, 1.0, 0.5], [1.0, 1.0, 0.5]) == [0.5, 0.5, 0.0]
    for gap in (1e-2, 1e-4, 1e-6):
        assert aggregation_weights([1.0, 0.5], [(1 - gap) ** 2, 1.0])[0] > 1 - 20 * gap**2
    # Client by client an exact one is finite, and the others' say is a millionth.
    assert aggregation_weight(1.0, 1.0) == 2**20
    assert aggregation_weight(1.0, 1.0, least=1e-2) == pytest.approx(1e4)
    assert aggregation_weight(0.5, 1 / 15) / aggregation_weight(1.0, 1.0) < 2e-6


def test_bad_shares_are_refused():
    for alpha, beta in ((0.0, 0.5), (1.1, 0.5), (0.5, 0.0), (0.5, 1.1), (math.nan, 0.5)):
        for call in (divergence_bound, aggregation_weight):
            with pytest.raises(ArgumentError, match=r"alpha and beta in \(0, 1\]"):
                call(alpha, beta)
    for alphas, betas in (([], []), ([1.0], [1.0, 0.5])):
        with pytest.raises(ArgumentError, match="an alpha and a beta of each client"):
            aggregation_weights(alphas, betas)
    with pytest.raises(ArgumentError, match="aggregation_weight.least"):
        aggregation_weight(0.5, 0.5, least=0.0)


def divergence(alpha, beta, count=200_000):
    """Return ``|u - cmprs(shrink(u))|^2 / |u|^2`` of an update as in appendix A."""
    draw = np.random.default_rng(4)
    u = np.sort(draw.uniform(0, 1, count))[::-1]
    kept = u[: round(alpha * math.sqrt(beta) * count)]
    levels = 2 ** (32 * math.sqrt(beta))
    place = (kept - kept.min()) / (kept.max() - kept.min()) * levels
    sent = (
        kept.min()
        + (np.floor(place) + (draw.uniform(size=len(kept)) < place - np.floor(place)))
        * (kept.max() - kept.min())
        / levels
    )
    return (((kept - sent) ** 2).sum() + (u[len(kept) :] ** 2).sum()) / (u**2).sum()


def test_the_bound_holds_for_uniform_updates_where_the_docstring_says():
    for alpha, beta in (
        (1.0, 1 / 15),
        (1.0, 0.01),
        (1.0, 0.5),
        (0.75, 1 / 15),
        (0.6, 1 / 15),
        (0.6, 0.01),
    ):
        assert divergence(alpha, beta) < divergence_bound(alpha, beta)
    assert divergence(0.25, 1 / 15) == pytest.approx((1 - 0.25 * math.sqrt(1 / 15)) ** 3, abs=0.005)
    assert divergence(0.25, 1 / 15) > divergence_bound(0.25, 1 / 15) + 0.02
    assert divergence_bound(1.0, 1.0) == 0
    # (30) as printed, with (1 - beta)^2, would be weaker.
    assert divergence_bound(1.0, 0.25) == 0.25


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

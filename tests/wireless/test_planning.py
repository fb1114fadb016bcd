"""Plans within deadlines and budgets, and the weights in the sum that follow from them."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import bayesfed as bf
from bayesfed.algorithms.anycost_fl.weights import aggregation_weight
from bayesfed.errors import ArgumentError
from bayesfed.wireless.allocation import Infeasible, Plan, plan
from bayesfed.wireless.devices import Device, fleet
from bayesfed.wireless.energy import device_rate, round_cost, work_cycles

KEY = bf.Key(0, "planning")
NAMES = [f"client-{k}" for k in range(60)]
# The paper's CNN: 5 x 5 convolutions of 32 and 64 channels, padded, and 512 hidden units.
CNN = {
    "cycles": work_cycles(12_273_152, 1000, macs_per_cycle=16),
    "size_bits": 32 * 1_663_370,
    "latency_s": 5.0,
}


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


@pytest.mark.slow
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
    ):
        with pytest.raises(ArgumentError, match="0 < alpha_min <= alpha_max <= 1"):
            plan(Device(), 1e-13, **CNN, **bounds)
    for bounds in (
        {"beta_min": 0.1},
        {"beta_max": 1.1},
        {"beta_max": 0.0},
        {"beta_min": -0.1},
    ):
        with pytest.raises(ArgumentError, match="0 <= beta_min <= beta_max <= 1"):
            plan(Device(), 1e-13, **CNN, **bounds)
    for name in ("alpha_min", "beta_max"):
        with pytest.raises(ArgumentError, match=f"plan, {name}: expected a number, found nan"):
            plan(Device(), 1e-13, **{**CNN, name: math.nan})


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


def test_weights_and_their_limits():
    weights = [aggregation_weight(alpha, 1 / 15) for alpha in (1.0, 0.5, 0.25)]
    assert weights == sorted(weights, reverse=True)
    assert weights == [
        pytest.approx(1 / divergence_bound(alpha, 1 / 15)) for alpha in (1.0, 0.5, 0.25)
    ]
    assert 1 < min(weights) < max(weights) < 1.82
    # Theorem 1: no other shares have a smaller bound (14).
    shares, bounds = np.array(weights) / sum(weights), 1 / np.array(weights)
    others = np.random.default_rng(0).dirichlet(np.ones(3), 2000)
    assert ((others**2 @ bounds) >= np.square(shares) @ bounds).all()
    # An exact client's weight is finite, and the others' say is a millionth.
    assert aggregation_weight(1.0, 1.0) == 2**20
    assert aggregation_weight(0.5, 1 / 15) / aggregation_weight(1.0, 1.0) < 2e-6


def test_bad_shares_are_refused():
    for alpha, beta in ((0.0, 0.5), (1.1, 0.5), (0.5, 0.0), (0.5, 1.1), (math.nan, 0.5)):
        with pytest.raises(ArgumentError, match="a share above 0 and at most 1"):
            aggregation_weight(alpha, beta)


def divergence_bound(alpha, beta):
    """The paper's bound on ``E |u - cmprs(shrink(u))|^2 / E |u|^2`` (11).

    Its model: ``|u| ~ U(0, u_max)``; shrinking keeps the largest share alpha, sparsification the
    largest share ``sqrt(beta)`` of those, and ``2^(32 sqrt(beta))`` levels are left. (30) has
    ``(1 - sqrt(beta))^2`` as (32) has it, not the printed ``(1 - beta)^2``. In the model the error
    is ``(1 - alpha sqrt(beta))^3`` and a little for the levels. Step (b) of (32) fails for beta
    near 1, where shrinking alone leaves ``(1 - alpha)^3``, more than ``(1 - alpha)^4``.
    """
    return (1 - alpha * (2 - alpha) * math.sqrt(beta)) ** 2


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


def test_the_bound_holds_for_uniform_updates_of_large_alpha():
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

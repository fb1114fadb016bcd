"""An empirical audit of `private`: two worlds that differ in one client, and an attack that tells
them apart as well as can be.

In the first world client "c0" sends a change of length `clip`, in the second zeros. Models after
every round are seen, and the rounds' changes are independent draws of the mechanism. The attack is
the likelihood-ratio test, for two Gaussians of equal spread a threshold on the change. Its error
rates over many runs bound epsilon from below: at any threshold ``TPR <= exp(epsilon) FPR + delta``,
with Clopper-Pearson bounds of both rates.
"""

import importlib
import math
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from scipy.stats import beta
from torch import nn

import bayesfed as bf
from bayesfed.federated import rounds
from bayesfed.federated.core.protocols import Fit

NET, DELTA = nn.Linear(1, 1, bias=False), 1e-5


@dataclass(frozen=True)
class Sends:
    """A local step that sends the mean of its inputs as its change."""

    kind: str = "delta"

    def fit(self, message, memory, data, key, options):
        return Fit({"weight": data.inputs.mean(0, keepdim=True)}, {}, {})


def changes(world, noise, count, told=None, runs=1):
    """The change of the model, times the participants, in each round of runs of `count` rounds, and
    the epsilon printed after the last one.
    """
    data = {
        f"c{number}": bf.Dataset(torch.full((1, 1), value), torch.zeros(1))
        for number, value in enumerate([5.0 * world, 0.5, -0.3])
    }
    seen, pool = [], bf.InProcess(data)
    for run in range(runs):
        algorithm = bf.private(
            bf.compose("sends", NET, Sends()),
            clip=1.0,
            noise=told or noise,
            participants=3,
            key=bf.Key(run, world),
            delta=DELTA,
        )
        if told:
            phase = algorithm.phases[0]
            (layer,) = phase.layers
            # The broken mechanism goes around the check, which would refuse another layer.
            algorithm = replace(
                algorithm,
                phases=(replace(phase, layers=(replace(layer, noise=noise),)),),
                checks=(),
            )
        before, own = algorithm.initial["model/weight"].detach(), []
        for report in rounds(algorithm, pool, rounds=count, seed=run):
            own.append(3 * float(report.state["model/weight"] - before))
            before = report.state["model/weight"]
        seen.append(own)
    printed = bf.algorithms.epsilon(told, count, DELTA) if told else report.server["epsilon"]
    return torch.tensor(seen, dtype=torch.float64), printed


def lower_bound(present, absent, spread, confidence=0.999):
    """The largest epsilon that the attack's error rates rule out, each world's threshold at the
    middle and towards either side.
    """
    bound = 0.0
    sums = [(scores / spread).sum(1) / math.sqrt(scores.shape[1]) for scores in (present, absent)]
    middle = float((sums[0].mean() + sums[1].mean()) / 2)
    for threshold in (middle - 1.0, middle, middle + 1.0):
        hits, alarms = (int((score > threshold).sum()) for score in sums)
        count = len(sums[0])
        least = beta.ppf((1 - confidence) / 6, hits, count - hits + 1) if hits else 0.0
        most = (
            beta.ppf(1 - (1 - confidence) / 6, alarms + 1, count - alarms)
            if alarms < count
            else 1.0
        )
        bound = max(bound, math.log(max(least - DELTA, 1e-300) / most))
    return bound


def audited(noise, count, told=None, runs=1, rounds_of_one=False):
    """The lower bound, and the epsilon that was printed for it: of one round if each is an attack
    of its own.
    """
    (present, printed), (absent, _) = (changes(world, noise, count, told, runs) for world in (1, 0))
    if rounds_of_one:
        present, absent, printed = (
            present.reshape(-1, 1),
            absent.reshape(-1, 1),
            bf.algorithms.epsilon(told or noise, 1, DELTA),
        )
    return lower_bound(present, absent, noise), printed


@pytest.mark.slow
def test_the_attack_stays_below_the_printed_epsilon_and_finds_a_broken_mechanism():
    sound, printed = audited(2.0, 250, rounds_of_one=True)
    assert sound < printed
    broken, printed = audited(0.2, 250, told=2.0, rounds_of_one=True)
    assert broken > printed


@pytest.mark.slow
def test_over_two_thousand_runs():
    """Of one round; `benchmarks/privacy.py` has more rounds."""
    sound, printed = audited(2.0, 1, runs=2000)
    assert 0.1 * printed < sound < printed
    broken, printed = audited(0.2, 1, told=2.0, runs=2000)
    assert broken > printed


@pytest.fixture
def parts(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    names = ("parts.privacy.attack", "parts.privacy.orders", "parts.privacy.page")
    return tuple(importlib.import_module(name) for name in names)


def test_security_has_the_tables_of_the_record(parts):
    _, _, page = parts
    runs = page.recorded()
    assert f"{page.BEGIN}\n{page.tables(runs)}\n{page.END}" in page.PAGE.read_text()
    attacked = [run for run in runs.values() if "refused" not in run]
    assert len(attacked) > 80
    assert all(run["bound"] < run["printed"] and not run["bare"] for run in attacked)


def test_every_recipe_and_layer_is_in_the_record(parts):
    _, orders, page = parts
    named = {
        f"{one.name}, {kind}"
        for one in [*orders.methods(), *orders.layers()]
        for kind in page.KINDS
    }
    assert named == set(page.recorded())


@pytest.mark.parametrize("name", ["`swag` around", "`laplace` around", "`FedBuff`"])
def test_orders_come_out_as_recorded(parts, name):
    _, orders, page = parts
    (order,) = [one for one in orders.layers() if one.name == name]
    for kind in page.KINDS:
        found, before = page.run_of(order.audited(kind)), page.recorded()[f"{name}, {kind}"]
        assert found.get("refused") == before.get("refused")
        assert found.get("bound", 0) == pytest.approx(before.get("bound", 0), rel=1e-3)


def test_the_audit_finds_mechanisms_that_are_broken(parts):
    _, orders, _ = parts
    found = dict(orders.broken())
    assert found.pop("a tenth of the noise").bound > 10
    assert {name: (one.bound, one.bare) for name, one in found.items()} == {
        "a figure beside it": (math.inf, ("figure mean",)),
        "a sum that is kept": (math.inf, ("noting/1.weight",)),
    }


def test_the_bound_is_that_of_two_normals(parts):
    attack, _, _ = parts
    printed = bf.algorithms.epsilon(2.0, 1, attack.DELTA)
    assert attack.gaussian_epsilon(0.5, attack.DELTA) == pytest.approx(printed, rel=1e-8)

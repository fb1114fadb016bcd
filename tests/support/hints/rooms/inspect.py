"""Messages of `bayesfed.inspect`."""

import functools
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path

import torch

import bayesfed as bf
from bayesfed.inference.evaluation.ranks import rank_statistics
from bayesfed.inference.evaluation.scoring import calibration_bins
from bayesfed.inspect import (
    PersonalScores,
    k_hat,
    partition_table,
    plot_client_costs,
    plot_forest,
    plot_inputs,
    plot_intervals,
    plot_outside,
    plot_ranks,
    plot_reliability,
    plot_risk_coverage,
    plot_series,
    plot_severity,
    plot_support_maps,
    plot_unit_maps,
    save,
)
from bayesfed.inspect.learning_curves import plot_curves
from bayesfed.inspect.personal import ELSEWHERE
from bayesfed.wireless import Device, round_cost
from tests.house.wrong_calls.given import CLIENTS, DATA, done, go, rows, svi, svi_done
from tests.posteriors import test_exported_sites as sites
from tests.posteriors import test_own_posteriors as own
from tests.support.recipes import tiny_recipes

COMPLETE = ("bayesfed/inspect",)
GRID = torch.zeros(2, 6)
SHARES = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6], [0.3, 0.4, 0.3]])
WRONG = torch.tensor([True, False, True, False])


@functools.cache
def local():
    """Return a run whose offsets stay with clients."""
    return own.fit(own.offsets, own.CLIENTS, rounds=1)


@functools.cache
def sparse():
    """Return a run of D-Turbo-VBI."""
    tiny = tiny_recipes()["d_turbo_vbi"]()
    return bf.run(tiny.algorithm, tiny.pool(), rounds=1, progress=False)


def elsewhere():
    """Return a personal run whose memories are said to be kept at the clients."""
    result = personal()
    far = {name: {ELSEWHERE: torch.zeros(())} for name in result.snapshot.memories}
    return replace(result, snapshot=replace(result.snapshot, memories=far))


@functools.cache
def personal():
    """Return a run of a personal method."""
    tiny = tiny_recipes()["ditto"]()
    return bf.run(tiny.algorithm, tiny.pool(), rounds=1, progress=False)


def intervals(other):
    """Draw intervals of a fit and of another one."""
    plot_intervals({"one": svi_done().posterior, "other": other().posterior}, draws=100)


def drawn():
    """Return axes of a figure."""
    return plot_series({"a": [(0, 1.0)]}, label="loss")


def removed():
    """Return axes that are removed from their figure."""
    axes = drawn()
    axes.remove()
    return axes


def saved(axes):
    """Save axes as a picture."""
    save(axes, Path(tempfile.mkdtemp()) / "a.png")


def plated():
    """Export a short run of a model with its rows under a plate."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sites.exported(sites.two, Path(tempfile.mkdtemp()))


def exported(**changes):
    """Export a run of a variational method."""
    return svi_done().to_arviz(DATA, **{"draws": 4, **changes})


CASES = [
    (
        lambda: local().scores({"new": own.TEST["a"]}),
        "a client that took part",
        lambda: local().scores(own.TEST, draws=4),
    ),
    (
        lambda: local().scores(own.TEST["a"]),
        "{name: rows}",
        lambda: local().scores({"a": own.TEST["a"]}, draws=4),
    ),
    (
        lambda: svi_done().scores({"all": DATA}),
        "renaming that client",
        lambda: svi_done().scores({"everybody": DATA}, draws=4),
    ),
    (lambda data: svi_done().scores(data, draws=4), "rows"),
    (
        lambda: svi_done().k_hat({}),
        "clients with rows",
        lambda: svi_done().k_hat(CLIENTS, draws=100),
    ),
    (
        lambda: plot_ranks({}),
        "simulated_calibration(model, fit, inputs).statistics()",
        lambda: plot_ranks({"a": rank_statistics(torch.tensor([0, 5, 9]), 9)}),
    ),
    (
        lambda: plot_reliability({}),
        "calibration_bins(...)",
        lambda: plot_reliability(calibration_bins(SHARES, torch.tensor([0, 1, 2, 0]))),
    ),
    (
        lambda: plot_outside(torch.rand(4), {}, label="entropy"),
        "out_of_distribution(test, key)",
        lambda: plot_outside(torch.rand(4), {"others": torch.rand(4)}, label="entropy"),
    ),
    (lambda scores: plot_severity(scores, label="NLL"), {}),
    (lambda: plot_intervals({}), "{'all': result.posterior}", lambda: intervals(svi_done)),
    (lambda: intervals(sparse), "posteriors of one model", lambda: intervals(svi_done)),
    (
        lambda: plot_risk_coverage({}),
        "{'entropy': (entropy, wrong)}",
        lambda: plot_risk_coverage({"entropy": (torch.rand(4), WRONG)}),
    ),
    (lambda: k_hat(torch.zeros(5)), "1,000 draws", lambda: k_hat(torch.randn(1000))),
    (
        lambda: k_hat(torch.full((200,), torch.inf)),
        "64 bits",
        lambda: k_hat(torch.randn(200).double()),
    ),
    (
        lambda: local().k_hat(own.CLIENTS["a"]),
        "the clients that were fitted, {name: rows}",
        lambda: local().k_hat(own.CLIENTS, draws=100),
    ),
    (
        lambda: sparse().k_hat(DATA),
        "federated_svi",
        lambda: go(svi()).k_hat(DATA, draws=100),
    ),
    (
        lambda: plot_client_costs({}, latency_s=1.0, energy_j={}),
        "{name: plan.cost}",
        lambda: plot_client_costs(
            {"a": round_cost(Device(), 1e-13, cycles=1e6, bits=1e3, frequency_hz=5e8)},
            latency_s=1.0,
            energy_j={"a": 1.0},
        ),
    ),
    (lambda: exported(thin=0), "draws=100", lambda: exported(draws=100)),
    (lambda: exported(draws=10**8), "fewer draws", exported),
    (
        lambda: plot_curves({"a": [[]]}),
        "a run of at least one round",
        lambda: plot_curves({"a": [list(go(test=rows(4, seed=1)).history)]}),
    ),
    (
        lambda: plot_support_maps({}),
        "the callback keep",
        lambda: plot_support_maps({0: GRID}),
    ),
    (
        lambda: plot_inputs({"age": 0.9, "dose": 0.1}, size=(3, 2)),
        "plot_inputs(result.inputs()), which draws bars",
        lambda: plot_inputs({"age": 0.9, "dose": 0.1}),
    ),
    (
        lambda: plot_unit_maps(torch.zeros(2, 784), size=(3, 2)),
        "size=(28, 28)",
        lambda: plot_unit_maps(torch.zeros(2, 784), size=(28, 28)),
    ),
    (partition_table, {}),
    (
        lambda: partition_table({"a": replace(DATA, targets=DATA.targets.float())}),
        "a set with labels",
        lambda: partition_table({"a": DATA}),
    ),
    (
        lambda: partition_table({"a": DATA, "b": replace(DATA, classes=("x", "y", "z"))}),
        "bf.federate of one data set",
        lambda: partition_table(bf.federate(DATA, bf.iid(len(DATA), 2, bf.Key(0)))),
    ),
    (
        lambda: PersonalScores({"a": {"nll": 1.0}}).mean("typo"),
        "nll",
        lambda: PersonalScores({"a": {"nll": 1.0}}).mean("nll"),
    ),
    (
        lambda: elsewhere().clients,
        "a run in process",
        lambda: personal().clients,
    ),
    (
        lambda: done().personal_scores({"a": rows(0)}),
        "train, test = split_rows(clients, 0.25)",
        lambda: done().personal_scores(bf.data.split_rows({"a": rows(30)}, 0.25)[1]),
    ),
    (
        lambda: done().personal_scores({"stranger": DATA}),
        "their names",
        lambda: done().personal_scores({"a": DATA}),
    ),
    (
        lambda: plot_series({"a": []}, label="loss"),
        "a callback that enters it",
        lambda: plot_series({"a": go(test=rows(4, seed=1)).series("accuracy")}, label="accuracy"),
    ),
    (lambda count: plot_forest(sparse().belief["1.weight"], count=count), 0),
    (
        lambda: sites.exported(sites.event, Path(tempfile.mkdtemp())),
        "a plate over rows",
        plated,
    ),
    (lambda: saved(removed()), "drawing again", lambda: saved(drawn())),
]

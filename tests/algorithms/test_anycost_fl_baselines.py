"""The baselines of AnycostFL on the same devices."""

from dataclasses import replace

import pytest

import bayesfed as bf
from bayesfed.algorithms.baselines.changes import qsgd, uveqfed
from bayesfed.algorithms.baselines.fed_hq import fed_hq
from bayesfed.algorithms.baselines.hetero_fl import hetero_fl
from bayesfed.algorithms.baselines.stc import stc
from bayesfed.algorithms.wrappers.on_devices import Planner, on_devices, planned_size
from bayesfed.compress.budgets import fit_flexible
from bayesfed.compress.codecs import Cast
from bayesfed.federated import score
from bayesfed.federated.core.protocols import Profile
from bayesfed.federated.engine.assembly import assembled
from bayesfed.models import channel_graph, shrunk, shrunk_shares
from bayesfed.trees import parameters
from tests.algorithms.test_anycost_fl import KEY, SMALL, net, pool


@pytest.mark.slow
def test_every_baseline_runs_on_the_same_devices(digits, clients):
    train, test = digits
    graph = channel_graph(net(), train.inputs[:1])
    whole = tuple(shrunk_shares(net(), graph, train.inputs[:1], [1.0]))
    fast = replace(SMALL, macs_per_cycle=1.0, bandwidth_hz=1e5)
    placed = pool(clients, fast)
    update = parameters(net())
    levels = fit_flexible([update], KEY, shares=(1.0,))
    halves = tuple(shrunk_shares(net(), graph, train.inputs[:1], [1.0, 0.25]))
    planner = Planner(halves, 5.0, (0.5, 0.5))
    optimiser = bf.Sgd(0.2)
    methods = {
        "stc": on_devices(
            stc(
                net(), share=0.1, training=bf.Training(steps=1, batch_size=32, optimiser=optimiser)
            ),
            Planner(whole, 5.0, (0.2, 0.2)),
        ),
        "qsgd": on_devices(
            qsgd(net(), share=0.2, training=bf.Training(batch_size=32, optimiser=optimiser)),
            Planner(whole, 5.0, (0.3, 0.3)),
        ),
        "uveqfed": on_devices(
            uveqfed(net(), training=bf.Training(batch_size=32, optimiser=optimiser)),
            Planner(whole, 5.0, (0.5, 0.5)),
        ),
        "hetero_fl": on_devices(
            hetero_fl(
                [shrunk(net(), graph, row.alpha) for row in halves],
                planned_size(planner),
                training=bf.Training(batch_size=32, optimiser=optimiser),
                up=Cast(16),
            ),
            planner,
        ),
        "fed_hq": fed_hq(
            net(),
            Planner(whole, 5.0, (levels.least, 0.5)),
            levels,
            training=bf.Training(optimiser=optimiser),
        ),
    }
    for name, algorithm in methods.items():
        result = bf.run(algorithm, placed, rounds=5, progress=False, on_client_error="drop")
        rows = [row for record in result.history for row in record.rows if row.direction == "up"]
        assert not any(record.refused for record in result.history), name
        assert all(
            0 < row.cost.latency_s <= 5 and row.cost.energy_j > 0 and row.cost.macs for row in rows
        ), name
        assert score(algorithm.predictor(result.snapshot.state), test) > 0.4, name


def test_weights_of_fed_hq_fall_with_the_quantisation_error(digits):
    train, _ = digits
    whole = tuple(
        shrunk_shares(net(), channel_graph(net(), train.inputs[:1]), train.inputs[:1], [1.0])
    )
    levels = fit_flexible([parameters(net())], KEY, shares=(1.0,))
    near, far = (
        Profile(
            "a",
            200,
            replace(
                SMALL,
                macs_per_cycle=1.0,
                bandwidth_hz=800.0,
                min_distance_m=where,
                max_distance_m=where,
            ).figures(),
        )
        for where in (100.0, 400.0)
    )
    algorithm = fed_hq(net(), Planner(whole, 5.0, (levels.least, 1.0)), levels)
    (one, other) = (
        assembled(algorithm.phases[0]).assign(algorithm.initial, 0, profile, KEY)
        for profile in (near, far)
    )
    assert one.up.beta > other.up.beta
    assert one.weight > other.weight == 1 / (1 + levels.error(other.up.beta))

"""SCAFFOLD, FedDyn, FedNova and server optimisers: their degenerate cases, their fixed points, and
the equations of the papers.
"""

from dataclasses import replace

import pytest
import torch
from torch import nn

import bayesfed as bf
from bayesfed.errors import ArgumentError, ClientError
from bayesfed.federated import Add, Average, Sum, Update, load, published
from bayesfed.federated.aggregation.server_optimisers import MOMENTUM, VARIANCE
from bayesfed.federated.core.owners import owned
from bayesfed.federated.engine.assembly import assembled
from bayesfed.testing import check_local
from bayesfed.trees import parameters
from tests.conftest import tree_equal
from tests.support.saving import save

WORK = bf.Training(steps=3, batch_size=16, optimiser=bf.Sgd(0.2))
OPTIMISERS = [
    bf.FedAvgM(0.7, 0.9),
    bf.federated.FedAdagrad(0.1),
    bf.FedAdam(0.1),
    bf.federated.FedYogi(0.1),
]


def model(algorithm, clients, rounds=3, **options):
    return bf.run(algorithm, clients, rounds=rounds, progress=False, **options).model.parameters


@pytest.mark.parametrize(
    "make",
    [
        lambda net: bf.scaffold(net, strength=0.0, training=WORK),
        lambda net: bf.fed_dyn(net, strength=0.0, training=WORK),
        lambda net: bf.fed_nova(net, training=WORK),
        lambda net: bf.server_optimised(bf.fed_avg(net, training=WORK), bf.FedAvgM(1.0, 0.0)),
    ],
    ids=["scaffold", "fed_dyn", "fed_nova", "fed_avg_m"],
)
def test_the_degenerate_case_is_fed_avg_bit_for_bit(make, net, clients):
    assert tree_equal(model(make(net), clients), model(bf.fed_avg(net, training=WORK), clients))


def quadratics(rows=(4, 4), slopes=(1.0, 2.0)):
    """Two clients with losses h_k / 2 (w - w_k)^2: minima 0 and 1, curvatures the squares of the
    slopes.
    """
    inputs = [torch.full((count, 1), slope) for count, slope in zip(rows, slopes, strict=True)]
    return {
        name: bf.Dataset(x, x * minimum)
        for name, x, minimum in zip("ab", inputs, (0.0, 1.0), strict=True)
    }


def weight(make, clients, rounds, *, seed=0, **work):
    net = nn.Linear(1, 1, bias=False)
    nn.init.constant_(net.weight, 0.5)
    work = work if "epochs" in work else {"steps": 10, **work}
    training = bf.Training(**{"batch_size": None, "optimiser": bf.Sgd(0.05), **work})
    return float(
        model(make(net, likelihood=bf.Normal(1.0), training=training), clients, rounds, seed=seed)[
            "weight"
        ]
    )


def test_control_variates_and_dynamic_regularisers_reach_the_optimum_where_averages_do_not():
    """Curvatures 1 and 4: the minimum of the mean loss is 0.8, and the mean of where ten steps lead
    is elsewhere.
    """
    clients = quadratics()
    ends = [1 - (1 - 0.05 * h) ** 10 for h in (1, 4)]
    assert weight(bf.fed_avg, clients, 16) == pytest.approx(ends[1] / sum(ends), abs=1e-3)
    assert abs(ends[1] / sum(ends) - 0.8) > 0.1
    assert weight(bf.scaffold, clients, 16) == pytest.approx(0.8, abs=1e-3)
    assert weight(
        lambda net, **options: bf.fed_dyn(net, strength=0.5, **options), clients, 32
    ) == pytest.approx(0.8, abs=1e-3)


def test_normalised_averages_do_not_favour_clients_with_more_steps():
    """Eight rows with minimum 0, two with minimum 1, one step a row: the mean loss has its minimum
    at 0.2.
    """
    clients, work = (
        quadratics((8, 2), (1.0, 1.0)),
        {"epochs": 1, "batch_size": 1, "optimiser": bf.Sgd(0.05)},
    )
    ends = [0.8 * (1 - 0.95**8), 0.2 * (1 - 0.95**2)]
    assert weight(bf.fed_avg, clients, 24, **work) == pytest.approx(ends[1] / sum(ends), abs=2e-3)
    assert ends[1] / sum(ends) < 0.07
    assert weight(bf.fed_nova, clients, 24, **work) == pytest.approx(0.2, abs=0.03)


def test_control_variates_of_clients_average_to_that_of_the_server(net, clients):
    result = bf.run(bf.scaffold(net, training=WORK), clients, rounds=3, progress=False)
    rows = {name: len(part) for name, part in clients.items()}
    for name in parameters(net):
        own = sum(
            rows[client] * tree[f"control/{name}"]
            for client, tree in result.snapshot.memories.items()
        ) / sum(rows.values())
        assert torch.allclose(own, result.snapshot.state[f"control/{name}"], atol=1e-5)


def test_locals_keep_the_laws(net, clients):
    rows = clients["client-000"][:20]
    for algorithm in (
        bf.scaffold(net, training=WORK),
        bf.fed_dyn(net, strength=0.1, training=WORK),
        bf.fed_nova(net, training=WORK),
    ):
        check_local(
            algorithm.phases[0].local,
            published(
                algorithm.phases[0].server,
                algorithm.phases[0].scope.parted(algorithm.initial)[0],
                0,
                None,
            ),
            rows,
        )


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (
            lambda net: bf.scaffold(net, training=bf.Training(optimiser=bf.Adam())),
            "scaffold, optimiser of training: expected Sgd without momentum",
        ),
        (
            lambda net: bf.fed_dyn(
                net, strength=0.1, training=bf.Training(optimiser=bf.Sgd(0.1, 0.9))
            ),
            "fed_dyn.*Sgd without momentum",
        ),
        (
            lambda net: bf.fed_nova(net, training=bf.Training(optimiser=bf.Adam())),
            "fed_nova, optimiser of training: expected Sgd",
        ),
        (
            lambda net: bf.scaffold(net, participation=0.0),
            r"participation: expected a number in \(0, 1\]",
        ),
        (lambda net: bf.scaffold(net, strength=2.0), r"strength: expected a number in \[0, 1\]"),
        (lambda net: bf.fed_dyn(net, strength=-1.0), "strength: expected a number in"),
        (
            lambda net: bf.FedAvgM(momentum=1.0),
            r"FedAvgM, momentum: expected a number in \[0, 1\)",
        ),
        (lambda net: bf.FedAdam(0.0), r"FedAdam, learning_rate: expected a number in \(0, inf\)"),
        (
            lambda net: bf.server_optimised(bf.fed_avg(net), bf.FedAdam),
            "expected a ServerOptimiser, found the class FedAdam",
        ),
        (
            lambda net: bf.server_optimised(bf.scaffold(net), bf.FedAdam()),
            "a server that averages, leaf by leaf, found Controlled",
        ),
        (
            lambda net: bf.server_optimised(
                bf.fed_avg(nn.Sequential(net, nn.BatchNorm1d(10)), buffers="mean"), bf.FedAdam()
            ),
            "parameters alone, found running statistics",
        ),
    ],
    ids=range(11),
)
def test_wrong_settings_are_refused(make, match, net):
    with pytest.raises(ArgumentError, match=match):
        make(net)


# Server optimisers


def expected(optimiser, changes):
    """Reddi et al., Algorithm 2, and Hsu et al. for momentum, entry by entry in double precision;
    the model begins at 1.
    """
    x, m, v = 1.0, 0.0, getattr(optimiser, "tau", 0.0) ** 2
    for change in changes:
        if isinstance(optimiser, bf.FedAvgM):
            m = optimiser.momentum * m + change
            x += optimiser.learning_rate * m
            continue
        m = optimiser.beta1 * m + (1 - optimiser.beta1) * change
        if isinstance(optimiser, bf.federated.FedAdagrad):
            v += change**2
        elif isinstance(optimiser, bf.FedAdam):
            v = optimiser.beta2 * v + (1 - optimiser.beta2) * change**2
        else:
            sign = (v > change**2) - (v < change**2)
            v -= (1 - optimiser.beta2) * change**2 * sign
        x += optimiser.learning_rate * m / (v**0.5 + optimiser.tau)
    return x


@pytest.mark.parametrize("optimiser", OPTIMISERS, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("server", [Average(), Add()], ids=["values", "changes"])
def test_steps_are_those_of_the_paper(optimiser, server):
    changes = [0.3, -0.1, 0.02, 0.5]
    kind = "value" if isinstance(server, Average) else "delta"
    algorithm = bf.server_optimised(
        bf.compose(
            "one weight",
            nn.Linear(1, 1, bias=False),
            WORK.fitting(nn.Linear(1, 1, bias=False), kind=kind),
            server,
            initial={"w": torch.ones(1, dtype=torch.float64)},
        ),
        optimiser,
    )
    state, both = algorithm.initial, assembled(algorithm.phases[0]).server
    for round, change in enumerate(changes):
        sent = both.publish(state, round, None)
        assert sent.keys() == {"w"}
        total = torch.full((1,), change, dtype=torch.float64) + (
            sent["w"] if isinstance(server, Average) else 0
        )
        state, _ = both.step(
            state,
            Sum(Update({"w": 3.0 * total}, 3.0, kind)),
            round,
        )
    assert float(state["model/w"]) == pytest.approx(expected(optimiser, changes), rel=1e-12)
    unchanged, _ = both.step(
        state,
        Sum(Update({"w": torch.zeros(1)}, 0.0, kind)),
        4,
    )
    assert tree_equal(unchanged, state)


@pytest.mark.parametrize("optimiser", OPTIMISERS[1:3], ids=lambda one: type(one).__name__)
def test_moments_are_saved_and_resumed_bit_for_bit(optimiser, net, clients, tmp_path):
    algorithm = bf.server_optimised(bf.fed_avg(net, training=WORK), optimiser)
    whole = bf.run(algorithm, clients, rounds=4, progress=False)
    half = bf.run(algorithm, clients, rounds=2, progress=False)
    assert owned(half.snapshot.state, "optimiser").keys() == {
        prefix + name for prefix in (MOMENTUM, VARIANCE) for name in parameters(net)
    }
    save(tmp_path / "half", half.snapshot)
    again = bf.run(algorithm, clients, rounds=4, progress=False, resume=load(tmp_path / "half"))
    assert tree_equal(again.snapshot.state, whole.snapshot.state)
    assert half.model.parameters.keys() == parameters(net).keys()
    assert (
        half.bits()
        == bf.run(bf.fed_avg(net, training=WORK), clients, rounds=2, progress=False).bits()
    )


def test_they_serve_adapters_widths_noise_and_robust_rules(clients):
    net = bf.mlp([64, 16, 10], bf.Key(0, "net"))
    adapted = bf.lora(net, 2, bf.Key(0, "lora"))
    widths = [net, bf.models.shrunk(net, bf.models.channel_graph(net, torch.zeros(1, 64)), 0.25)]
    plain = bf.fed_avg(net, training=WORK)
    noise = {"clip": 1.0, "noise": 0.1, "participants": 4, "key": bf.Key(1, "noise")}
    for algorithm in (
        bf.server_optimised(bf.fed_lora(adapted, training=WORK), bf.FedAdam()),
        bf.server_optimised(
            bf.hetero_fl(widths, bf.fixed(sorted(clients), 2), training=WORK),
            bf.federated.FedYogi(),
        ),
        bf.private(bf.server_optimised(plain, bf.FedAvgM()), **noise),
        bf.server_optimised(bf.private(plain, **noise), bf.FedAvgM()),
        bf.server_optimised(bf.robust(plain, bf.federated.Median()), bf.FedAdam()),
    ):
        result = bf.run(algorithm, clients, rounds=2, progress=False)
        assert all(bool(torch.isfinite(leaf).all()) for leaf in result.model.parameters.values())
    assert "reddi2021adaptive" in bf.citation(algorithm)


def test_momentum_at_the_server_gets_further_in_the_same_rounds():
    clients, work = quadratics(slopes=(1.0, 1.0)), {"steps": 1, "optimiser": bf.Sgd(0.02)}

    def with_momentum(net, **options):
        return bf.server_optimised(bf.fed_avg(net, **options), bf.FedAvgM(1.0, 0.8))

    far = {**clients, "a": bf.Dataset(clients["a"].inputs, clients["a"].inputs * 4.0)}
    plain, faster = (
        abs(weight(make, far, 20, **work) - 2.5) for make in (bf.fed_avg, with_momentum)
    )
    assert faster < 0.5 * plain


def test_a_steps_leaf_that_is_missing_costs_the_client_the_round(net, clients):
    """FedNova's payload has one leaf more than the model; without it the payload is refused."""
    algorithm = bf.fed_nova(net, training=WORK)
    wrong = replace(algorithm, phases=(replace(algorithm.phases[0], local=WORK.fitting(net)),))
    with pytest.raises(ClientError, match="run/steps"):
        bf.run(wrong, clients, rounds=1, progress=False)

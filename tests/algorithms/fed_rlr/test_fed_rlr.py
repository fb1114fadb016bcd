"""FedRLR: what it is a case of, and that it learns."""

import pytest
import torch
from torch import nn

import bayesfed as bf
from bayesfed.algorithms.fed_rlr.local import free
from bayesfed.federated import Digital, Sgd, rounds
from bayesfed.federated.core.owners import owned
from bayesfed.federated.engine.reports import channel_uses
from bayesfed.geometry import (
    difference,
    from_dense,
    metric_retraction,
    orthographic_retraction,
    singular_values,
    to_dense,
)
from bayesfed.models.low_rank.fixed_rank import points
from tests.algorithms.fed_rlr.fed_rlr_pieces import WORK, dense_state, doubled, final, full_ranks
from tests.conftest import tree_equal
from tests.wireless.test_air import CLEAR


def flattened(state):
    return {
        name.removesuffix(".weight"): leaf.flatten(1) if leaf.ndim > 1 else leaf
        for name, leaf in state.items()
    }


# What it is a case of.
@pytest.mark.parametrize("link", [Digital(), CLEAR], ids=["digital", "clear"])
@pytest.mark.parametrize("kind", ["mlp", "cnn"])
@pytest.mark.parametrize(
    "transmission",
    [bf.algorithms.Tangents(), bf.algorithms.Tangents(orthographic_retraction)],
    ids=["metric", "orthographic"],
)
def test_at_full_rank_one_step_is_fed_avg(kind, link, transmission, clients):
    key = bf.Key(0, "net")
    net = (
        bf.mlp([64, 12, 10], key)
        if kind == "mlp"
        else bf.cnn((1, 8, 8), 10, key, channels=(4, 6), hidden=12)
    ).double()
    common = {
        "training": bf.Training(steps=1, batch_size=16, optimiser=Sgd(0.2)),
        "codec": bf.Cast(64),
        "link": link,
    }
    thin = final(
        bf.fed_rlr(net, full_ranks(net), transmission=transmission, **common), doubled(clients), 3
    )
    dense = final(bf.fed_avg(net, **common), doubled(clients), 3)
    found, expected = dense_state(thin.state), flattened(owned(dense.state, "model"))
    assert found.keys() == expected.keys()
    for name, leaf in expected.items():
        assert leaf.dtype is found[name].dtype is torch.float64
        assert torch.allclose(found[name], leaf, rtol=1e-9, atol=1e-11), name
    losses = [[info["loss"] for info in report.clients.values()] for report in (thin, dense)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)
    inputs = next(iter(doubled(clients).values())).inputs
    assert torch.allclose(thin.model(inputs), dense.model(inputs), atol=1e-9)


@pytest.mark.parametrize("link", [Digital(), CLEAR], ids=["digital", "clear"])
def test_dense_layers_and_biases_take_plain_steps(link, clients):
    """Where one layer stays dense and another has full rank, it still is FedAvg."""
    net = bf.mlp([64, 12, 10], bf.Key(0, "net")).double()
    common = {
        "training": bf.Training(steps=1, batch_size=16, optimiser=Sgd(0.1)),
        "codec": bf.Cast(64),
        "link": link,
    }
    thin = final(bf.fed_rlr(net, {"3": 10}, **common), doubled(clients), 2)
    assert set(points(owned(thin.state, "model"))) == {"3"}
    assert set(free(owned(thin.state, "model"))) == {"1.weight", "1.bias", "3.bias"}
    expected = final(bf.fed_avg(net, **common), doubled(clients), 2).state
    assert torch.allclose(thin.state["model/1.weight"], expected["model/1.weight"], atol=1e-12)
    assert torch.allclose(
        to_dense(points(owned(thin.state, "model"))["3"]), expected["model/3.weight"], atol=1e-12
    )


def test_a_step_is_the_retraction_of_the_dense_projected_gradient(clients):
    """Below full rank, against autograd's dense gradient and (47) written out."""
    net = bf.mlp([64, 12, 10], bf.Key(0, "net")).double()
    data = doubled({"a": clients["client-000"]})
    algorithm = bf.fed_rlr(
        net,
        4,
        training=bf.Training(steps=1, batch_size=10**6, optimiser=bf.Sgd(0.3)),
        codec=bf.Cast(64),
    )
    twin, before = (
        bf.mlp([64, 12, 10], bf.Key(0, "net")).double(),
        points(owned(algorithm.initial, "model")),
    )
    with torch.no_grad():
        for name, point in before.items():
            twin.get_submodule(name).weight.copy_(to_dense(point))
    nn.functional.cross_entropy(twin(data["a"].inputs), data["a"].targets).backward()
    for name, point in points(owned(final(algorithm, data, 1).state, "model")).items():
        gradient, here = twin.get_submodule(name).weight.grad, before[name]
        rows, columns = here.u @ here.u.mT, here.v @ here.v.mT
        projected = rows @ gradient + gradient @ columns - rows @ gradient @ columns
        expected = from_dense(to_dense(here) - 0.3 * projected, 4)
        # The server retracts the tangent part of what the client's own retraction made of it.
        carried = metric_retraction(here, difference(here, expected))
        assert torch.allclose(to_dense(point), to_dense(carried), atol=1e-12)


def test_a_schedule_is_a_factor_on_the_rate(clients, net):
    work = bf.Training(
        steps=2, batch_size=16, optimiser=Sgd(0.1), schedule=lambda round: (1.0, 0.5)[round]
    )
    scheduled = bf.fed_rlr(net, 4, training=work)
    one, two = (report.snapshot for report in rounds(scheduled, bf.InProcess(clients), rounds=2))
    halved = bf.fed_rlr(net, 4, training=bf.Training(steps=2, batch_size=16, optimiser=Sgd(0.05)))
    assert tree_equal(final(halved, clients, 2, resume=one, resume_anyway=True).state, two.state)


def test_one_layer_may_be_the_whole_network():
    layer, data = nn.Linear(4, 3), {"a": bf.Dataset(torch.ones(4, 4), torch.tensor([0, 1, 2, 0]))}
    report = final(bf.fed_rlr(layer, 2, training=WORK), data, 2)
    assert set(owned(report.state, "model")) == {"u", "s", "v", "bias"}


# It learns.
@pytest.mark.slow
def test_it_learns_digits_at_rank_4_and_over_the_air(digits):
    train, test = digits
    clients = bf.federate(train, bf.dirichlet(train.targets, 5, 1.0, bf.Key(0, "partition")))
    net = bf.mlp([64, 32, 10], bf.Key(0, "net"))
    work = bf.Training(steps=20, batch_size=32, optimiser=Sgd(1.0))
    found = {}
    for name, link in (("digital", Digital()), ("air", bf.OverTheAir(snr_db=25.0))):
        result = bf.run(
            bf.fed_rlr(net, 4, link=link, training=work),
            clients,
            rounds=8,
            test=test,
            progress=False,
        )
        found[name] = result.final("accuracy")
        for point in points(result.model.parameters).values():
            assert point.rank == 4
            assert float(singular_values(point)[-1]) > 0
            assert torch.linalg.matrix_rank(to_dense(point)) == 4
        first = result.history[0].rows
        numbers = (
            sum(
                4 * sum(point.shape) + 16
                for point in points(owned(result.snapshot.state, "model")).values()
            )
            + 32
            + 10
        )
        if name == "air":
            assert channel_uses(first) == numbers
        else:
            up = [row.bits for row in first if row.direction == "up"]
            # 32 bits a number, and a header.
            assert all(0 < bits - 32 * numbers < 8 * 1024 for bits in up)
    assert found["digital"] > 0.8
    assert found["air"] == pytest.approx(found["digital"], abs=0.06)


def test_factors_take_as_many_numbers_as_the_paper_counts(clients, net):
    report = final(
        bf.fed_rlr(
            net,
            4,
            transmission=bf.algorithms.Factors("orthogonal"),
            link=bf.OverTheAir(bf.wireless.Gbma("product"), snr_db=25.0),
            training=WORK,
        ),
        clients,
        1,
    )
    assert channel_uses(report.rows) == 4 * (64 + 16) + 4 * (16 + 10) + 16 + 10


@pytest.mark.slow
@pytest.mark.parametrize(
    "transmission", [bf.algorithms.Points(), bf.algorithms.Tangents()], ids=["points", "tangents"]
)
def test_it_learns_with_clients_that_keep_their_own_points(transmission, digits):
    """The paper's own mode: one step a round from the client's own Theta_k."""
    train, test = digits
    clients = bf.federate(train, bf.dirichlet(train.targets, 4, 1.0, bf.Key(0, "partition")))
    net, work = (
        bf.mlp([64, 32, 10], bf.Key(0, "net")),
        bf.Training(steps=1, batch_size=32, optimiser=Sgd(0.7)),
    )
    algorithm = bf.fed_rlr(
        net, 4, transmission=transmission, reset=False, consensus=0.5, training=work
    )
    assert (
        bf.run(algorithm, clients, rounds=200, test=test, progress=False).final("accuracy") > 0.75
    )

"""Devices of unlike strength: slices, who gets which, and HeteroFL over them."""

import pytest
import torch
from torch import nn

import bayesfed as bf
from bayesfed.algorithms.baselines.hetero_fl import hetero_fl
from bayesfed.algorithms.fed_hm.factored import spectra_of
from bayesfed.errors import ArgumentError, ClientError, UpdateError
from bayesfed.federated import Average, score
from bayesfed.federated.aggregation.views import Slice
from bayesfed.federated.core.protocols import Profile
from bayesfed.federated.core.sums import Sum
from bayesfed.federated.training.descent import of_classes
from bayesfed.federated.training.model_sizes import by_device, dynamic, fixed
from bayesfed.models.likelihoods.classes import Categorical
from bayesfed.trees import size
from tests.conftest import tree_equal

KEY = bf.Key(0, "sizes")


def nets(widths=(32, 16, 8)):
    return [bf.mlp([64, width, 10], bf.Key(0, "net")) for width in widths]


def test_a_slice_is_what_leading_channels_compute():
    whole = {"w": torch.arange(20.0).reshape(4, 5), "b": torch.arange(4.0)}
    view = Slice({"w": (4, 5), "b": (4,)}, {"w": (2, 3), "b": (2,)})
    part = view.restrict(whole)
    assert tree_equal(part, {"w": whole["w"][:2, :3], "b": whole["b"][:2]})
    update = view.lift(part, 3.0, "value")
    assert tree_equal(
        update.mean(),
        {
            "w": torch.where(update.weight["w"] > 0, whole["w"], 0),
            "b": torch.tensor([0.0, 1, 0, 0]),
        },
    )
    with pytest.raises(UpdateError, match="expected shape"):
        view.lift(whole, 1.0, "value")


def test_slices_are_checked():
    for part in ({"w": (5, 5)}, {"w": (4,)}, {"v": (4, 5)}, {}):
        with pytest.raises(ArgumentError, match="no axis longer"):
            Slice({"w": (4, 5)}, part)


def test_entries_are_averaged_over_those_who_have_them_and_stay_where_nobody_has():
    state = {"w": torch.full((3, 3), 7.0)}
    big, small = Slice({"w": (3, 3)}, {"w": (2, 2)}), Slice({"w": (3, 3)}, {"w": (1, 1)})
    reducer = Sum()
    reducer.add("a", big.lift({"w": torch.full((2, 2), 1.0)}, 1.0, "value"))
    reducer.add("b", small.lift({"w": torch.full((1, 1), 4.0)}, 2.0, "value"))
    assert torch.equal(
        Average().step(state, reducer, 0)[0]["w"], torch.tensor([[3.0, 1, 7], [1, 1, 7], [7, 7, 7]])
    )


def test_capacities():
    names = [f"client-{k}" for k in range(6)]
    dealt = fixed(names, 3)
    assert [dealt(Profile(name, 1), 0, KEY) for name in names] == [0, 1, 2, 0, 1, 2]
    drawn = [dynamic(4)(Profile("a", 1), round, KEY.child(round)) for round in range(400)]
    assert [80 < drawn.count(size) < 120 for size in range(4)] == [True] * 4
    memory = by_device("memory_bytes", {0: 8e9, 1: 2e9})
    assert [
        memory(Profile("a", 1, {"memory_bytes": value}), 0, KEY) for value in (9e9, 8e9, 3e9)
    ] == [0, 0, 1]
    with pytest.raises(ArgumentError, match="client 'a'.*memory_bytes >= 2e"):
        memory(Profile("a", 1, {"memory_bytes": 1e9}), 0, KEY)
    with pytest.raises(ArgumentError, match="all clients of the pool"):
        dealt(Profile("stranger", 1), 0, KEY)
    for wrong in (lambda: dynamic(0), lambda: fixed(names, 0), lambda: fixed(["a", "a"], 2)):
        with pytest.raises(ArgumentError, match="count: expected a whole|distinct names"):
            wrong()


@pytest.mark.parametrize("masked", [False, True])
def test_one_size_is_fed_avg(clients, masked):
    net = bf.mlp([64, 16, 10], bf.Key(0, "net"))
    plain = bf.run(
        bf.fed_avg(net, training=bf.Training(steps=3), masked=masked),
        clients,
        rounds=2,
        progress=False,
    )
    sliced = bf.run(
        hetero_fl([net], fixed(sorted(clients), 1), training=bf.Training(steps=3), masked=masked),
        clients,
        rounds=2,
        progress=False,
    )
    assert all(
        torch.allclose(sliced.snapshot.state[name], leaf, atol=1e-6)
        for name, leaf in plain.snapshot.state.items()
    )


@pytest.mark.slow
def test_every_size_learns(digits, clients):
    _, test = digits
    algorithm = hetero_fl(
        nets(),
        fixed(sorted(clients), 3),
        training=bf.Training(steps=30, batch_size=32, optimiser=bf.Sgd(0.2)),
    )
    result = bf.run(algorithm, clients, rounds=15, progress=False)
    scores = [
        score(predictor(result.snapshot.state), test) for predictor in algorithm.sizes.values()
    ]
    assert list(algorithm.sizes) == ["2,410", "1,210", "610"]
    assert scores[0] > 0.7
    assert min(scores) > 0.5
    up = [row for row in result.ledger if row.direction == "up" and row.round == 0]
    assert sorted({row.bits // 1000 for row in up}, reverse=True)[0] > 1.5 * min(
        row.bits // 1000 for row in up
    )


def test_absent_classes_have_no_say_in_the_loss():
    output, targets = (
        torch.randn(5, 4, generator=bf.Key(0, "x").generator(), requires_grad=True),
        torch.tensor([0, 2, 2, 0, 2]),
    )
    with of_classes(net := torch.nn.Identity(), targets.unique()):
        Categorical().loss(net(output), targets).backward()
    assert torch.equal(net(output), output)
    assert not output.grad[:, [1, 3]].any()
    assert output.grad[:, [0, 2]].all()


def test_bad_nets_are_refused(clients):
    with pytest.raises(ArgumentError, match="a network for each size"):
        hetero_fl([], dynamic(1))
    with pytest.raises(ArgumentError, match="no axis longer"):
        hetero_fl(nets((8, 16)), dynamic(2))
    with pytest.raises(ArgumentError, match="running statistics"):
        hetero_fl(
            [torch.nn.Sequential(torch.nn.Linear(64, 8), torch.nn.BatchNorm1d(8))], dynamic(1)
        )
    with pytest.raises((ArgumentError, ClientError)):
        bf.run(hetero_fl(nets(), fixed(["nobody"], 3)), clients, rounds=1, progress=False)


class Attended(nn.Module):
    """Words, an encoder's layer that reads its layers' weights, and a classifier."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(16, 8)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 32, dropout=0.0, batch_first=True)
        self.last = nn.Linear(8, 10)

    def forward(self, tokens):
        return self.last(self.encoder(self.words((tokens * 15.99).flatten(1).long())).mean(1))


class Recurrent(nn.Module):
    """A GRU or an LSTM, a hidden layer, and a classifier."""

    def __init__(self, kind):
        super().__init__()
        self.over, self.hidden, self.last = kind(8, 8), nn.Linear(8, 32), nn.Linear(32, 10)

    def forward(self, rows):
        return self.last(self.hidden(self.over(rows.flatten(0, -3).mT)[0].mean(1)).relu())


def over_time():
    return nn.Sequential(
        nn.Conv1d(8, 16, 3), nn.Conv1d(16, 16, 3), nn.Flatten(), nn.Linear(16 * 4, 10)
    )


def frozen():
    net = bf.mlp([64, 32, 32, 32, 10], bf.Key(0, "net"))
    net.get_parameter("3.weight").requires_grad_(False)
    return net


EVERY_KIND = {
    "frozen": (frozen, {"5"}),
    "perceptron": (lambda: bf.mlp([64, 32, 32, 10], bf.Key(0, "net")), {"3"}),
    "one hidden layer": (lambda: bf.mlp([64, 32, 10], bf.Key(0, "net")), {"1"}),
    "over time": (over_time, {"1"}),
    "depthwise": (
        lambda: bf.models.mobilenet((1, 8, 8), 10, bf.Key(0), width=0.1, norm="group"),
        None,
    ),
    "attention": (Attended, {"encoder.linear1", "encoder.linear2"}),
    "GRU": (lambda: Recurrent(nn.GRU), {"hidden"}),
    "LSTM": (lambda: Recurrent(nn.LSTM), {"hidden"}),
}


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_every_kind_of_layer_is_factored_or_whole_and_a_smaller_ratio_is_never_larger(
    clients, kind
):
    make, expected = EVERY_KIND[kind]
    with bf.keys.forked(bf.Key(0, kind)):
        net = make()
    ratios = [1.0, 0.75, 0.5, 0.25, 0.125, 0.01]
    algorithm = bf.fed_hm(net, ratios, dynamic(6), training=bf.Training(steps=1, batch_size=4))
    counts = [size(model(algorithm.initial).parameters) for model in algorithm.sizes.values()]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[-1]
    assert expected is None or spectra_of(algorithm.initial).keys() == expected
    result = bf.run(
        algorithm, {name: data[:8] for name, data in clients.items()}, rounds=2, progress=False
    )
    for model in algorithm.sizes.values():
        assert model(result.snapshot.state)(clients["client-000"].inputs[:3]).isfinite().all()

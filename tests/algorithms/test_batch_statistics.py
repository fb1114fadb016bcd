"""The query of static batch norm's statistics: against all rows as one batch, whatever the clients,
the batches and the network's size.
"""

import math
from itertools import accumulate

import pytest
import torch
from torch import nn

import bayesfed as bf
from bayesfed.algorithms.after_training.batch_statistics import BatchMoments
from bayesfed.errors import ArgumentError, ClientError, UpdateError
from bayesfed.federated import fixed
from bayesfed.federated.core.owners import owned
from bayesfed.models.nets import norms
from bayesfed.models.nets.building_blocks import initialised
from bayesfed.models.nets.resnet import Block
from bayesfed.testing import check_local
from bayesfed.trees import parameters, size
from tests.conftest import tree_equal

KEY = bf.Key(0, "statistics")
ROWS = 41


@pytest.fixture(autouse=True)
def _one_thread():
    """Tensors this small only make threads wait for one another, most of all on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def small(norm="static", width=1):
    """A stem and one block with its shortcut: four norms, the last three over single pixels."""
    stem = [
        nn.Conv2d(3, 4 * width, 3, stride=4, padding=1, bias=False),
        norms.norm_layer(4 * width, norm, where="test"),
        nn.ReLU(),
    ]
    rest = [Block(4 * width, 6 * width, 2, norm), nn.Flatten(), nn.Linear(6 * width, 5)]
    return initialised(nn.Sequential(*stem, *rest), bf.Key(0, "net"))


def deep():
    return bf.models.resnet18((3, 8, 8), 5, bf.Key(0, "net"), width=1 / 16, norm="static")


def rows(count=ROWS, dtype=torch.float64, shape=(3, 8, 8)):
    return bf.Dataset(
        torch.randn(count, *shape, generator=KEY.child("rows").generator(), dtype=dtype),
        torch.arange(count) % 5,
    )


def split(data, *counts):
    """Cut the rows into clients of so many each; the last one has the rest."""
    edges = [0, *accumulate(counts), len(data)]
    return {
        f"client-{number}": data[slice(*edges[number : number + 2])]
        for number in range(len(edges) - 1)
    }


def query(net, clients, sample=None, tree=None, batch_size=128, **rest):
    inputs = next(iter(clients.values())).inputs
    sample = torch.zeros(1, *inputs.shape[1:], dtype=inputs.dtype) if sample is None else sample
    algorithm = bf.batch_statistics(net, tree or parameters(net), sample, batch_size=batch_size)
    return bf.run(algorithm, clients, rounds=1, progress=False, **rest)


def seen_by_norms(net, inputs):
    """Return what every batch norm gets when training mode sees all rows as one batch."""
    seen, handles = {}, []
    for name, norm in norms.batch_norms(net).items():
        handles.append(
            norm.register_forward_pre_hook(
                lambda norm, given, name=name: seen.update({name: given[0]})
            )
        )
    with torch.no_grad():
        output = net(inputs)
    for handle in handles:
        handle.remove()
    return seen, output


@pytest.mark.parametrize(
    ("make", "counts", "batch_size"),
    [
        (small, (), 128),
        (small, (), 1),
        (small, (), 7),
        (small, (20,), 128),
        (small, (0, 1, 7, 0, 16), 3),
        (small, (1,) * 40, 128),
        (deep, (0, 9), 16),
    ],
    ids=["pooled", "rows", "batches", "halves", "uneven", "single", "resnet18"],
)
def test_it_is_all_rows_as_one_batch_whatever_the_clients_and_batches(make, counts, batch_size):
    net, data = make().double(), rows()
    seen, output = seen_by_norms(net, data.inputs)
    result = query(net, split(data, *counts), batch_size=batch_size)
    assert len(seen) == {small: 4, deep: 20}[make]
    for name, values in seen.items():
        variance, mean = torch.var_mean(values, dim=(0, 2, 3), correction=0)
        assert torch.allclose(
            result.snapshot.state[f"model/{name}.running_mean"], mean, rtol=1e-9, atol=1e-10
        )
        assert torch.allclose(
            result.snapshot.state[f"model/{name}.running_var"], variance, rtol=1e-9, atol=1e-10
        )
    assert torch.allclose(result.model(data.inputs), output, rtol=1e-8, atol=1e-8)
    # Now an image's output is its own.
    assert torch.allclose(result.model(data.inputs[:1]), output[:1], rtol=1e-8, atol=1e-8)


def test_single_precision_is_as_good_as_it_can_be():
    net, data = small(), rows(dtype=torch.float32)
    results = [
        query(net, split(data, *counts), batch_size=size).snapshot.state
        for counts, size in [((), 128), ((3, 20), 5)]
    ]
    for name in norms.batch_norms(net):
        for part in ("running_mean", "running_var"):
            one, other = (state[f"model/{name}.{part}"] for state in results)
            assert one.dtype == torch.float32
            assert torch.allclose(one, other, rtol=1e-5, atol=1e-6)


def test_a_mean_far_from_zero_costs_no_digits():
    data = bf.Dataset(
        1e4 + rows(shape=(2,)).inputs * torch.tensor([1.0, 1e-2], dtype=torch.float64),
        torch.zeros(ROWS),
    )
    net = nn.BatchNorm1d(2, affine=False, track_running_stats=False)
    turned = nn.Linear(2, 2, bias=False).double().requires_grad_(False)
    result = query(nn.Sequential(turned, net), split(data, 5, 9), batch_size=4)
    values = data.inputs @ turned.weight.T
    assert torch.allclose(
        result.snapshot.state["model/1.running_var"], values.var(dim=0, correction=0), rtol=1e-6
    )
    assert torch.allclose(
        result.snapshot.state["model/1.running_mean"], values.mean(dim=0), rtol=1e-12
    )


def test_a_network_that_is_a_norm_and_a_channel_that_never_varies():
    data = bf.Dataset(torch.full((6, 3), 0.1), torch.zeros(6))
    result = query(nn.BatchNorm1d(3, track_running_stats=False), split(data, 2, 0))
    found = owned(result.snapshot.state, "model")
    assert list(found) == ["weight", "bias", "running_mean", "running_var"]
    assert torch.allclose(found["running_mean"], torch.full((3,), 0.1))
    assert bool((found["running_var"] >= 0).all())
    assert float(found["running_var"].max()) < 1e-12


class Backwards(nn.Module):
    """Registers its norms in the order opposite to their use."""

    def __init__(self):
        super().__init__()
        self.last, self.first = (
            nn.BatchNorm1d(4, track_running_stats=False),
            nn.BatchNorm1d(3, track_running_stats=False),
        )
        self.layer = nn.Linear(3, 4)

    def forward(self, inputs):
        return self.last(torch.relu(self.layer(self.first(inputs))))


def test_norms_are_queried_in_order_of_use():
    torch.nn.init.normal_((net := Backwards().double()).layer.weight, generator=KEY.generator())
    data = rows(shape=(3,))
    result = query(net, split(data, 9))
    assert [phase.name for phase in result.algorithm.phases] == ["first", "last"]
    assert torch.allclose(result.model(data.inputs), net(data.inputs), rtol=1e-9, atol=1e-9)


def test_a_second_round_finds_the_same():
    net, clients = small(), split(rows(dtype=torch.float32), 20)
    algorithm = bf.batch_statistics(net, parameters(net), torch.zeros(1, 3, 8, 8))
    once, twice = (
        bf.run(algorithm, clients, rounds=count, progress=False).snapshot.state for count in (1, 2)
    )
    assert tree_equal(once, twice)


def test_bits_are_those_of_the_messages_and_nothing_is_changed():
    net, clients = small(), split(rows(dtype=torch.float32), 20)
    before, modes = parameters(net), [module.training for module in net.modules()]
    result = query(net, clients)
    assert tree_equal(parameters(net), before)
    assert [module.training for module in net.modules()] == modes
    assert not list(net.buffers())
    assert not any(module._forward_pre_hooks for module in net.modules())
    channels = {name: norm.num_features for name, norm in norms.batch_norms(net).items()}
    assert len(result.ledger) == 2 * 2 * len(channels)
    for row in result.ledger:
        numbers = (
            64 * 2 * channels[row.phase]
            if row.direction == "up"
            else 32 * (size(before) + 2 * sum(channels.values()))
        )
        assert numbers < row.bits < numbers + (3_000 if row.direction == "up" else 12_000)


def test_workers_and_the_order_of_clients_do_not_change_a_bit():
    net, clients = small(), split(rows(dtype=torch.float32), 3, 20)
    reference = query(net, clients).snapshot.state
    inputs, tree = torch.zeros(1, 3, 8, 8), parameters(net)
    for pool in (
        bf.InProcess(dict(reversed(clients.items()))),
        bf.InProcess(clients, workers=2),
        bf.InProcess(clients, workers=2, kind="thread"),
    ):
        with pool:
            found = bf.run(
                bf.batch_statistics(net, tree, inputs), pool, rounds=1, progress=False
            ).snapshot.state
        assert tree_equal(found, reference)


def test_the_local_obeys_the_laws():
    net, data = norms.tracked(small()).eval(), rows(dtype=torch.float32)
    check_local(BatchMoments(net, "3.norm1", 6, 8), parameters(net), data)


def test_a_dead_client_is_left_out_and_an_empty_one_has_no_say():
    net, data = small(), rows(dtype=torch.float32)
    clients = split(data, 20)
    sound = query(net, clients).snapshot.state
    dead = clients | {"dead": bf.Dataset(torch.zeros(4, 2, 8, 8), torch.zeros(4))}
    with pytest.raises(ClientError, match="client 'dead', round 0, stage 'fit'"):
        query(net, dead)
    result = query(net, dead, on_client_error="drop")
    assert tree_equal(result.snapshot.state, sound)
    assert list(result.history[0].refused) == ["dead"]
    assert tree_equal(query(net, clients | {"empty": data[:0]}).snapshot.state, sound)
    with pytest.raises(UpdateError, match="positive total weight"):
        query(net, clients | {"empty": data[:0]}, sampler=lambda round, names, key: ["empty"])


def test_one_row_has_no_variance_but_pixels_have():
    data = rows(1, torch.float32)
    found = query(small(), split(data)).snapshot.state
    assert not found["model/3.norm2.running_var"].any()
    assert bool((found["model/1.running_var"] > 0).all())
    assert bool(torch.isfinite(query(small(), split(data)).model(data.inputs)).all())


SIZES = {
    "fed_hm": lambda capacity, **work: bf.fed_hm(
        small(width=2), [1.0, 0.25], capacity, whole=["0", "5"], **work
    ),
    "hetero_fl": lambda capacity, **work: bf.hetero_fl([small(width=2), small()], capacity, **work),
}


@pytest.mark.parametrize("make", SIZES.values(), ids=SIZES)
def test_every_size_can_be_queried(make):
    clients = split(rows(120, torch.float32), 30, 60, 90)
    algorithm = make(
        fixed(sorted(clients), 2),
        training=bf.Training(steps=5, batch_size=16, optimiser=bf.Sgd(0.05)),
    )
    state = bf.run(algorithm, clients, rounds=3, progress=False).snapshot.state
    pooled, counts = rows(120, torch.float32).inputs, []
    for size_of in algorithm.sizes.values():
        model = size_of(state)
        queried = query(model.net, clients, tree=model.parameters).model
        counts.append(size(model.parameters))
        assert tree_equal(
            {name: queried.parameters[name] for name in model.parameters}, model.parameters
        )
        # The static network normalises by the batch it is given: here by all rows.
        assert torch.allclose(queried(pooled), model(pooled), rtol=1e-3, atol=1e-3)
        assert torch.allclose(queried(pooled)[:3], queried(pooled[:3]), rtol=1e-4, atol=1e-4)
        assert not torch.allclose(model(pooled)[:3], model(pooled[:3]), rtol=1e-1, atol=1e-1)
    assert counts[0] > 1.5 * counts[1]


def test_compact_takes_the_queried_network():
    net, data = small().double(), rows()
    model = query(net, split(data)).model
    assert torch.allclose(
        bf.models.compact(model.net, model.parameters)(data.inputs),
        model(data.inputs),
        rtol=1e-6,
        atol=1e-6,
    )


def test_norms_that_have_statistics_keep_them():
    net = nn.Sequential(
        nn.BatchNorm1d(3), nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False)
    ).double()
    net[0].running_mean.fill_(0.5)
    data = rows(shape=(3,))
    result = query(net, split(data, 9))
    assert [phase.name for phase in result.algorithm.phases] == ["2"]
    expected = net[1](net[0].eval()(data.inputs)).mean(0)
    assert torch.allclose(result.snapshot.state["model/2.running_mean"], expected.detach())


def test_tracked_and_untracked_are_each_others_inverse():
    net = small("batch")
    assert not list(norms.untracked(net).buffers())
    assert list(norms.tracked(norms.untracked(net)).state_dict()) == list(net.state_dict())
    assert tree_equal(norms.tracked(small()).state_dict(), net.state_dict())


class Skipping(nn.Module):
    """Comes to its norm only where the first row is all zeros."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3, track_running_stats=False)

    def forward(self, inputs):
        return inputs if inputs[0].any() else self.norm(inputs)


class Repeating(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3, track_running_stats=False)

    def forward(self, inputs):
        return self.norm(self.norm(inputs))


def test_bad_arguments_are_refused_in_words():
    sample, static = torch.zeros(1, 3), nn.BatchNorm1d(3, track_running_stats=False)
    for net, tree, words in [
        (nn.Linear(3, 3), None, "expected static batch norms, found no batch norm"),
        (
            nn.BatchNorm1d(3),
            None,
            r"found running statistics; try bayesfed.models.untracked\(net\)",
        ),
        (Repeating(), None, "uses each norm once, found {'norm': 2}"),
        (static, {"weight": torch.ones(3)}, "leaf 'bias'"),
        (static, {"weight": torch.ones(3), "bias": torch.full((3,), math.nan)}, "finite"),
    ]:
        with pytest.raises(ArgumentError, match=words):
            bf.batch_statistics(net, tree or parameters(net), sample)
    with pytest.raises(ArgumentError, match="batch_size: expected a whole number >= 1"):
        bf.batch_statistics(static, parameters(static), sample, batch_size=0)
    with pytest.raises(
        ClientError,
        match="batch norm 'norm': expected rows that come to it, found a forward pass without it",
    ):
        query(Skipping(), split(rows(dtype=torch.float32, shape=(3,))))

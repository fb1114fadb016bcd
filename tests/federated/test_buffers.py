"""Running statistics under each policy: averaged, kept at home, refused; and predictions in
evaluation mode.
"""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

import bayesfed as bf
from bayesfed.algorithms.baselines.split_mix.recipe import split_mix
from bayesfed.errors import ArgumentError, ClientError
from bayesfed.federated import Add, Buffered, Descent, Whole, dynamic, fixed, load, score
from bayesfed.federated.core.owners import owned
from bayesfed.federated.training.batch_norm import STATISTICS, travelling
from bayesfed.federated.training.batches import batches
from bayesfed.inference.objectives.likelihood import MaximumLikelihood, check_data
from bayesfed.models import Categorical, fixed_rank
from bayesfed.models.modules import evaluating
from bayesfed.models.nets.building_blocks import initialised
from bayesfed.testing import check_local
from bayesfed.trees import parameters, placed, running_statistics, shapes
from tests.conftest import tree_equal
from tests.support.saving import save

POLICIES = ("static", "mean", "local")


@pytest.fixture(autouse=True)
def _one_thread():
    """Tensors this small only make threads wait for one another, most of all on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def normed(width=16, momentum=0.1):
    """Digits, one hidden layer, and batch norm before and after it: the leaves of its statistics
    begin with 1 and 3.
    """
    layers = [
        nn.Flatten(),
        nn.BatchNorm1d(64, momentum=momentum),
        nn.Linear(64, width),
        nn.BatchNorm1d(width, momentum=momentum),
        nn.ReLU(),
    ]
    return initialised(nn.Sequential(*layers, nn.Linear(width, 10)), bf.Key(0, "net"))


STATISTICS_OF_IT = {f"{name}.{part}" for name in "13" for part in ("running_mean", "running_var")}


def averaged(net, buffers):
    return bf.fed_avg(net, buffers=buffers, training=WORK)


WORK = bf.Training(steps=5, batch_size=16)
METHODS = {
    "fed_avg": lambda net, thin, capacity, **rest: bf.fed_avg(net, **{"training": WORK, **rest}),
    "fed_hm": lambda net, thin, capacity, **rest: bf.fed_hm(
        net, [1.0, 0.5], capacity, whole=["5"], convention="matrix", **{"training": WORK, **rest}
    ),
    "hetero_fl": lambda net, thin, capacity, **rest: bf.hetero_fl(
        [net, thin], capacity, **{"training": WORK, **rest}
    ),
}


def run(algorithm, clients, count=2, **rest):
    return bf.run(algorithm, clients, rounds=count, progress=False, **rest)


def memory_of(result, client):
    return {
        name.removeprefix(STATISTICS): leaf
        for name, leaf in owned(result.snapshot.memories[client], "model").items()
    }


def by_hand(net, data, client, rounds, keep):
    """A plain loop over one client's batches; `keep` says whether parameters and statistics go on
    from round to round.
    """
    twin = copy.deepcopy(net).train()
    optimiser = torch.optim.SGD(twin.parameters(), 0.05)
    for number in range(rounds):
        if not keep:
            twin.load_state_dict(net.state_dict())
        for batch in batches(
            data, 16, 5, bf.Key(0, "train", number, client).child("fit", "batches").generator()
        ):
            optimiser.zero_grad()
            functional.cross_entropy(twin(batch.inputs), batch.targets).backward()
            optimiser.step()
    return twin.state_dict()


@pytest.mark.parametrize("make", METHODS.values(), ids=METHODS)
def test_without_statistics_every_policy_is_the_same_run(make, clients):
    nets = [bf.mlp([64, width, 10], bf.Key(0, "net")) for width in (16, 8)]
    if make is METHODS["fed_hm"]:
        nets[0] = initialised(
            nn.Sequential(*nets[0][:3], nn.Identity(), nn.Identity(), nets[0][3]), bf.Key(0, "net")
        )
    snapshots = [
        run(make(*nets, fixed(sorted(clients), 2), buffers=buffers), clients).snapshot
        for buffers in POLICIES
    ]
    assert all(
        tree_equal(snapshot.state, snapshots[0].state) and not snapshot.memories
        for snapshot in snapshots
    )


@pytest.mark.parametrize("momentum", [0.1, None])
def test_the_mean_of_one_client_is_a_plain_loop(clients, momentum):
    net = normed(momentum=momentum)
    # 64 rows: a weighted mean of one by a power of two rounds nothing.
    data = clients["client-000"][:64]
    expected = by_hand(net, data, "a", 1, keep=True)
    found = run(averaged(net, "mean"), {"a": data}, 1).snapshot
    state = owned(found.state, "model")
    assert state.keys() == parameters(net).keys() | STATISTICS_OF_IT
    assert tree_equal(state, {name: expected[name] for name in state})
    assert not found.memories
    if momentum:
        expected = by_hand(net, data, "a", 3, keep=True)
        found = owned(run(averaged(net, "mean"), {"a": data}, 3).snapshot.state, "model")
        assert tree_equal(found, {name: expected[name] for name in found})


def test_statistics_are_averaged_by_the_weights_of_parameters(clients):
    net, some = (
        normed(),
        {
            "a": clients["client-000"][:30],
            "b": clients["client-001"][:90],
            "c": clients["client-002"][:0],
        },
    )
    each = {
        name: by_hand(net, data, name, 1, keep=True) for name, data in some.items() if len(data)
    }
    assert not torch.allclose(each["a"]["1.running_mean"], each["b"]["1.running_mean"], atol=1e-3)
    found = run(averaged(net, "mean"), some, 1)
    for name, leaf in owned(found.snapshot.state, "model").items():
        assert torch.allclose(leaf, 0.25 * each["a"][name] + 0.75 * each["b"][name], atol=1e-6)
    # Both ways, at 32 bits a number.
    plain = run(averaged(normed(), "local"), some, 1)
    extra = [row.bits - other.bits for row, other in zip(found.ledger, plain.ledger, strict=True)]
    assert all(32 * 2 * (64 + 16) < more < 32 * 2 * (64 + 16) + 4000 for more in extra)


def test_own_statistics_stay_at_home_from_round_to_round(clients):
    net, data = normed(), clients["client-000"][:64]
    expected = by_hand(net, data, "a", 3, keep=True)
    result = run(averaged(net, "local"), {"a": data}, 3)
    state = owned(result.snapshot.state, "model")
    assert state.keys() == parameters(net).keys()
    assert tree_equal(state, {name: expected[name] for name in state})
    assert tree_equal(
        memory_of(result, "a"), {name: expected[name] for name, _ in net.named_buffers()}
    )
    assert int(memory_of(result, "a")["3.num_batches_tracked"]) == 15


def test_own_statistics_are_in_no_message_and_are_each_clients_own(clients):
    net = normed()
    algorithm = averaged(net, "local")
    (phase,) = algorithm.phases
    data, message = clients["client-000"], owned(algorithm.initial, "model")
    fit = phase.local.fit(message, {}, data, bf.Key(0), bf.federated.LocalOptions())
    assert fit.payload.keys() == message.keys() == parameters(net).keys()
    again = phase.local.fit(message, fit.memory, data, bf.Key(0), bf.federated.LocalOptions())
    assert tree_equal(again.payload, fit.payload)
    assert not torch.equal(
        again.memory[f"{STATISTICS}1.running_mean"], fit.memory[f"{STATISTICS}1.running_mean"]
    )
    # A client without rows keeps what it has; memories of others in the same tree are left to them.
    idle = phase.local.fit(
        message,
        fit.memory | {"stranger": torch.ones(1)},
        data[:0],
        bf.Key(0),
        bf.federated.LocalOptions(),
    )
    assert tree_equal(idle.memory, fit.memory)
    result = run(algorithm, clients)
    names = sorted(result.snapshot.memories)
    assert names == sorted(clients)
    assert not torch.allclose(
        *(memory_of(result, name)["1.running_mean"] for name in names[:2]), atol=1e-3
    )


@pytest.mark.parametrize("make", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize("buffers", ["mean", "local"])
def test_nothing_leaks_between_clients_pools_or_into_the_network(make, buffers, clients, tmp_path):
    nets = [normed(), normed(8)]
    before, modes = (
        [copy.deepcopy(net.state_dict()) for net in nets],
        [module.training for module in nets[0].modules()],
    )
    algorithm = make(*nets, dynamic(2), buffers=buffers)
    whole = run(algorithm, clients).snapshot
    algorithm.predictor(whole.state)(clients["client-000"].inputs)
    for net, old in zip(nets, before, strict=True):
        assert tree_equal(net.state_dict(), old)
    assert [module.training for module in nets[0].modules()] == modes
    save(tmp_path / "run", run(algorithm, clients, 1).snapshot)
    for pool, resume in [
        (bf.InProcess(dict(reversed(clients.items()))), None),
        (bf.InProcess(clients, workers=2), None),
        (bf.InProcess(clients, workers=2, kind="thread"), None),
        (bf.InProcess(clients), load(tmp_path / "run")),
    ]:
        with pool:
            found = run(algorithm, pool, resume=resume).snapshot
        assert tree_equal(found.state, whole.state)
        assert all(
            tree_equal(found.memories.get(name, {}), whole.memories.get(name, {}))
            for name in clients
        )


@pytest.mark.parametrize("make", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize("buffers", ["mean", "local"])
def test_every_size_learns_and_local_ones_are_queried(make, buffers, digits, clients):
    _, test = digits
    algorithm = make(
        normed(32),
        normed(),
        fixed(sorted(clients), 2),
        buffers=buffers,
        training=bf.Training(steps=15, optimiser=bf.Sgd(0.2)),
    )
    state = run(algorithm, clients, 6).snapshot.state
    for size_of in [algorithm.predictor, *algorithm.sizes.values()]:
        model = size_of(state)
        assert (
            model.parameters.keys() >= STATISTICS_OF_IT
            if buffers == "mean"
            else model.parameters.keys() == parameters(model.net).keys()
        )
        assert score(model, test) > 0.6
        if buffers == "local":
            assert not running_statistics(model.net)
            query = bf.batch_statistics(model.net, model.parameters, test.inputs[:1])
            model = run(query, clients, 1).model
            assert score(model, test) > 0.6
        one = model(test.inputs[:1])
        assert torch.allclose(model(test.inputs)[:1], one, atol=1e-4)
        assert torch.equal(model(test.inputs[:1]), one)


def test_statistics_of_other_widths_begin_anew(clients):
    net, data = normed(), clients["client-000"]
    local = Buffered(
        Descent(MaximumLikelihood(net, Categorical()), bf.Sgd(), 2, 8), net, travels=False
    )
    wide = {STATISTICS + name: leaf for name, leaf in normed(32).named_buffers()}
    fresh, anew = (
        local.fit(parameters(net), memory, data, bf.Key(0), bf.federated.LocalOptions())
        for memory in ({}, wide)
    )
    assert tree_equal(fresh.memory, anew.memory)


@pytest.mark.parametrize("kind", ["value", "delta"])
@pytest.mark.parametrize("travels", [True, False])
def test_the_local_obeys_the_laws(kind, travels, clients):
    net = nn.Sequential(normed(), nn.Dropout(0.5))
    local = Buffered(
        Descent(MaximumLikelihood(net, Categorical()), bf.Sgd(), 3, 8, kind), net, travels
    )
    message = travelling(net, "mean" if travels else "local", where="test")
    check_local(local, message, clients["client-000"])
    assert local.kind == kind


def test_changes_of_statistics_add_to_the_same(clients):
    net, data = normed(), clients["client-000"][:64]
    message = travelling(net, "mean", where="test")
    states = []
    for kind in ("value", "delta"):
        local = Buffered(
            Descent(MaximumLikelihood(net, Categorical()), bf.Sgd(), 3, 8, kind), net, True
        )
        update = Whole(shapes(message)).lift(
            local.fit(message, {}, data, bf.Key(0), bf.federated.LocalOptions()).payload, 64.0, kind
        )
        reducer = bf.federated.Sum()
        reducer.add("a", update)
        states.append(Add().step(message, reducer, 0)[0] if kind == "delta" else update.mean())
    assert all(torch.allclose(leaf, states[1][name], atol=1e-6) for name, leaf in states[0].items())


def test_norms_in_evaluation_mode_keep_their_statistics(clients):
    net = normed()
    net[1].eval().requires_grad_(False)
    result = run(averaged(net, "mean"), {"a": clients["client-000"][:64]}, 1)
    found = owned(result.snapshot.state, "model")
    assert torch.equal(found["1.running_var"], net[1].running_var)
    assert not torch.equal(found["3.running_var"], net[3].running_var)


class Replacing(nn.Module):
    """Puts a new buffer in the place of the old one where torch's norms change theirs."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 10)
        self.register_buffer("mean", torch.zeros(64))

    def forward(self, inputs):
        inputs = inputs.flatten(1)
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * inputs.mean(0)
        return self.layer(inputs - self.mean)


def test_buffers_that_are_replaced_are_followed(clients):
    net = Replacing()
    result = run(averaged(net, "mean"), clients)
    assert result.snapshot.state["model/mean"].any()
    assert not net.mean.any()


def test_shared_buffers_stay_shared():
    shared = nn.BatchNorm1d(3)
    net, new = (
        nn.Sequential(shared, nn.Identity(), shared),
        {name: value.clone() for name, value in shared.named_buffers(prefix="0")},
    )
    with placed(net, new, "buffers"):
        net(torch.rand(5, 3))
        assert int(new["0.num_batches_tracked"]) == 2
    assert int(shared.num_batches_tracked) == 0
    assert not shared.running_mean.any()


# Evaluation


def test_predictions_are_in_evaluation_mode_and_modes_come_back(net, clients):
    inputs = clients["client-000"].inputs[:20]
    noisy = nn.Sequential(net, nn.Dropout(0.5))
    noisy[0].eval()
    stream = torch.get_rng_state()
    for algorithm in (
        bf.fed_avg(noisy),
        split_mix(lambda key: noisy, [1], dynamic(1), key=bf.Key(0)),
    ):
        assert torch.equal(algorithm.predictor(algorithm.initial)(inputs), net(inputs))
    thin = bf.fed_rlr(fixed_rank(net, 4).append(nn.Dropout(0.5)), None)
    assert torch.equal(thin.predictor(thin.initial)(inputs), thin.predictor(thin.initial)(inputs))
    declared = bf.d_turbo_vbi(bf.declare(noisy), observations=10)
    posterior = declared.posterior(declared.initial)
    draw = posterior.draw(bf.Key(0))
    assert torch.equal(posterior.predict(draw, inputs), posterior.predict(draw, inputs))
    assert torch.equal(torch.get_rng_state(), stream)
    assert (noisy.training, noisy[0].training, noisy[1].training) == (True, False, True)
    with pytest.raises(RuntimeError), evaluating(noisy):
        noisy[0](torch.zeros(1, 3))
    assert noisy.training


def test_checking_data_changes_no_statistics_and_needs_no_second_row(clients):
    net, data = normed(), clients["client-000"][:1]
    before = copy.deepcopy(net.state_dict())
    check_data(net, Categorical(), parameters(net), data)
    assert tree_equal(net.state_dict(), before)


def test_refusals_name_the_policies(clients):
    for method, make in METHODS.items():
        hint = (
            f"{method}.*: expected a network without running statistics, found "
            '.*1.running_mean.*; try .*buffers="mean" or "local"'
        )
        with pytest.raises(ArgumentError, match=hint):
            make(normed(), normed(8), dynamic(2))
        with pytest.raises(
            ArgumentError,
            match=(
                f"{method}, buffers: expected one of 'static', 'mean', 'local', found "
                "'average'; try 'static'"
            ),
        ):
            make(normed(), normed(8), dynamic(2), buffers="average")
    with pytest.raises(
        ArgumentError, match="fed_prox: expected a network without running statistics"
    ):
        bf.fed_prox(normed(), strength=0.1)


class FrozenNorm(nn.Module):
    """A norm whose statistics are constants, as torchvision's FrozenBatchNorm; or that only seems
    to be one.
    """

    def __init__(self, width, frozen=True):
        super().__init__()
        self.frozen = frozen
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))

    def forward(self, rows):
        if not self.frozen and self.training:
            self.running_mean.copy_(rows.detach().mean(0))
        return (rows - self.running_mean) * (self.running_var + 1e-5).rsqrt()


def with_norm(frozen):
    layers = [nn.Flatten(), nn.Linear(64, 8), FrozenNorm(8, frozen), nn.ReLU(), nn.Linear(8, 10)]
    return initialised(nn.Sequential(*layers), bf.Key(0, "net"))


@pytest.mark.parametrize("method", ["fed_avg", "laplace", "d_turbo_vbi"])
def test_statistics_that_never_change_are_constants(clients, method):
    net = with_norm(True)
    algorithm = {
        "fed_avg": lambda: bf.fed_avg(net, training=WORK),
        "laplace": lambda: bf.laplace(net, subset="all", structure="diagonal"),
        "d_turbo_vbi": lambda: bf.d_turbo_vbi(bf.declare(net), training=WORK, temperature=1.0),
    }[method]()
    result = bf.run(algorithm, clients, rounds=1, progress=False)
    assert torch.equal(net[2].running_mean, torch.zeros(8))
    assert result.snapshot.round == 1


def test_statistics_that_change_are_refused_by_looking(clients):
    net = with_norm(False)
    with pytest.raises(ClientError, match="running_mean"):
        bf.run(bf.fed_avg(net, training=WORK), clients, rounds=1, progress=False)


def test_complex_parameters_are_refused_at_the_door():
    net = nn.Linear(4, 2, dtype=torch.complex64)
    for recipe in (bf.fed_avg, bf.fed_paq, bf.laplace):
        with pytest.raises(ArgumentError, match="real parameters, found 'weight' of torch.complex"):
            recipe(net)

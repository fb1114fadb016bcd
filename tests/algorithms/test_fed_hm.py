"""FedHM and Split-Mix: one server, devices of unlike strength."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import bayesfed as bf
from bayesfed.algorithms.baselines.split_mix.ensembles import Ensemble, Nets, joined, parted
from bayesfed.algorithms.baselines.split_mix.recipe import split_mix
from bayesfed.algorithms.fed_hm.factored import Factored, Refactor, spectra_of
from bayesfed.algorithms.fed_hm.recipe import fed_hm
from bayesfed.errors import ArgumentError, UpdateError
from bayesfed.federated import rounds, score
from bayesfed.federated.core.owners import owned
from bayesfed.federated.core.protocols import Profile
from bayesfed.federated.core.sums import Sum
from bayesfed.federated.training.model_sizes import by_device, dynamic, fixed
from bayesfed.inference.objectives.likelihood import MaximumLikelihood
from bayesfed.inference.objectives.weight_decay import Decayed
from bayesfed.models import Categorical, hybrid, hybrid_ranks, unrollings
from bayesfed.models.nets import resnet as residual
from bayesfed.trees import parameters, shapes, size
from tests.conftest import tree_equal

KEY = bf.Key(0, "fed_hm")
RATIOS = (1.0, 0.5, 0.25)


def small_net():
    return bf.mlp([64, 32, 32, 10], bf.Key(0, "net"))


def views(net, ratios=RATIOS):
    ranks = [hybrid_ranks(net, ratio, whole=["5"]) for ratio in ratios]
    nets = [hybrid(net, share, whole=["5"]) if share else net for share in ranks]
    layers = {name: layout for made in nets for name, layout in unrollings(made).items()}
    return (
        layers,
        ranks,
        [
            Factored(layers, share, shapes(parameters(made)))
            for share, made in zip(ranks, nets, strict=True)
        ],
    )


@pytest.mark.parametrize("settings", [{}, {"by_rows": False}])
def test_whole_networks_of_all_clients_are_fed_avg(clients, settings):
    net = small_net()
    if settings:
        clients = {name: data[:60] for name, data in clients.items() if len(data) >= 60}
    plain = bf.run(
        bf.fed_avg(net, training=bf.Training(steps=3)), clients, rounds=2, progress=False
    )
    ours = bf.run(
        fed_hm(
            net,
            [1.0],
            fixed(sorted(clients), 1),
            training=bf.Training(steps=3),
            decay=0,
            **settings,
        ),
        clients,
        rounds=2,
        progress=False,
    )
    for name, leaf in plain.snapshot.state.items():
        assert (
            torch.equal(ours.snapshot.state[name], leaf)
            if not settings
            else torch.allclose(ours.snapshot.state[name], leaf, atol=1e-6)
        )


@pytest.mark.parametrize(
    "make", [small_net, lambda: bf.cnn((1, 8, 8), 10, bf.Key(0, "net"), channels=(6, 8), hidden=16)]
)
def test_full_rank_and_no_steps_is_the_identity(make):
    net = make()
    full = parameters(net)
    chosen = [name.rpartition(".")[0] for name in full if name.endswith("weight")][1:-1]
    ranks = {
        name: layout.full
        for name, layout in unrollings(hybrid(net, dict.fromkeys(chosen, 1))).items()
    }
    layers = unrollings(hybrid(net, ranks))
    state = Refactor(layers, (ranks,)).start(full)
    view = Factored(layers, ranks, shapes(parameters(hybrid(net, ranks))))
    update = view.lift(view.restrict(state), 2.0, "value")
    for name, leaf in full.items():
        assert torch.allclose(update.mean()[f"model/{name}"], leaf, atol=1e-5)


def test_every_size_is_the_best_approximation_of_the_whole():
    net = small_net()
    layers, ranks, made = views(net)
    state = Refactor(layers, tuple(ranks[1:])).start(parameters(net))
    for share, view in zip(ranks, made, strict=True):
        back = view.lift(view.restrict(state), 1.0, "value").total
        for name in layers:
            matrix, rank = parameters(net)[f"{name}.weight"], share.get(name)
            values = torch.linalg.svdvals(matrix)
            error = float((back[f"model/{name}.weight"] - matrix).norm())
            assert error == pytest.approx(float(values[rank:].norm()) if rank else 0.0, abs=1e-5)


@pytest.mark.parametrize(("settings", "rows"), [({}, 7), ({"by_rows": False}, 1)])
def test_sizes_are_weighed_by_their_ratio_and_rows(clients, settings, rows):
    capacity = fixed(sorted(clients), 3)
    algorithm = fed_hm(small_net(), RATIOS, capacity, whole=["5"], temperature=0.5, **settings)
    assign, state = algorithm.phases[0].assign, owned(algorithm.initial, "model")
    weights = [assign(state, 0, Profile(name, 7), KEY).weight for name in sorted(clients)[:3]]
    assert weights == pytest.approx([rows * math.exp(ratio / 0.5) for ratio in RATIOS])
    assert assign(state, 0, Profile(sorted(clients)[0], 0), KEY).weight == 0


def test_warm_factorisation_is_near_the_exact_one_and_says_how_near(clients):
    settings = {
        "capacity": fixed(sorted(clients), 3),
        "whole": ["5"],
        "training": bf.Training(steps=10, batch_size=32),
    }
    runs = {
        warm: bf.run(
            fed_hm(small_net(), RATIOS, warm=warm, **settings), clients, rounds=3, progress=False
        )
        for warm in (True, False)
    }
    exact, warm = (runs[flag].history[-1].server for flag in (False, True))
    assert exact["svd_missed"] == 0
    assert 0 < warm["svd_missed"] <= warm["svd_error"] < 0.7
    assert warm["svd_error"] == pytest.approx(exact["svd_error"], rel=0.05)
    state = runs[True].snapshot.state
    assert spectra_of(state)
    for name, spectrum in spectra_of(state).items():
        matrix = owned(state, "model")[f"{name}.weight"]
        rank = len(spectrum.values)
        u, v = spectrum.factors(rank)
        assert float((matrix - u @ v.T).norm()) == pytest.approx(spectrum.rest, rel=1e-3)


@pytest.mark.parametrize("kind", ["fixed", pytest.param("dynamic", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_every_size_learns_with_fewer_bits(digits, clients, kind):
    _, test = digits
    capacity = fixed(sorted(clients), 3) if kind == "fixed" else dynamic(3)
    algorithm = fed_hm(
        small_net(),
        RATIOS,
        capacity,
        whole=["5"],
        training=bf.Training(steps=30, batch_size=32, optimiser=bf.Sgd(0.03, momentum=0.9)),
        temperature=5.0,
    )
    result = bf.run(algorithm, clients, rounds=20, progress=False)
    scores = {
        name: score(predictor(result.snapshot.state), test)
        for name, predictor in algorithm.sizes.items()
    }
    assert list(scores) == ["1", "0.5", "0.25"]
    assert min(scores.values()) > 0.88
    assert abs(scores["1"] - scores["0.25"]) < 0.05
    if kind == "fixed":
        bits = {
            row.client: row.bits
            for row in result.ledger
            if row.direction == "up" and row.round == 0
        }
        whole, quarter = (bits[sorted(clients)[size]] for size in (0, 2))
        # 32 x 64 and 32 x 32 at rank 8, a 10 x 32 classifier and 74 biases.
        assert whole - quarter == pytest.approx(32 * (2048 + 1024 - 8 * 96 - 8 * 64), abs=2000)


@pytest.mark.slow
def test_a_convolutional_network(digits, clients):
    _, test = digits
    net = bf.cnn((1, 8, 8), 10, bf.Key(0, "net"), channels=(8, 16), hidden=32)
    algorithm = fed_hm(
        net,
        [1.0, 0.5],
        fixed(sorted(clients), 2),
        whole=["1"],
        training=bf.Training(steps=20, batch_size=32, optimiser=bf.Sgd(0.1, momentum=0.9)),
    )
    result = bf.run(algorithm, clients, rounds=5, progress=False)
    assert score(result.model, test) > 0.6


def test_group_norm_resnets_take_part(clients):
    # At width 1/8 oneDNN of torch 2.13.0 writes past its buffers on processors with AVX2 and no
    # more.
    net = residual.resnet18((1, 8, 8), 10, bf.Key(0, "net"), width=0.25, norm="group")
    algorithm = fed_hm(
        net,
        [1.0, 0.25],
        fixed(sorted(clients), 2),
        whole=["conv1", "layer1", "fc"],
        training=bf.Training(steps=1, batch_size=4),
    )
    result = bf.run(
        algorithm, {name: data[:8] for name, data in clients.items()}, rounds=1, progress=False
    )
    assert result.model(torch.zeros(2, 8, 8)).shape == (2, 10)


def test_workers_and_resuming_give_the_same_bits(clients):
    algorithm = fed_hm(small_net(), RATIOS, dynamic(3), whole=["5"], training=bf.Training(steps=3))
    whole = bf.run(algorithm, clients, rounds=4, progress=False).snapshot
    half = bf.run(algorithm, clients, rounds=2, progress=False).snapshot
    assert tree_equal(
        bf.run(algorithm, clients, rounds=4, progress=False, resume=half).snapshot.state,
        whole.state,
    )
    assert tree_equal(
        bf.run(
            algorithm, bf.InProcess(clients, workers=2), rounds=4, progress=False
        ).snapshot.state,
        whole.state,
    )


def test_decay_is_a_gaussian_prior_on_products():
    net = small_net()
    thin = hybrid(net, 0.5, whole=["5"])
    objective = Decayed(MaximumLikelihood(thin, Categorical()), 0.3)
    batch = bf.Dataset(torch.rand(8, 64), torch.arange(8))
    trained, fixed_leaves = objective.start(parameters(thin))
    with objective.held(trained):
        terms = objective.loss(trained, fixed_leaves, batch, 8.0, KEY.generator())
    products = {name: trained[f"{name}.u"] @ trained[f"{name}.v"].T for name in unrollings(thin)}
    others = [leaf for name, leaf in trained.items() if not name.endswith((".u", ".v"))]
    expected = 0.15 * float(sum(leaf.square().sum() for leaf in [*products.values(), *others]))
    assert float(terms.loss - terms.nll) == pytest.approx(expected, rel=1e-5)


def test_a_payload_of_another_rank_is_refused():
    net = small_net()
    layers, ranks, made = views(net, (1.0, 0.25, 0.125))
    state = Refactor(layers, tuple(ranks[1:])).start(parameters(net))
    with pytest.raises(UpdateError, match="expected shape"):
        made[1].lift(made[2].restrict(state), 1.0, "value")


def test_what_a_rank_leaves_out_is_kept_or_lost():
    """A client that trains nothing returns the whole network where the residual is kept, and its
    best approximation where it is dropped.
    """
    net = small_net()
    layers, ranks, made = views(net)
    state = Refactor(layers, tuple(ranks[1:])).start(parameters(net))
    for view in made[1:]:
        sent = view.restrict(state)
        kept = replace(view, base=state).lift(sent, 1.0, "value").mean()
        assert all(
            torch.allclose(kept[f"model/{name}"], leaf, atol=1e-6)
            for name, leaf in parameters(net).items()
        )
        dropped = view.lift(sent, 1.0, "value").mean()
        assert any(
            float((dropped[f"model/{name}.weight"] - state[f"model/{name}.weight"]).norm()) > 0.1
            for name in view.ranks
        )
        trained = {name: leaf + 0.01 * torch.ones_like(leaf) for name, leaf in sent.items()}
        change = replace(view, base=state).lift(trained, 1.0, "value").mean()
        plain = view.lift(trained, 1.0, "value").mean()
        assert all(
            torch.allclose(change[name] - kept[name], plain[name] - dropped[name], atol=1e-5)
            for name in kept
        )


def test_a_residual_can_be_kept_for_a_time(clients):
    def states(residual):
        algorithm = fed_hm(
            small_net(),
            [1.0, 0.25],
            dynamic(2),
            residual=residual,
            whole=["5"],
            convention="matrix",
            training=bf.Training(steps=2),
        )
        return [report.state for report in rounds(algorithm, bf.InProcess(clients), rounds=3)]

    dropped, kept, never, always, once = (
        states(residual) for residual in ("dropped", "kept", 0, 3, 1)
    )
    assert all(
        tree_equal(left, right) for left, right in zip(dropped + kept, never + always, strict=True)
    )
    assert tree_equal(once[0], kept[0])
    assert not tree_equal(once[1], kept[1])
    assert not tree_equal(once[1], dropped[1])


@pytest.mark.slow
@pytest.mark.parametrize("residual", ["dropped", "kept", pytest.param(4, marks=pytest.mark.slow)])
def test_sizes_learn_either_way(digits, clients, residual):
    _, test = digits
    work = {
        "whole": ["5"],
        "convention": "matrix",
        "training": bf.Training(steps=20, optimiser=bf.Sgd(0.1, 0.9)),
    }
    algorithm = fed_hm(small_net(), [1.0, 0.25], dynamic(2), residual=residual, **work)
    result = bf.run(algorithm, clients, rounds=8, progress=False)
    assert all(
        score(model(result.snapshot.state), test) > 0.8 for model in algorithm.sizes.values()
    )


def test_absent_classes_are_left_out_of_the_loss(clients):
    """A client without some classes leaves their biases where they were, but for the decay."""
    name, data = next(
        (name, data) for name, data in clients.items() if len(data.targets.unique()) < 10
    )
    absent = sorted(set(range(10)) - set(data.targets.tolist()))
    work = {"training": bf.Training(steps=5), "decay": 0.0, "whole": ["5"]}
    for masked in (True, False):
        algorithm = fed_hm(small_net(), [0.5], fixed([name], 1), masked=masked, **work)
        result = bf.run(algorithm, {name: data}, rounds=1, progress=False)
        before, after = (
            state["model/5.bias"] for state in (algorithm.initial, result.snapshot.state)
        )
        assert bool((after[absent] == before[absent]).all()) is masked


def test_bad_input_is_refused_in_words(clients):
    net, capacity = small_net(), dynamic(3)
    for ratios, words in [
        ([], "falling"),
        ([0.5, 0.5], "falling"),
        ([0.25, 0.5], "falling"),
        ([1.0, 0.0], r"rank_ratio: expected a number in \(0, 1\]"),
        ([2.0], "a number in"),
    ]:
        with pytest.raises(ArgumentError, match=words):
            fed_hm(net, ratios, capacity)
    for settings, words in [
        ({"decay": -1.0}, "fed_hm, decay: expected a finite number from 0"),
        ({"temperature": 0.0}, r"fed_hm, temperature: expected a number in \(0, inf\]"),
        ({"residual": "lost"}, "'dropped', 'kept' or a number of rounds >= 0"),
        ({"residual": -1}, "a number of rounds >= 0"),
        ({"residual": True}, "'dropped', 'kept' or a number of rounds >= 0"),
        ({"whole": ["nowhere"]}, "nowhere"),
        ({"whole": lambda name, module: False}, "none for .*the predicate"),
    ]:
        with pytest.raises(ArgumentError, match=words):
            fed_hm(net, [0.5], capacity, **settings)
    with pytest.raises(ArgumentError, match="running statistics"):
        fed_hm(nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8)), [0.5], capacity)
    grouped = nn.Sequential(nn.Conv2d(4, 4, 3, groups=2), nn.Flatten(), nn.Linear(4, 2))
    for only_whole in (grouped, nn.Linear(64, 10), nn.Sequential(nn.GRU(8, 8), nn.Linear(8, 2))):
        with pytest.raises(ArgumentError, match="fed_hm, ratios: expected a layer, neither kept"):
            fed_hm(only_whole, [0.5], capacity)
    weak = by_device("memory_bytes", {0: 8e9, 1: 4e9, 2: 1e9})
    with pytest.raises(ArgumentError, match="memory_bytes >= 1e"):
        bf.run(fed_hm(net, RATIOS, weak, whole=["5"]), clients, rounds=1, progress=False)


def test_no_client_begins_by_truncating(clients):
    """The start is of the smallest rank and of every layer's own norm; as printed it is the
    network.
    """
    net, capacity = small_net(), fixed(sorted(clients), 3)
    own, start = (
        owned(fed_hm(net, [1.0, 0.25, 0.125], capacity, **settings).initial, "model")
        for settings in ({"start": "whole"}, {"min_rank": 1})
    )
    assert tree_equal(own, parameters(net))
    assert {name for name in own if not torch.equal(own[name], start[name])} == {"3.weight"}
    values = torch.linalg.svdvals(start["3.weight"])
    assert int((values > 1e-5 * values[0]).sum()) == 4
    assert float(start["3.weight"].norm()) == pytest.approx(float(own["3.weight"].norm()), rel=1e-5)


def mixed(clients, **settings):
    work = {
        "training": bf.Training(steps=20, batch_size=32, optimiser=bf.Sgd(0.1, momentum=0.9)),
        **settings,
    }
    return split_mix(
        lambda key: bf.mlp([64, 8, 10], key), [4, 2, 1], fixed(sorted(clients), 3), key=KEY, **work
    )


@pytest.mark.slow
def test_split_mix_is_better_the_more_of_its_networks_are_asked(digits, clients):
    _, test = digits
    algorithm = mixed(clients)
    result = bf.run(algorithm, clients, rounds=10, progress=False)
    scores = [
        score(predictor(result.snapshot.state), test) for predictor in algorithm.sizes.values()
    ]
    assert list(algorithm.sizes) == ["4 nets", "2 nets", "1 net"]
    assert scores[0] > 0.8
    assert scores[0] >= scores[2]


def test_networks_that_nobody_trained_stay(clients):
    algorithm = split_mix(
        lambda key: bf.mlp([64, 8, 10], key),
        [4, 1],
        lambda profile, round, key: 1,
        key=KEY,
        training=bf.Training(steps=1),
    )
    result = bf.run(algorithm, dict([next(iter(clients.items()))]), rounds=1, progress=False)
    before, after = (
        parted(owned(tree, "model")) for tree in (algorithm.initial, result.snapshot.state)
    )
    assert sum(not tree_equal(before[number], after[number]) for number in before) == 1


def test_ensembles_average_outputs():
    net = nn.Linear(3, 2)
    trees = {
        number: {"weight": torch.full((2, 3), float(number)), "bias": torch.zeros(2)}
        for number in range(3)
    }
    assert torch.equal(Ensemble(net, joined(trees))(torch.ones(1, 3)), torch.full((1, 2), 3.0))
    view = Nets([2], {name: tuple(leaf.shape) for name, leaf in joined(trees).items()})
    reducer = Sum()
    reducer.add("a", view.lift(view.restrict(joined(trees)), 2.0, "value"))
    assert set(view.restrict(joined(trees))) == {"2/weight", "2/bias"}
    assert float(reducer.total.weight["2/bias"].sum()) == 4
    assert not reducer.total.weight["1/weight"].any()


def test_split_mix_refuses_bad_numbers(clients):
    for numbers in ([], [1, 2], [2, 0]):
        with pytest.raises(ArgumentError, match="falling numbers"):
            split_mix(lambda key: bf.mlp([64, 8, 10], key), numbers, dynamic(1), key=KEY)
    with pytest.raises(ArgumentError, match="running statistics"):
        split_mix(
            lambda key: nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8)), [1], dynamic(1), key=KEY
        )


def test_no_rank_is_below_the_smallest_where_one_can_be_that_large():
    def counts(net, **settings):
        algorithm = fed_hm(net, [1.0, 0.25, 0.125], dynamic(3), **settings)
        return [size(of(algorithm.initial).parameters) for of in algorithm.sizes.values()]

    # 64-32-32-10, of which 32 x 32 is factored: 1/4 of its rank is 8, 1/8 is 4.
    whole = 2048 + 1024 + 320 + 74
    assert counts(small_net()) == [whole, whole - 1024 + 8 * 64, whole - 1024 + 8 * 64]
    assert counts(small_net(), min_rank=1)[-1] == whole - 1024 + 4 * 64
    # 16 x 16 is no smaller at rank 8, so it has the ranks of the ratios.
    tiny = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 16), nn.Linear(16, 10))
    assert counts(tiny) == counts(tiny, min_rank=1)
    with pytest.raises(ArgumentError, match=r"none at \[0.5\], min_rank=100; try .*min_rank=1"):
        fed_hm(tiny, [0.5], dynamic(1), min_rank=100)

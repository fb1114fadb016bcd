"""Penalties without a gradient: proximal descent against its optimum, and the three recipes."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

import bayesfed as bf
from bayesfed.algorithms import fed_avg, fed_l1, fed_mid, fed_prune
from bayesfed.algorithms.baselines.sparse.proximal_descent import (
    Penalised,
    ProximalAverage,
    ProximalDescent,
    penalise,
)
from bayesfed.data import Dataset
from bayesfed.errors import ArgumentError, ClientError, UpdateError
from bayesfed.federated import Descent, Digital, Sgd, Sum, Update, published, rounds
from bayesfed.federated.clients.turn import one_thread
from bayesfed.federated.core.owners import owned
from bayesfed.inference import MaximumLikelihood
from bayesfed.inference.objectives.proximal_operators import (
    LargestShare,
    SingularThreshold,
    SoftThreshold,
)
from bayesfed.keys import Key
from bayesfed.models import Categorical
from bayesfed.testing import check_local
from bayesfed.trees import parameters
from tests.conftest import tree_equal

WORK = bf.Training(steps=20, batch_size=32, optimiser=bf.Sgd(0.1))
OPERATORS = [SoftThreshold(0.3), SingularThreshold(0.3), LargestShare(0.4)]


@pytest.fixture(scope="module")
def three(digits):
    train, _ = digits
    return bf.federate(train, bf.dirichlet(train.targets, 3, 0.5, Key(0, "partition")))


def last(algorithm, clients, count=3):
    return list(rounds(algorithm, bf.InProcess(clients), rounds=count))[-1]


# Operators


def test_the_weights_of_layers_are_chosen_and_nothing_else():
    net = bf.cnn((1, 8, 8), 10, Key(0, "net"), channels=(4,), hidden=8)
    assert penalise(net, SoftThreshold(1.0)).names == ("1.weight", "5.weight", "7.weight")
    assert penalise(nn.Linear(2, 2), SoftThreshold(1.0)).names == ("weight",)
    assert penalise(
        net, SoftThreshold(1.0), lambda name, module: isinstance(module, nn.Conv2d)
    ).names == ("1.weight", "1.bias")
    tree = parameters(net)
    shrunk = penalise(net, SoftThreshold(1e9)).shrunk(tree, 1.0)
    assert not any(bool(leaf.any()) for leaf in shrunk.values())
    with pytest.raises(
        ArgumentError,
        match="penalise, where: expected a predicate that chooses a parameter, found none of",
    ):
        penalise(net, SoftThreshold(1.0), lambda name, module: False)


def test_figures_say_what_is_left():
    tree = {
        "a": torch.tensor([[1.0, 0.0], [0.0, -2.0]]),
        "b": torch.ones(1, 4),
        "c": torch.zeros(9),
    }
    assert Penalised(SoftThreshold(0.5), ("a", "b")).figures(tree) == {
        "density": 0.75,
        "penalty": 3.5,
        "a.density": 0.5,
        "b.density": 1.0,
    }
    ranks = Penalised(SingularThreshold(0.5), ("a", "b")).figures(tree)
    assert (ranks["a.rank"], ranks["b.rank"], ranks["penalty"]) == (2.0, 1.0, pytest.approx(2.5))
    assert Penalised(LargestShare(0.5), ("a",)).figures(tree)["penalty"] == 0.0
    # Outside the set the penalty is infinite, and no figure.
    assert "penalty" not in Penalised(LargestShare(0.5), ("a", "b")).figures(tree)
    with pytest.raises(UpdateError, match=r"penalised leaves: expected \['z'\]"):
        Penalised(SoftThreshold(0.5), ("a", "z")).figures(tree)


# The local and the server


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("kind", ["value", "delta"])
def test_locals_obey_the_laws(operator, kind, net, three):
    descent = Descent(MaximumLikelihood(net, Categorical()), Sgd(), 3, 8, kind)
    local = ProximalDescent(descent, penalise(net, operator), once=kind == "delta")
    assert local.kind == kind
    message, data = parameters(net), three["client-000"]
    check_local(local, message, data, bf.federated.LocalOptions(rate_factor=0.5))
    empty = local.fit(message, {}, data[slice(0, 0)], Key(0), bf.federated.LocalOptions())
    assert empty.info["density"] == 1.0


def test_dropout_keeps_its_own_stream(net, three):
    noisy = nn.Sequential(net, nn.Dropout(0.5))
    descent = Descent(MaximumLikelihood(noisy, Categorical()), Sgd(), 3, 8)
    local = ProximalDescent(descent, penalise(noisy, SoftThreshold(0.01)))
    check_local(local, parameters(noisy), three["client-000"])


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_one_step_is_the_operator_after_the_gradient_step(factor, net, three):
    """At the rate of the step, the message's factor included, on the weights and not on the
    biases.
    """
    data, message = three["client-000"], parameters(net)
    descent = Descent(MaximumLikelihood(net, Categorical()), Sgd(0.2), 1, len(data))
    plain = descent.fit(
        message, {}, data, Key(0), bf.federated.LocalOptions(rate_factor=factor)
    ).payload
    operator = SoftThreshold(0.05)
    fit = ProximalDescent(descent, penalise(net, operator)).fit(
        message, {}, data, Key(0), bf.federated.LocalOptions(rate_factor=factor)
    )
    for name, leaf in plain.items():
        assert torch.equal(
            fit.payload[name], operator(leaf, 0.2 * factor) if name.endswith("weight") else leaf
        )
    assert fit.info["density"] < 1


def test_pruning_once_is_training_and_then_pruning(net, three):
    data, message = three["client-000"], parameters(net)
    descent = Descent(MaximumLikelihood(net, Categorical()), Sgd(0.2), 7, 16)
    dense, operator = (
        descent.fit(message, {}, data, Key(0), bf.federated.LocalOptions()),
        LargestShare(0.25),
    )
    once = ProximalDescent(descent, penalise(net, operator), once=True).fit(
        message, {}, data, Key(0), bf.federated.LocalOptions()
    )
    assert tree_equal(
        once.payload,
        dense.payload
        | {name: operator(dense.payload[name], 1.0) for name in ("1.weight", "3.weight")},
    )
    assert {name: once.info[name] for name in dense.info} == dense.info
    every = ProximalDescent(descent, penalise(net, operator)).fit(
        message, {}, data, Key(0), bf.federated.LocalOptions()
    )
    assert every.info["density"] == once.info["density"] == 0.25
    assert every.info["loss"] > once.info["loss"]


def test_the_server_shrinks_the_average_at_its_rate():
    operator = SoftThreshold(0.5)
    state = {"w": torch.ones(2, 2), "b": torch.ones(2)}
    server = ProximalAverage(Penalised(operator, ("w",)), lambda round: 0.1 * (round + 1))
    assert published(server, state, 0, None) is state
    reducer = Sum(
        Update(
            {"w": torch.tensor([[4.0, 1.0], [0.2, -2.0]]), "b": torch.tensor([4.0, 0.2])},
            2.0,
            "value",
        )
    )
    found, info = server.step(state, reducer, 3)
    assert torch.allclose(found["w"], torch.tensor([[1.8, 0.3], [0.0, -0.8]]))
    assert torch.equal(found["b"], torch.tensor([2.0, 0.1]))
    assert info["density"] == 0.75
    mean, info = ProximalAverage(Penalised(operator, ("w",))).step(state, reducer, 3)
    assert torch.equal(mean["w"], torch.tensor([[2.0, 0.5], [0.1, -1.0]]))
    assert info["penalty"] == pytest.approx(1.8)
    # Nobody had data: nothing changes, nothing shrinks.
    nobody, _ = server.step(
        state, Sum(Update({"w": torch.zeros(2, 2), "b": torch.zeros(2)}, 0.0, "value")), 3
    )
    assert tree_equal(nobody, state)
    with pytest.raises(UpdateError, match="expected a sum of kind 'value'"):
        server.step(state, Sum(Update(state, 1.0, "delta")), 0)


# Recipes


@pytest.mark.parametrize(
    "make",
    [
        partial(fed_mid, strength=0.0),
        partial(fed_l1, strength=0.0),
        partial(fed_prune, share=1.0),
        partial(fed_prune, share=1.0, once=False),
    ],
)
def test_without_a_penalty_they_are_fed_avg_bit_for_bit(make, net, three):
    average, same = last(fed_avg(net, training=WORK), three), last(make(net, training=WORK), three)
    assert tree_equal(average.state, same.state)
    assert same.server["density"] == 1.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "least", "most"),
    [
        (partial(fed_mid, strength=0.02), 0.85, {"density": 1.0, "1.weight.rank": 50.0}),
        (fed_mid, 0.88, {"density": 1.0, "1.weight.rank": 64.0}),
        (partial(fed_l1, strength=0.02), 0.6, {"density": 0.3, "1.weight.density": 0.3}),
        (partial(fed_l1, strength=0.005), 0.85, {"density": 0.85}),
        (partial(fed_prune, share=1 / 4), 0.75, {"density": 0.26}),
        (partial(fed_prune, share=1 / 4, once=False), 0.7, {"density": 0.26}),
    ],
)
def test_they_learn_and_their_figures_move(make, least, most, digits, three):
    _, test = digits
    result = bf.run(
        make(bf.mlp([64, 64, 10], Key(0, "net")), training=WORK),
        three,
        rounds=8,
        test=test,
        progress=False,
    )
    assert result.final("accuracy") > least
    for name, bound in most.items():
        series = [value for _, value in result.series(name)]
        assert series[-1] <= bound
    if bound < 64:
        assert len(set(series)) > 1
    clients = result.history[-1].clients.values()
    assert all({"loss", "nll", "samples", "density", "penalty"} < set(info) for info in clients)


def test_a_client_keeps_its_share_and_the_average_their_union(net, three):
    seen = []

    class Counting(Digital):
        def pack(self, payload, codec, meta, key):
            seen.append({name: leaf != 0 for name, leaf in payload.items()})
            return super().pack(payload, codec, meta, key)

    report = last(fed_prune(net, share=1 / 32, link=Counting(), training=WORK), three, 1)
    for name, kept in (("1.weight", 32), ("3.weight", 5)):
        assert [int(tree[name].sum()) for tree in seen] == [kept] * 3
        union = torch.stack([tree[name] for tree in seen]).any(0)
        assert torch.equal(report.state[f"model/{name}"] != 0, union)
        assert report.server[f"{name}.density"] == int(union.sum()) / union.numel()


def test_the_servers_rate_is_that_of_all_local_steps(net, three):
    """What FeDMiD's server does to the average: prox at eta_c K, the schedule included."""
    work = replace(WORK, schedule=bf.federated.cosine(0.5, 2))
    for round in (0, 1):
        with_server, without = (
            owned(
                last(
                    fed_mid(net, strength=0.02, average=average, training=work), three, 1 + round
                ).state,
                "model",
            )
            for average in (True, False)
        )
        if round == 0:
            operator, rate = SingularThreshold(0.02), 20 * 0.1
            with one_thread():  # the SVD's last bits depend on the number of threads
                expected = without | {
                    name: operator(without[name], rate) for name in ("1.weight", "3.weight")
                }
            assert tree_equal(with_server, expected)
    (phase,) = fed_mid(net, training=work).phases
    assert [phase.server.rate(round) for round in (0, 1)] == pytest.approx([2.0, 1.0])


def test_a_predicate_chooses_and_a_link_is_passed_on(net, three):
    state = last(
        fed_l1(net, strength=100.0, where=lambda name, module: name == "3.weight", training=WORK),
        three,
        1,
    ).state
    assert not bool(state["model/3.weight"].any())
    assert bool((state["model/1.weight"] != 0).all())
    link = Digital(max_norm=7.0)
    for make in (fed_avg, fed_l1, fed_mid, fed_prune):
        (phase,) = make(net, link=link).phases
        assert phase.link is link
        assert phase.local.kind == "value"
        (phase,) = make(net).phases
        assert phase.link == Digital()


def test_settings_out_of_range(net):
    for make in (fed_l1, fed_mid):
        with pytest.raises(ArgumentError, match=f"{make.__name__}, strength: expected a number in"):
            make(net, strength=-1.0)
    with pytest.raises(ArgumentError, match="LargestShare, share: expected a share"):
        fed_prune(net, share=0.0)
    for make in (fed_l1, fed_mid, fed_prune):
        with pytest.raises(ArgumentError, match="expected a predicate that chooses"):
            make(net, where=lambda name, module: False)


@pytest.mark.parametrize("make", [fed_l1, fed_mid, fed_prune])
def test_frozen_weights_are_refused_before_the_first_round(make, net, three):
    adapted = bf.lora(net, 2, Key(0, "lora"))
    with pytest.raises(
        ArgumentError,
        match=(
            rf"{make.__name__}, where: expected parameters that are trained, found 2 frozen "
            r"ones: 1.base.weight, 3."
        ),
    ) as told:
        make(adapted)
    assert 'where=lambda name, module: "lora_" in name' in str(told.value)
    report = last(
        make(adapted, where=lambda name, module: "lora_" in name, training=WORK), three, 1
    )
    assert not report.refused
    net = nn.Linear(3, 2).requires_grad_(False)
    with pytest.raises(
        ArgumentError, match=r"found 1 frozen ones: weight; try net.requires_grad_\(\)"
    ):
        make(net)


@pytest.mark.parametrize("make", [fed_l1, fed_mid, fed_prune])
def test_a_diverged_client_is_named(make, net, three):
    with pytest.raises(
        ClientError, match="client 'client-000', round 0, stage 'fit': .*a smaller learning rate"
    ):
        last(make(net, training=replace(WORK, optimiser=Sgd(1e20))), three, 1)


# Optima


def regression(outputs, rows=200, columns=30, noise=0.1):
    stream = Key(3, "regression").generator()
    inputs = torch.randn(rows, columns, generator=stream)
    truth = torch.zeros(outputs, columns)
    return inputs, truth, noise * torch.randn(rows, outputs, generator=stream), stream


@pytest.mark.parametrize(("strength", "make"), [(0.1, fed_l1), (0.03, fed_l1)])
def test_l1_finds_the_lasso_and_a_planted_support(strength, make):
    from sklearn.linear_model import Lasso

    inputs, truth, noise, stream = regression(1)
    planted = torch.randperm(30, generator=stream)[:6]
    truth[0, planted] = torch.tensor([1.0, -1.5, 2.0, -0.7, 0.9, 1.2])
    targets = inputs @ truth.T + noise
    net = nn.Sequential(nn.Linear(30, 1, bias=False))
    algorithm = make(
        net,
        strength=strength,
        likelihood=bf.Normal(1.0),
        training=bf.Training(steps=300, batch_size=200, optimiser=Sgd(0.4)),
    )
    report = last(algorithm, {"only": Dataset(inputs, targets)}, 2)
    weight = report.state["model/0.weight"]
    reference = Lasso(alpha=strength, fit_intercept=False, tol=1e-10, max_iter=100_000).fit(
        inputs.double().numpy(), targets[:, 0].double().numpy()
    )
    assert torch.allclose(weight[0].double(), torch.from_numpy(reference.coef_), atol=2e-5)
    # Karush-Kuhn-Tucker: the gradient is -lambda sign(w) where w is not zero, and at most lambda
    # elsewhere.
    gradient = (inputs.T @ (inputs @ weight.T - targets) / len(inputs))[:, 0]
    active = weight[0] != 0
    assert torch.allclose(gradient[active], -strength * weight[0][active].sign(), atol=2e-5)
    assert float(gradient[~active].abs().max()) <= strength
    assert active[planted].all()
    if strength == 0.1:
        assert int(active.sum()) == 6
        assert report.server["density"] == 0.2


@pytest.mark.slow
def test_the_nuclear_norm_finds_a_planted_rank():
    """Three clients of one problem. The optimum's certificate: the gradient is minus lambda times a
    subgradient of the nuclear norm.
    """
    inputs, truth, noise, stream = regression(8, rows=240, columns=12)
    truth = torch.randn(8, 2, generator=stream) @ torch.randn(2, 12, generator=stream) / 2
    data = Dataset(inputs, inputs @ truth.T + noise)
    net = nn.Sequential(nn.Linear(12, 8, bias=False))
    likelihood, work = bf.Normal(1.0), bf.Training(batch_size=240, optimiser=Sgd(0.3))
    free = last(
        fed_mid(net, strength=0.0, likelihood=likelihood, training=replace(work, steps=60)),
        {"only": data},
    ).server
    assert free["0.weight.rank"] == 8
    # With one local step of one client, twice the strength (clients and server), without the
    # server's part the strength itself.
    for average, factor, steps, count in ((True, 2, 1, 250), (False, 1, 125, 2)):
        report = last(
            fed_mid(
                net,
                strength=0.05,
                average=average,
                likelihood=likelihood,
                training=replace(work, steps=steps),
            ),
            {"only": data},
            count,
        )
        weight = report.state["model/0.weight"]
        assert report.server["0.weight.rank"] == 2
        assert float((weight - truth).norm() / truth.norm()) < 0.1
        subgradient = -((inputs @ weight.T - data.targets).T @ inputs / 240) / (factor * 0.05)
        assert float(torch.linalg.svdvals(subgradient)[0]) < 1 + 1e-3
        assert float((subgradient * weight).sum()) == pytest.approx(
            float(torch.linalg.svdvals(weight).sum()), rel=1e-3
        )
    # The mean of three clients' low-rank models is of full rank unless the server shrinks it.
    clients = bf.federate(data, bf.iid(240, 3, Key(0, "parts")))
    shared = [
        fed_mid(
            net,
            strength=0.05,
            average=average,
            likelihood=likelihood,
            training=replace(work, steps=10),
        )
        for average in (True, False)
    ]
    ranks = [last(algorithm, clients, 12).server["0.weight.rank"] for algorithm in shared]
    assert ranks[0] == 2 < ranks[1]

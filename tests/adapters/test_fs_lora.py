"""FSLoRA: laws of sketches, of the server's sums, and of what travels."""

import copy
import itertools
from functools import partial

import pytest
import torch
from torch import nn
from torch.func import functional_call

import bayesfed as bf
from bayesfed.algorithms.lora import Refactored, Sketched, Slices
from bayesfed.algorithms.lora.slices import cut_slices
from bayesfed.compress.quantisers.sparsify import TopK
from bayesfed.compress.wire import unseal
from bayesfed.errors import ArgumentError, UpdateError
from bayesfed.federated.core.owners import of, owned
from bayesfed.federated.core.protocols import Profile
from bayesfed.federated.core.sums import Sum
from bayesfed.models import (
    Drawn,
    adapters,
    importance_sketch,
    merged,
    random_sketch,
    resized,
    slice_norms,
)
from bayesfed.models.adapters.sketching import inclusion
from bayesfed.testing import check_local, check_view
from bayesfed.trees import shapes, trainable
from tests.adapters.adapter_pieces import (
    KEY,
    ONE,
    WORK,
    R,
    adapted,
    base,
    begun,
    close,
    matrix,
    run,
)
from tests.conftest import tree_equal

# Sketches


@pytest.mark.parametrize("k", [1, 2, 5])
def test_random_sketches_have_mean_the_identity(k):
    draws = [random_sketch(5, k, KEY.child(number)) for number in range(1500)]
    first, second = (
        torch.stack([matrix(draw, 5) ** power for draw in draws]).mean(0) for power in (1, 2)
    )
    # Of an entry, r / k or 0: sd / sqrt(1500), five of them.
    slack = 5 * 5 / k * (k / 5 * (1 - k / 5) / 1500) ** 0.5 + 1e-12
    assert (first - torch.eye(5)).abs().max() <= slack
    assert (second - 5 / k * torch.eye(5)).abs().max() <= slack * 5 / k
    x = torch.randn(7, 5, dtype=torch.float64)
    squares = torch.stack([(x @ matrix(draw, 5)).square().sum() for draw in draws])
    assert squares.max() <= (5 / k) ** 2 * x.square().sum() + 1e-9
    assert float(squares.mean()) == pytest.approx(5 / k * float(x.square().sum()), rel=0.1)
    assert all(
        len(draw.indices) == k and bool((draw.indices.diff() > 0).all()) for draw in draws[:20]
    )


def test_all_sets_are_drawn_alike_and_the_mean_is_exact_over_them():
    sets = list(itertools.combinations(range(5), 2))
    counts = dict.fromkeys(sets, 0)
    for number in range(3000):
        counts[tuple(random_sketch(5, 2, KEY.child("sets", number)).indices.tolist())] += 1
    assert sum((count - 300) ** 2 / 300 for count in counts.values()) < 27.9
    matrices = torch.stack(
        [
            matrix(Drawn(torch.tensor(chosen), torch.full((2,), 2.5, dtype=torch.float64)), 5)
            for chosen in sets
        ]
    )
    assert torch.allclose(matrices.mean(0), torch.eye(5, dtype=torch.float64))
    assert torch.allclose((matrices @ matrices).mean(0), 2.5 * torch.eye(5, dtype=torch.float64))


@pytest.mark.parametrize(("k", "floor"), [(2, 0.5), (3, 0.1), (5, 0.5), (1, 1.0)])
def test_importance_sketches_are_unbiased(k, floor):
    weights = torch.tensor([0.0, 0.1, 0.2, 3.0, 10.0])
    chances = inclusion(weights.double(), k, floor)
    assert float(chances.sum()) == pytest.approx(k)
    assert float(chances.max()) <= 1
    assert float(chances.min()) >= floor * min(k, 5) / 5 * 0.999
    draws = [
        importance_sketch(weights, k, KEY.child("heavy", number), floor=floor)
        for number in range(1500)
    ]
    assert all(len(draw.indices.unique()) == k for draw in draws)
    mean = torch.stack([matrix(draw, 5) for draw in draws]).mean(0)
    slack = 5 * ((1 / chances - 1) / 1500).sqrt() + 1e-12
    assert bool(((mean.diagonal() - 1).abs() <= slack).all())
    assert torch.allclose(
        importance_sketch(torch.zeros(5), k, KEY).multipliers,
        torch.full((k,), 5 / k, dtype=torch.float64),
    )


def test_keys_name_sketches():
    assert torch.equal(random_sketch(64, 8, KEY).indices, random_sketch(64, 8, KEY).indices)
    assert not torch.equal(
        random_sketch(64, 8, KEY).indices, random_sketch(64, 8, KEY.child(1)).indices
    )
    algorithm = bf.fs_lora(bf.lora(base(), 16, KEY), [4], **ONE)
    assign = algorithm.phases[0].assign
    drawn = [
        assign(owned(algorithm.initial, "model"), 0, Profile("a", 7), KEY.child(name)).view.indices
        for name in ("a", "a", "b")
    ]
    assert all(torch.equal(drawn[0][name], drawn[1][name]) for name in drawn[0])
    assert not any(torch.equal(drawn[0][name], drawn[2][name]) for name in drawn[0])
    assert not torch.equal(drawn[0]["1"], drawn[0]["3"])


@pytest.mark.parametrize(
    "draw",
    [random_sketch, lambda rank, k, key: importance_sketch(torch.ones(rank), k, key)],
    ids=["random", "importance"],
)
def test_too_few_or_many_slices_are_errors(draw):
    for k in (0, 5):
        with pytest.raises(ArgumentError, match="from 1 to 4"):
            draw(4, k, KEY)


# What a client trains


def masked_loss(net, leaves, sketch, inputs, targets):
    """The loss at ``W + scale B S A``, S a whole matrix: the paper's (2)."""
    layer = adapters(net)["1"]
    weight = layer.base.weight + layer.scale * leaves["1.lora_b"] @ sketch @ leaves["1.lora_a"]
    hidden = torch.relu(nn.functional.linear(inputs.flatten(1), weight, layer.base.bias))
    return nn.functional.cross_entropy(
        nn.functional.linear(hidden, leaves["3.weight"], leaves["3.bias"]), targets
    )


@pytest.mark.parametrize("sampling", ["uniform", "importance"])
def test_slices_train_as_the_masked_form_does(digits, sampling):
    net, inputs, targets = adapted(), digits[0].inputs[:32], digits[0].targets[:32]
    leaves, k, rate = begun(net), 2, 0.1
    draw = (
        random_sketch(R, k, KEY)
        if sampling == "uniform"
        else importance_sketch(slice_norms(leaves["1.lora_b"], leaves["1.lora_a"]), k, KEY)
    )
    sketch = matrix(draw, R).float()
    whole = {name: leaf.clone() for name, leaf in leaves.items()}
    for _ in range(3):
        grown = {name: leaf.requires_grad_() for name, leaf in whole.items()}
        gradients = dict(
            zip(
                grown,
                torch.autograd.grad(
                    masked_loss(net, grown, sketch, inputs, targets), list(grown.values())
                ),
                strict=True,
            )
        )
        outside = [j for j in range(R) if j not in draw.indices.tolist()]
        assert not bool(gradients["1.lora_b"][:, outside].any())
        assert not bool(gradients["1.lora_a"][outside].any())
        # (3), from the gradient of the effective weight.
        layer = adapters(net)["1"]
        product = (
            (layer.scale * whole["1.lora_b"] @ sketch @ whole["1.lora_a"]).detach().requires_grad_()
        )
        own = {"1.weight": layer.base.weight + product} | {
            name: whole[name] for name in ("3.weight", "3.bias")
        }
        logits = functional_call(base(), own, (inputs,))
        (of_product,) = torch.autograd.grad(nn.functional.cross_entropy(logits, targets), [product])
        assert torch.allclose(
            gradients["1.lora_b"],
            layer.scale * of_product @ whole["1.lora_a"].T @ sketch.T,
            atol=1e-6,
        )
        assert torch.allclose(
            gradients["1.lora_a"],
            layer.scale * sketch.T @ whole["1.lora_b"].T @ of_product,
            atol=1e-6,
        )
        whole = {name: (leaf - rate * gradients[name]).detach() for name, leaf in whole.items()}
    view = Slices({"1": draw}, shapes(leaves), sampling == "importance")
    made = resized(net, k)
    algorithm = bf.fs_lora(
        net,
        [k],
        **ONE,
        anchored=False,
        sampling=sampling,
        training=bf.Training(steps=3, batch_size=32, optimiser=bf.Sgd(rate)),
    )
    (local,) = algorithm.phases[0].local.locals
    assert isinstance(local, Sketched) == (sampling == "importance")
    assert shapes(trainable(made)) == view.expected
    fit = local.fit(
        view.restrict(leaves), {}, bf.Dataset(inputs, targets), KEY, bf.federated.LocalOptions()
    )
    assert shapes(fit.payload) == view.expected
    change = view.lift(fit.payload, 1.0, "delta").total
    assert close(change, {name: leaf - leaves[name] for name, leaf in whole.items()})
    assert not bool(change["1.lora_b"][:, outside].any())


def test_all_slices_are_federated_lora_bit_for_bit(clients):
    plain = run(bf.fed_lora(adapted(dropout=0.1), training=WORK), clients)
    for rest in (
        {},
        {"broadcast": True},
        {"anchored": False},
        {"anchored": False, "broadcast": True},
    ):
        ours = run(bf.fs_lora(adapted(dropout=0.1), [R], **ONE, training=WORK, **rest), clients)
        assert tree_equal(ours.snapshot.state, plain.snapshot.state)
    assert bool(plain.snapshot.state["model/1.lora_b"].any())
    assert not tree_equal(
        run(bf.fs_lora(adapted(), [R - 1], **ONE, training=WORK), clients).snapshot.state,
        plain.snapshot.state,
    )


def test_pretrained_weights_are_never_written_to(clients):
    pretrained = base()
    before = {name: value.detach().clone() for name, value in pretrained.named_parameters()}
    net = bf.lora(pretrained, R, KEY, head=["3"])
    capacity = bf.fixed(sorted(clients), 2)
    for make in (bf.fs_lora, bf.hetero_lora, bf.flex_lora, bf.fed_stack_lora):
        run(make(net, [R, 2], capacity, training=WORK), clients)
    for make in (bf.fed_lora, bf.ffa_lora):
        run(make(net, training=WORK), clients)
    assert tree_equal(dict(pretrained.named_parameters()), before)
    frozen = {name: value for name, value in net.named_parameters() if not value.requires_grad}
    assert tree_equal(
        frozen, {"1.base.weight": before["1.weight"], "1.base.bias": before["1.bias"]}
    )


# The server's sum


def test_sums_are_divided_by_the_clients_not_by_coverage():
    net = adapted(head=())
    leaves = begun(net)
    total, expected = Sum(), {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
    for number, chosen in enumerate(([0, 2], [2, 5], [1])):
        view = Slices({"1": Drawn(torch.tensor(chosen), torch.ones(len(chosen)))}, shapes(leaves))
        payload = {name: torch.full(shape, number + 1.0) for name, shape in view.expected.items()}
        total.add(str(number), view.lift(payload, 1.0, "delta"))
        expected["1.lora_b"][:, chosen] += number + 1
        expected["1.lora_a"][chosen] += number + 1
    phase = bf.fs_lora(net, [2, 1], **ONE).phases[0]
    state, _ = phase.server.step(leaves, total, 0)
    assert close(state, {name: leaf + expected[name] / 3 for name, leaf in leaves.items()}, 1e-7)
    with pytest.raises(UpdateError, match="shape"):
        view.lift(dict(leaves), 1.0, "delta")


def test_clients_without_rows_weigh_nothing():
    for by_rows, expected in ((False, 1.0), (True, 7.0)):
        algorithm = bf.fs_lora(adapted(), [2], **ONE, by_rows=by_rows)
        assign = algorithm.phases[0].assign
        state = owned(algorithm.initial, "model")
        assert [assign(state, 0, Profile("a", rows), KEY).weight for rows in (7, 0)] == [
            expected,
            0.0,
        ]


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_change_nothing(clients, workers):
    capacity = bf.federated.dynamic(2)
    for flag in (True, False):
        algorithm = bf.fs_lora(
            adapted(), [4, 2], capacity, anchored=flag, sampling="importance", training=WORK
        )
        with bf.InProcess(clients, workers=workers) as pool:
            state = run(algorithm, pool).snapshot.state
        assert tree_equal(state, run(algorithm, clients).snapshot.state)


# What travels


def values(message):
    """Bytes of a message's leaves, without header and digest, by name."""
    leaves, _ = unseal(message, limit=1 << 24)
    return {leaf.name: len(leaf.section) for leaf in leaves}


@pytest.mark.parametrize("k", [1, 3, R])
def test_adapter_bytes_are_the_slices(k):
    algorithm = bf.fs_lora(adapted(head=()), [k], **ONE, anchored=False)
    state = owned(algorithm.initial, "model")
    assignment = algorithm.phases[0].assign(state, 0, Profile("a", 7), KEY)
    view = assignment.view
    up = values(
        assignment.up.encode(
            {name: torch.ones(shape) for name, shape in view.expected.items()}, {}, KEY
        )
    )
    down = values(assignment.down.encode(view.restrict(state), {}, KEY))
    assert up == down == {"1.lora_b": 4 * k * 16, "1.lora_a": 4 * k * 64}
    assert sum(up.values()) == k * (16 + 64) * 4


def test_the_papers_broadcast_sends_all_slices_and_says_which():
    net = adapted(head=())
    for sampling, extra in (("uniform", {}), ("importance", {"scale/1": 4 * 2})):
        algorithm = bf.fs_lora(net, [2], **ONE, anchored=False, broadcast=True, sampling=sampling)
        state = owned(algorithm.initial, "model")
        assignment = algorithm.phases[0].assign(state, 0, Profile("a", 7), KEY)
        message = assignment.down.encode(assignment.view.restrict(state), {}, KEY)
        assert (
            values(message)
            == {"model/1.lora_b": 4 * R * 16, "model/1.lora_a": 4 * R * 64, "sketch/1": 2} | extra
        )


@pytest.mark.parametrize("sampling", ["uniform", "importance"])
def test_slices_and_broadcast_train_alike(clients, sampling):
    states = [
        run(
            bf.fs_lora(
                adapted(),
                [2],
                **ONE,
                anchored=False,
                broadcast=flag,
                sampling=sampling,
                training=WORK,
            ),
            clients,
        )
        for flag in (False, True)
    ]
    assert tree_equal(states[0].snapshot.state, states[1].snapshot.state)
    down = [
        sum(row.cost.bits for row in one.history[-1].rows if row.direction == "down")
        for one in states
    ]
    assert down[1] > down[0] + 8 * 4 * len(clients) * (R - 2) * (16 + 64) - 4000


def test_top_k_goes_on_top(clients):
    runs = [
        run(bf.fs_lora(adapted(head=()), [3], **ONE, up=up, training=WORK), clients, rounds=1)
        for up in (None, bf.compress.Coded(TopK(0.5)))
    ]
    up = [
        sum(row.cost.bits for row in one.history[-1].rows if row.direction == "up") for one in runs
    ]
    assert up[1] < 0.8 * up[0]
    assert bool(runs[1].snapshot.state["model/1.lora_b"].any())


@pytest.mark.slow
def test_sketches_learn(digits, clients):
    net = bf.lora(base(), 16, KEY, alpha=16, head=["3"])
    score = {}
    for name, algorithm in {
        "sketch": bf.fs_lora(
            net,
            [8, 4],
            bf.federated.dynamic(2),
            training=bf.Training(steps=20, batch_size=16, optimiser=bf.Adam(1e-2)),
        ),
        "plain": bf.fed_lora(
            net, training=bf.Training(steps=20, batch_size=16, optimiser=bf.Adam(1e-2))
        ),
    }.items():
        model = run(algorithm, clients, rounds=12).model
        score[name] = float((model(digits[1].inputs).argmax(1) == digits[1].targets).float().mean())
        plain = merged(net, model.parameters).eval()
        assert torch.allclose(plain(digits[1].inputs[:5]), model(digits[1].inputs[:5]), atol=1e-4)
    assert min(score.values()) > 0.75


# Laws


def test_views_and_locals_keep_the_laws(digits):
    net, data = adapted(dropout=0.1), digits[0][slice(0, 24)]
    leaves = begun(net)
    for algorithm in (
        bf.fs_lora(
            net, [2], **ONE, anchored=False, sampling="importance", broadcast=True, training=WORK
        ),
        bf.hetero_lora(net, [2], **ONE, training=WORK),
    ):
        (local,), view = (
            algorithm.phases[0].local.locals,
            algorithm.phases[0].assign(leaves, 0, Profile("a", 24), KEY).view,
        )
        check_local(local, view.restrict(leaves), data)
        check_view(
            view,
            local.fit(view.restrict(leaves), {}, data, KEY, bf.federated.LocalOptions()).payload,
            local.kind,
        )
    head = {name: leaf for name, leaf in leaves.items() if not name.startswith("1.")}
    stack = {"stack/b/1": torch.randn(16, 5), "stack/a/1": torch.randn(5, 64)}
    stacking = bf.fed_stack_lora(net_at_zero := adapted(), [2], **ONE, training=WORK)
    check_local(stacking.phases[0].local, of("model", head) | stack, data)
    assert not bool(adapters(net_at_zero)["1"].lora_b.any())


# Errors


@pytest.mark.parametrize("make", [bf.fs_lora, bf.hetero_lora, bf.flex_lora, bf.fed_stack_lora])
@pytest.mark.parametrize("ranks", [[], [0], [R + 1], [2, 4], [2, 2], [3, 0]], ids=str)
def test_bad_ranks_are_errors(make, ranks):
    with pytest.raises(ArgumentError, match="ranks"):
        make(adapted(), ranks, **ONE)


@pytest.mark.parametrize("make", [partial(bf.fs_lora, ranks=[2], **ONE), bf.fed_lora, bf.ffa_lora])
def test_networks_without_adapters_are_refused(make):
    with pytest.raises(ArgumentError, match="adapters of one rank"):
        make(base())


def test_other_bad_arguments_are_errors():
    with pytest.raises(ArgumentError, match="sampling"):
        bf.fs_lora(adapted(), [2], **ONE, sampling="greedy")
    with pytest.raises(UpdateError, match="stack"):
        Refactored(("1",), 2).step({}, Sum(), 0)
    net = copy.deepcopy(adapted())
    with torch.no_grad():
        net.get_submodule("1").lora_b.fill_(1.0)
    with pytest.raises(ArgumentError, match="zero"):
        bf.fed_stack_lora(net, [2], **ONE)
    assert cut_slices({"x": torch.ones(1)}, {"1": torch.tensor([0])}).keys() == {"x"}

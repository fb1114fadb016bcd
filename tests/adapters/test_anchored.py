"""Anchored sketches, division by coverage and server momentum of adapters: laws of what is trained,
sent and added.
"""

from functools import partial

import pytest
import torch
from torch import nn

import bayesfed as bf
from bayesfed.algorithms.lora.sketches import Slices, merged_slices
from bayesfed.algorithms.lora.slices import BITS, coarse, cut_slices, fine, others
from bayesfed.errors import ArgumentError
from bayesfed.federated.core.owners import of
from bayesfed.federated.core.protocols import Profile
from bayesfed.federated.core.sums import Sum
from bayesfed.models import Drawn, merged
from bayesfed.testing import check_local, check_view
from bayesfed.trees import shapes
from tests.adapters.adapter_pieces import KEY, ONE, WORK, R, adapted, begun, close, run
from tests.conftest import tree_equal

MOMENTUM = bf.FedAvgM(1.0, 0.5)
UNLIKE = [
    bf.fs_lora,
    partial(bf.fs_lora, anchored=False, by_coverage=True),
    bf.hetero_lora,
    bf.flex_lora,
    bf.fed_stack_lora,
]


def first(algorithm):
    (local,) = algorithm.phases[0].local.locals
    return local


def named(leaves, chosen, **rest):
    return Slices(
        {"1": Drawn(torch.tensor(chosen), torch.ones(len(chosen)))},
        shapes(leaves),
        **{"named": True, **rest},
    )


def anchored(net, k=2, **rest):
    return bf.fs_lora(net, [k], **ONE, anchored=True, **{"training": WORK, **rest})


# What a client trains


def test_anchored_slices_train_as_those_of_the_whole_network_do(digits):
    net, data, chosen = adapted(), digits[0][:32], [1, 4]
    leaves, rate = begun(net), 0.1
    whole = {name: leaf.clone() for name, leaf in leaves.items()}
    for _ in range(3):
        grown = {name: leaf.requires_grad_() for name, leaf in whole.items()}
        loss = nn.functional.cross_entropy(
            torch.func.functional_call(net, grown, (data.inputs,)), data.targets
        )
        steps = dict(zip(grown, torch.autograd.grad(loss, list(grown.values())), strict=True))
        outside = [j for j in range(R) if j not in chosen]
        steps["1.lora_b"][:, outside], steps["1.lora_a"][outside] = 0.0, 0.0
        whole = {name: (leaf - rate * steps[name]).detach() for name, leaf in whole.items()}
    view = named(leaves, chosen, broadcast=True)
    local = first(
        anchored(net, training=bf.Training(steps=3, batch_size=None, optimiser=bf.Sgd(rate)))
    )
    before = net.get_submodule("1").base.weight.clone()
    fit = local.fit(view.restrict(leaves), {}, data, KEY, bf.federated.LocalOptions())
    assert shapes(fit.payload) == view.expected
    assert close(
        view.lift(fit.payload, 1.0, "delta").total,
        {name: leaf - leaves[name] for name, leaf in whole.items()},
    )
    assert torch.equal(net.get_submodule("1").base.weight, before)


def test_the_mean_of_anchored_steps_is_the_whole_step_and_of_printed_ones_is_not(digits):
    net, data = adapted(head=()), digits[0][:32]
    leaves, distances = begun(net), {}
    for flag in (True, False):
        make = partial(
            bf.fs_lora,
            net,
            **ONE,
            anchored=flag,
            training=bf.Training(steps=1, batch_size=None, optimiser=bf.Sgd(0.1)),
        )
        whole = first(make([R])).fit(leaves, {}, data, KEY, bf.federated.LocalOptions()).payload
        views = [
            named(leaves, chosen, broadcast=flag, named=flag) for chosen in ([0, 3], [1, 4], [2, 5])
        ]
        fits = [
            view.lift(
                first(make([2]))
                .fit(view.restrict(leaves), {}, data, KEY, bf.federated.LocalOptions())
                .payload,
                1.0,
                "delta",
            )
            for view in views
        ]
        mean = {name: sum(fit.total[name] for fit in fits) for name in leaves}
        distances[flag] = max(
            float((mean[name] / (1 if flag else R / 2) - leaf).norm() / leaf.norm())
            for name, leaf in whole.items()
        )
    assert distances[True] < 1e-4
    assert distances[False] > 0.1


# What travels


def test_slices_that_are_not_trained_travel_in_four_bits(clients):
    leaves = begun(net := adapted(head=()))
    view = anchored(net, 2).phases[0].assign(leaves, 3, Profile("a", 7), KEY).view
    message = view.restrict(leaves)
    sizes = {name: leaf.numel() * leaf.element_size() for name, leaf in message.items()}
    rest = R - 2
    assert sizes.pop("model/1.lora_b") + sizes.pop("model/1.lora_a") == 4 * 2 * (16 + 64)
    wanted = {
        "codes/1.lora_b": rest * 16 // 2,
        "codes/1.lora_a": rest * 64 // 2,
        "ranges/1.lora_b": 8 * rest,
        "ranges/1.lora_a": 8 * rest,
    }
    assert sizes == wanted
    down = [
        run(anchored(net, 2, broadcast=flag), clients, rounds=1).bits("down")
        for flag in (False, True)
    ]
    assert down[1] > 1.3 * down[0]


@pytest.mark.parametrize("axis", [0, 1])
def test_coarse_slices_are_off_by_half_a_level_at_most(axis):
    leaf = torch.randn(5, 7, generator=KEY.generator())
    leaf.select(axis, 2).zero_()
    codes, ranges = coarse(leaf, axis)
    assert (codes.dtype, len(codes), ranges.shape) == (torch.uint8, 18, (2, leaf.shape[axis]))
    back = fine(codes, ranges, leaf.shape[1 - axis], axis)
    level = (leaf.amax(1 - axis) - leaf.amin(1 - axis)) / (2**BITS - 1)
    assert bool(((back - leaf).abs().amax(1 - axis) <= 0.51 * level).all())
    assert not bool(back.select(axis, 2).any())


def test_coarse_anchors_are_those_of_whole_adapters_but_for_rounding(digits):
    net, data = adapted(), digits[0][:24]
    leaves, local = begun(net, 1), first(anchored(net, 2))
    told, whole = (
        named(leaves, [1, 5], named=False, anchored=True),
        named(leaves, [1, 5], broadcast=True),
    )
    rounded = dict(leaves)
    for name, axis in (("1.lora_b", 1), ("1.lora_a", 0)):
        rest = others(torch.tensor([1, 5]), R)
        kept = leaves[name].index_select(axis, rest)
        rounded[name] = leaves[name].index_copy(
            axis, rest, fine(*coarse(kept, axis), kept.shape[1 - axis], axis)
        )
    fits = [
        local.fit(view.restrict(tree), {}, data, KEY, bf.federated.LocalOptions()).payload
        for view, tree in ((told, leaves), (whole, rounded))
    ]
    assert close(*fits, 1e-5)


def test_anchored_runs_go_on_from_a_snapshot_and_clients_keep_nothing(clients):
    algorithm = bf.fs_lora(
        adapted(dropout=0.1), [R, 2], bf.federated.dynamic(2), anchored=True, training=WORK
    )
    begin = run(algorithm, clients, rounds=2)
    assert tree_equal(
        run(algorithm, clients, rounds=3, resume=begin.snapshot).snapshot.state,
        run(algorithm, clients, rounds=3).snapshot.state,
    )
    assert not any(begin.snapshot.memories.values())


def test_anchored_views_and_locals_keep_the_laws(digits):
    net, data = adapted(dropout=0.1), digits[0][:24]
    leaves, algorithm = (
        begun(net),
        anchored(adapted(dropout=0.1), 2, sampling="importance", broadcast=True),
    )
    local, view = (
        first(algorithm),
        algorithm.phases[0].assign(leaves, 0, Profile("a", 24), KEY).view,
    )
    check_local(local, view.restrict(leaves), data)
    check_view(
        view,
        local.fit(view.restrict(leaves), {}, data, KEY, bf.federated.LocalOptions()).payload,
        local.kind,
    )


# A that is frozen


def test_with_a_frozen_all_slices_are_ffa_lora_bit_for_bit_and_some_are_those_of_the_whole(
    clients, digits
):
    net, data = adapted(), digits[0][:32]
    make = partial(anchored, net, train_a=False)
    whole = run(bf.ffa_lora(net, training=WORK), clients).snapshot.state
    for broadcast in (False, True):
        assert tree_equal(run(make(R, broadcast=broadcast), clients).snapshot.state, whole)
    leaves = {name: leaf for name, leaf in begun(net, 1).items() if not name.endswith("lora_a")}
    # One step of a linear model's B, at the network's own A: each column's step is that of the
    # whole.
    step = bf.Training(steps=1, batch_size=None, optimiser=bf.Sgd(0.1))
    every = (
        bf.ffa_lora(net, training=step)
        .phases[0]
        .local.fit(leaves, {}, data, KEY, bf.federated.LocalOptions())
        .payload
    )
    some, cut = first(make(2, training=step)), named(leaves, [1, 4], broadcast=True)
    fitted = some.fit(cut.restrict(leaves), {}, data, KEY, bf.federated.LocalOptions()).payload
    assert shapes(fitted) == cut.expected
    assert torch.allclose(fitted["1.lora_b"], every["1.lora_b"][:, [1, 4]], atol=1e-6)
    # With codes for the other slices, of which A does not travel.
    told = named(leaves, [1, 4], anchored=True).restrict(leaves)
    assert not any("lora_a" in name for name in told)
    assert torch.allclose(
        some.fit(told, {}, data, KEY, bf.federated.LocalOptions()).payload["1.lora_b"],
        fitted["1.lora_b"],
        atol=2e-3,
    )
    assert run(make(2), clients).bits("up") < 0.65 * run(anchored(net, 2), clients).bits("up")
    with pytest.raises(ArgumentError, match="train_a"):
        bf.fs_lora(net, [2], **ONE, anchored=False, train_a=False)


# The server's sum


def test_sums_may_be_divided_by_those_that_had_a_slice():
    net = adapted()
    leaves, total = begun(net), Sum()
    for number, chosen in enumerate(([0, 2], [2, 5])):
        view = Slices(
            {"1": Drawn(torch.tensor(chosen), torch.ones(2))}, shapes(leaves), by_coverage=True
        )
        total.add(
            str(number),
            view.lift(
                {name: torch.full(shape, number + 1.0) for name, shape in view.expected.items()},
                1.0,
                "delta",
            ),
        )
    state, _ = (
        bf.fs_lora(net, [2], **ONE, anchored=False, by_coverage=True)
        .phases[0]
        .server.step(leaves, total, 0)
    )
    moved = {name: leaf - leaves[name] for name, leaf in state.items()}
    assert torch.allclose(
        moved["1.lora_a"],
        torch.tensor([1.0, 0.0, 1.5, 0.0, 0.0, 2.0])[:, None].expand(R, 64),
        atol=1e-5,
    )
    assert torch.allclose(moved["3.bias"], torch.full((10,), 1.5), atol=1e-5)
    with pytest.raises(ArgumentError, match="by_coverage"):
        bf.fs_lora(net, [2], **ONE, anchored=True, by_coverage=True)


# Server momentum


@pytest.mark.parametrize("make", UNLIKE)
def test_momentum_zero_is_the_method_itself_and_momentum_changes_it(clients, make):
    algorithm = make(adapted(), [R, 2], bf.fixed(sorted(clients), 2), training=WORK)
    plain, zero, carried = (
        run(one, clients, rounds=3).snapshot.state
        for one in (
            algorithm,
            *(bf.server_optimised(algorithm, bf.FedAvgM(1.0, momentum)) for momentum in (0.0, 0.5)),
        )
    )
    assert tree_equal({name: zero[name] for name in plain}, plain)
    assert not torch.equal(carried["model/3.weight"], plain["model/3.weight"])
    assert all(bool(torch.isfinite(leaf).all()) for leaf in carried.values())


@pytest.mark.parametrize("make", [bf.flex_lora, bf.fed_stack_lora])
def test_momentum_of_products_is_that_of_the_merged_weights(clients, make):
    """Of one client with all slices, whose products are never truncated: the weights move by their
    change and half of their last move.
    """
    net = bf.lora(
        bf.mlp([64, 16, 10], bf.Key(0, "net")),
        16,
        KEY,
        where=lambda name, module: name == "1.weight",
    )
    algorithm = bf.server_optimised(make(net, [16], **ONE, training=WORK), MOMENTUM)
    name = max(clients, key=lambda name: len(clients[name]))
    weights = []
    for count in (1, 2, 3):
        model = run(algorithm, {name: clients[name]}, rounds=count).model
        tree = {
            leaf: value
            for leaf, value in model.parameters.items()
            if leaf in dict(net.named_parameters())
        }
        weights.append(merged(net, tree).get_parameter("1.weight"))
    plain = make(net, [16], **ONE, training=WORK)
    last = run(algorithm, {name: clients[name]}, rounds=2).snapshot
    alone = {
        leaf: value
        for leaf, value in last.state.items()
        if leaf.startswith(("model/", "stack/", "delta/"))
    }
    assert len(alone) < len(last.state)
    after = _step_without_momentum(plain, alone, clients[name], name)
    moved = weights[2] - merged(
        net, {leaf: value for leaf, value in after.items() if leaf in dict(net.named_parameters())}
    ).get_parameter("1.weight")
    assert torch.allclose(moved, 0.5 * (weights[1] - weights[0]), atol=1e-4)


def _step_without_momentum(algorithm, state, data, name):
    """The model after one more round of one client, by the plain method from a given state."""
    phase = algorithm.phases[0]
    state, _ = phase.scope.parted(state)
    key = bf.Key(0, "train", 2, name)
    given = phase.assign(state, 2, Profile(name, len(data)), key)
    # Without the memory of the client all of the state is sent.
    tree = phase.server.publish(state, 2, None) if hasattr(phase.server, "publish") else state
    fit = phase.local.fit(given.view.restrict(tree), {}, data, key.child("fit"), given.options)
    total = phase.reducer()
    total.add(name, given.view.lift(fit.payload, given.weight, phase.local.kind))
    after, _ = phase.server.step(state, total, 2)
    return algorithm.predictor(of(phase.owner, after)).parameters


def test_clients_that_missed_a_stack_are_sent_delta_and_velocity(clients):
    net, half = adapted(), len(clients) // 2

    def in_halves(round, names, key):
        return sorted(names)[:half] if round % 3 == 1 else sorted(names)[half:]

    algorithm = bf.server_optimised(
        bf.fed_stack_lora(net, [4, 2], bf.fixed(sorted(clients), 2), training=WORK), MOMENTUM
    )
    done = run(algorithm, clients, rounds=6, sampler=in_halves)
    state, scale = done.snapshot.state, net.get_submodule("1").scale
    memory = done.snapshot.memories[sorted(clients)[-1]]
    velocity = (state["stack/b/1"] * scale) @ state["stack/a/1"] + 0.5 * memory["velocity/1"]
    assert torch.allclose(velocity, state["velocity/1"], atol=1e-6)
    assert torch.allclose(memory["delta/1"] + velocity, state["delta/1"], atol=1e-6)
    again = run(algorithm, clients, rounds=3, sampler=in_halves)
    assert tree_equal(
        run(algorithm, clients, rounds=6, sampler=in_halves, resume=again.snapshot).snapshot.state,
        done.snapshot.state,
    )


def test_products_take_momentum_alone():
    for make in (bf.flex_lora, bf.fed_stack_lora):
        with pytest.raises(ArgumentError, match="momentum of products"):
            bf.server_optimised(make(adapted(), [2], **ONE), bf.FedAdam())


def test_what_is_merged_is_the_rest():
    net = adapted()
    leaves, layer = begun(net), net.get_submodule("1")
    rest = others(torch.tensor([2, 4]), R)
    assert rest.tolist() == [0, 1, 3, 5]
    wanted = (
        layer.base.weight + layer.scale * leaves["1.lora_b"][:, rest] @ leaves["1.lora_a"][rest]
    )
    assert torch.allclose(
        merged_slices(net, cut_slices(leaves, {"1": rest}), ["1"])["1.base.weight"],
        wanted,
        atol=1e-6,
    )
    assert merged_slices(net, {}, ["1"]) == {}

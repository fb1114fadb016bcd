"""What FSLoRA is compared with: adapters of unlike rank that are padded, truncated or stacked."""

import pytest
import torch

import bayesfed as bf
from bayesfed.algorithms.lora import Refactored, Slices, Stack
from bayesfed.algorithms.lora.sketches import leading
from bayesfed.algorithms.lora.stacking import refactored
from bayesfed.federated.core.owners import owned
from bayesfed.federated.core.protocols import Profile
from bayesfed.federated.core.sums import Sum
from bayesfed.models import (
    merged,
    resized,
)
from bayesfed.models.adapters.lora import based
from bayesfed.trees import shapes, trainable
from tests.adapters.adapter_pieces import KEY, ONE, WORK, R, adapted, base, begun, close, run
from tests.conftest import tree_equal


def test_hetero_lora_of_equal_ranks_and_weights_is_federated_lora(clients):
    plain = run(bf.fed_lora(adapted(), training=WORK), clients)
    ours = run(bf.hetero_lora(adapted(), [R], **ONE, by_norm=False, training=WORK), clients)
    assert close(ours.snapshot.state, plain.snapshot.state)


def test_hetero_lora_truncates_pads_and_weighs_by_norm():
    net = adapted(head=())
    algorithm = bf.hetero_lora(net, [R, 2], bf.fixed(["a", "b"], 2))
    phase, leaves, total = algorithm.phases[0], begun(net), Sum()
    norms, sums = [], {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
    for name, factor in (("a", 1.0), ("b", -2.0)):
        view = phase.assign(leaves, 0, Profile(name, 7), KEY).view
        sent = {leaf: factor * value for leaf, value in view.restrict(leaves).items()}
        k = R if name == "a" else 2
        assert torch.equal(view.restrict(leaves)["1.lora_b"], leaves["1.lora_b"][:, :k])
        norms.append(float((sent["1.lora_b"] @ sent["1.lora_a"]).norm()))
        sums["1.lora_b"][:, :k] += norms[-1] * sent["1.lora_b"]
        sums["1.lora_a"][:k] += norms[-1] * sent["1.lora_a"]
        total.add(name, view.lift(sent, 1.0, "value"))
    state, _ = phase.server.step(leaves, total, 0)
    assert close(state, {name: leaf / sum(norms) for name, leaf in sums.items()})
    assert list(algorithm.sizes) == ["6", "2"]


def test_flex_lora_at_full_rank_is_the_mean_product():
    net = bf.lora(base(), 16, KEY, where=lambda name, module: name == "1.weight")
    layers, server, stack = ("1",), Refactored(("1",), 16), Stack(("1",))
    mean = torch.zeros(16, 64)
    for number, k in enumerate((16, 9, 4)):
        sent = begun(resized(net, k), number)
        view = Slices(leading(layers, k), shapes(sent), stacked=True)
        stack.add(str(number), view.lift(sent, number + 1.0, "factors"))
        mean += (number + 1) / 6 * sent["1.lora_b"] @ sent["1.lora_a"]
    state, info = server.step(trainable(net), stack, 0)
    assert torch.allclose(state["1.lora_b"] @ state["1.lora_a"], mean, atol=1e-5)
    assert info["svd_error"] < 1e-3
    u, s, vh = torch.linalg.svd(mean)
    cut, info = Refactored(layers, 5).step(trainable(resized(net, 5)), stack, 0)
    assert torch.allclose(cut["1.lora_b"] @ cut["1.lora_a"], u[:, :5] * s[:5] @ vh[:5], atol=1e-5)
    assert info["svd_error"] == pytest.approx(float(s[5:].norm() / s.norm()), abs=1e-3)


def test_refactored_adapters_can_all_be_trained():
    b, a = refactored(torch.randn(16, 2), torch.randn(2, 64), 6)
    assert b.shape == (16, 6)
    assert torch.allclose(a @ a.T, torch.eye(6), atol=1e-5)
    b, a = refactored(torch.randn(3, 2), torch.randn(2, 4), 6)
    assert (b.shape, a.shape) == ((3, 6), (6, 4))
    assert not bool(b[:, 3:].any())


def test_flex_lora_of_one_client_keeps_its_product(clients):
    name = max(clients, key=lambda name: len(clients[name]))
    alone = {name: clients[name]}
    plain, ours = (
        owned(run(algorithm, alone, rounds=1).snapshot.state, "model")
        for algorithm in (
            bf.fed_lora(adapted(), training=WORK),
            bf.flex_lora(adapted(), [R], **ONE, training=WORK),
        )
    )
    assert torch.allclose(
        ours["1.lora_b"] @ ours["1.lora_a"], plain["1.lora_b"] @ plain["1.lora_a"], atol=1e-6
    )
    assert torch.allclose(ours["3.weight"], plain["3.weight"], atol=1e-6)


def test_a_stack_of_one_client_is_its_adapter_merged(clients, digits):
    name = max(clients, key=lambda name: len(clients[name]))
    net = adapted()
    algorithm = bf.fed_stack_lora(net, [R], **ONE, training=WORK)
    done = run(algorithm, {name: clients[name]}, rounds=1)
    local = algorithm.phases[0].local
    state, key = algorithm.initial, bf.Key(0, "train", 0, name, "fit")
    fit = local.fit(state, {}, clients[name], key, bf.federated.LocalOptions())
    plain, inputs = (
        merged(net, fit.payload).eval(),
        digits[1].inputs[:20],
    )
    assert torch.allclose(done.model(inputs), plain(inputs), atol=1e-5)
    assert not torch.allclose(done.model(inputs), base().eval()(inputs), atol=1e-3)


def test_stacks_are_exact_and_the_delta_is_apart(clients):
    net = adapted()
    capacity = bf.fixed(sorted(clients), 2)
    algorithm = bf.fed_stack_lora(net, [4, 2], capacity, training=WORK)
    done = run(algorithm, clients, rounds=3)
    state, memories = done.snapshot.state, done.snapshot.memories.values()
    assert torch.equal(net.get_submodule("1").base.weight, base().get_submodule("1").weight)
    assert state["stack/b/1"].shape == (16, done.history[-1].server["stacked_slices"])
    # What a client held in the last round, and the stack that ended it.
    merge = algorithm.phases[0].server
    for memory in memories:
        held = (
            memory["delta/1"]
            + (state["stack/b/1"] * net.get_submodule("1").scale) @ state["stack/a/1"]
        )
        assert torch.allclose(held, state["delta/1"], atol=1e-6)
    heard, missed = (merge.publish(state, 3, version) for version in (2, 1))
    assert "delta/1" not in heard
    assert "stack/a/1" not in missed
    assert (
        based(net, owned(state, "delta"))["1.base.weight"].data_ptr()
        != net.get_submodule("1").base.weight.data_ptr()
    )


def test_clients_that_missed_a_stack_are_sent_the_delta(clients):
    net, half = adapted(), len(clients) // 2

    def in_halves(round, names, key):
        return sorted(names)[:half] if round % 2 else sorted(names)[half:]

    algorithm = bf.fed_stack_lora(net, [4, 2], bf.fixed(sorted(clients), 2), training=WORK)
    done = run(algorithm, clients, rounds=4, sampler=in_halves)
    state, scale = done.snapshot.state, net.get_submodule("1").scale
    for name in sorted(clients)[:half]:
        held = (
            done.snapshot.memories[name]["delta/1"]
            + (state["stack/b/1"] * scale) @ state["stack/a/1"]
        )
        assert torch.allclose(held, state["delta/1"], atol=1e-6)
    first = run(algorithm, clients, rounds=2, sampler=in_halves)
    assert tree_equal(
        run(algorithm, clients, rounds=4, sampler=in_halves, resume=first.snapshot).snapshot.state,
        done.snapshot.state,
    )


def test_methods_without_a_head_run(clients):
    capacity = bf.fixed(sorted(clients), 2)
    for make in (bf.fs_lora, bf.hetero_lora, bf.flex_lora, bf.fed_stack_lora):
        done = run(make(adapted(head=()), [4, 2], capacity, training=WORK), clients)
        assert all(bool(torch.isfinite(leaf).all()) for leaf in done.snapshot.state.values())


def test_ffa_lora_trains_and_sends_half(clients):
    net = adapted(head=())
    algorithm = bf.ffa_lora(net, training=WORK)
    assert algorithm.initial.keys() == {"model/1.lora_b"}
    done = run(algorithm, clients)
    assert bool(done.snapshot.state["model/1.lora_b"].any())
    assert net.get_submodule("1").lora_a.requires_grad
    assert done.algorithm.name == "ffa_lora"

"""Adapters rewritten as ``(U S, V^T)``: laws of the coordinates, of draws, and of FSLoRA with
them.
"""

from functools import partial
from itertools import accumulate

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

import bayesfed as bf
from bayesfed.algorithms.lora.rewriting import put_back, put_rewritten, rewritten
from bayesfed.errors import ArgumentError
from bayesfed.federated.core.protocols import Profile
from bayesfed.models import adapters, importance_sketch, slice_norms
from bayesfed.models.adapters.lora_layers import LoraLinear
from bayesfed.testing import check_view
from bayesfed.trees import trainable
from tests.adapters.adapter_pieces import KEY, ONE, WORK, R, adapted, begun, run
from tests.conftest import tree_equal

# (m, r, n): r below both, above n, above m, above both.
SHAPES = [(10, 4, 7), (9, 6, 3), (3, 6, 9), (3, 6, 4)]


def drawn(shape, name="x"):
    return torch.randn(shape, generator=KEY.child(name).generator(), dtype=torch.float64)


@pytest.mark.parametrize(("m", "r", "n"), SHAPES)
def test_rewriting_keeps_the_product_and_changes_of_it(m, r, n):
    b, a = drawn((m, r), "b"), drawn((r, n), "a")
    basis = rewritten(b, a)
    assert torch.allclose(basis.b @ basis.a, b @ a, atol=1e-12)
    q = min(r, n)
    assert torch.allclose(basis.a[:q] @ basis.a[:q].mT, torch.eye(q).double(), atol=1e-12)
    values = torch.linalg.svdvals(b @ a)[:q]
    norms = slice_norms(basis.b, basis.a)
    assert torch.allclose(norms[: len(values)], values[: len(norms)], atol=1e-12)
    assert not bool((norms[len(values) :] > 1e-12).any())
    db, da = drawn((m, r), "db"), drawn((r, n), "da")
    db[:, q:], da[q:] = 0.0, 0.0
    back = put_back({"1.lora_b": db, "1.lora_a": da}, {"1": basis})
    moved = (b + back["1.lora_b"]) @ (a + back["1.lora_a"])
    assert torch.allclose(moved, (basis.b + db) @ (basis.a + da), atol=1e-10)


def test_the_mean_of_sketches_by_singular_values_is_the_product():
    basis, k, count = rewritten(drawn((10, 6), "b"), drawn((6, 8), "a")), 2, 4000
    norms, product = slice_norms(basis.b, basis.a), basis.b @ basis.a
    mean, square = torch.zeros_like(product), torch.zeros_like(product)
    for number in range(count):
        draw = importance_sketch(norms, k, KEY.child("draw", number), floor=0.1)
        one = (basis.b[:, draw.indices] * draw.multipliers) @ basis.a[draw.indices]
        mean, square = mean + one / count, square + one.square() / count
    slack = 5 * ((square - mean.square()) / count).sqrt()
    assert bool(((mean - product).abs() <= slack + 1e-12).all())


def test_the_default_draws_by_singular_values_and_steps_on_the_product(digits):
    net = adapted(head=())
    leaves, scale = begun(net), net.get_submodule("1").scale
    phase = bf.fs_lora(net, [2], **ONE, training=WORK).phases[0]
    assign, basis = phase.assign, rewritten(leaves["1.lora_b"], leaves["1.lora_a"])
    view = assign(leaves, 0, Profile("a", 7), KEY).view
    assert view.bases["1"] is assign(leaves, 0, Profile("b", 7), KEY).view.bases["1"]
    sent, (chosen,) = view.restrict(leaves), view.indices.values()
    assert torch.equal(sent["model/1.lora_b"], basis.b[:, chosen])
    counts = torch.zeros(R)
    for number in range(400):
        one = assign(leaves, 0, Profile("a", 7), KEY.child(number)).view.indices["1"]
        counts[one] += 1
    assert counts[0] > 3 * counts[-1] > 0
    (local,) = phase.local.locals
    fit = local.fit(sent, {}, digits[0][:32], KEY, bf.federated.LocalOptions())
    change = view.lift(fit.payload, 1.0, "delta").total
    whole = put_rewritten(leaves, view.bases)
    b, a = whole["1.lora_b"].clone(), whole["1.lora_a"].clone()
    b[:, chosen] += fit.payload["1.lora_b"]
    a[chosen] += fit.payload["1.lora_a"]
    moved = (leaves["1.lora_b"] + change["1.lora_b"]) @ (leaves["1.lora_a"] + change["1.lora_a"])
    assert torch.allclose(scale * moved, scale * b @ a, atol=1e-5)
    check_view(view, fit.payload, "delta")


def test_without_a_choice_of_slices_nothing_is_rewritten(clients):
    net = adapted()
    whole = run(bf.fed_lora(net, training=WORK), clients).snapshot.state
    made = bf.fs_lora(net, [R], **ONE, training=WORK, sampling="singular")
    assert tree_equal(run(made, clients).snapshot.state, whole)
    for own in ({"anchored": False}, {"train_a": False}):
        left, right = (
            run(bf.fs_lora(net, [2], **ONE, training=WORK, **own, **more), clients)
            for more in ({}, {"sampling": "uniform"})
        )
        assert tree_equal(left.snapshot.state, right.snapshot.state)


@pytest.mark.parametrize("flag", [True, False])
def test_rewritten_runs_go_on_from_a_snapshot(clients, flag):
    algorithm = bf.server_optimised(
        bf.fs_lora(
            adapted(rank=20),
            [8, 2],
            bf.federated.dynamic(2),
            anchored=flag,
            sampling="singular",
            training=WORK,
        ),
        bf.FedAvgM(1.0, 0.5),
    )
    begin = run(algorithm, clients, rounds=2)
    done = run(algorithm, clients, rounds=3).snapshot.state
    assert tree_equal(run(algorithm, clients, rounds=3, resume=begin.snapshot).snapshot.state, done)
    assert all(bool(leaf.isfinite().all()) for leaf in done.values())


def test_slices_that_are_not_trained_are_a_branch_and_leave_the_network_as_it_was(digits):
    net = adapted()
    leaves = begun(net)
    phase = bf.fs_lora(net, [2], **ONE, training=WORK).phases[0]
    (local,) = phase.local.locals
    (layer,) = adapters(local.net).values()
    seen = []
    layer.base.register_forward_hook(
        lambda module, rows, out: seen.append((module.weight, layer.untrained))
    )
    base = layer.base.weight
    view = phase.assign(leaves, 0, Profile("a", 7), KEY).view
    local.fit(view.restrict(leaves), {}, digits[0][:32], KEY, bf.federated.LocalOptions())
    assert all(weight is base and len(rest[1]()) == R - 2 for weight, rest in seen)
    assert seen
    assert layer.untrained is None


def test_a_client_holds_no_more_than_in_the_printed_mode():
    """Slices that it does not train would be seven times those that it trains."""
    net = bf.lora(bf.mlp([256] * 6 + [10], bf.Key(0, "net")), 64, bf.Key(0, "lora"))
    data = bf.Dataset(torch.randn(16, 256, generator=KEY.generator()), torch.arange(16) % 10)
    work, most = bf.Training(2, 16, bf.Adam(1e-3)), list[int]()
    for anchored in (False, True):
        phase = bf.fs_lora(
            net, [8], **ONE, anchored=anchored, sampling="uniform", training=work
        ).phases[0]
        leaves = trainable(net)
        message = phase.assign(leaves, 0, Profile("a", 16), KEY).view.restrict(leaves)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            phase.local.fit(message, {}, data, KEY, bf.federated.LocalOptions())
        events = [one for one in seen.profiler.kineto_results.events() if one.name() == "[memory]"]
        events.sort(key=lambda one: one.start_ns())
        most.append(max(accumulate(one.nbytes() for one in events)))
    assert most[1] <= 1.05 * most[0]


@pytest.mark.parametrize("bfloat16", [False, True])
@pytest.mark.parametrize("bits", [64, 32, 16])
def test_a_branch_of_made_factors_is_that_of_held_ones(bits, bfloat16):
    kind = getattr(torch, f"float{bits}")
    base = nn.Linear(7, 5).to(kind)
    layer = LoraLinear(base, torch.zeros(5, 3), torch.zeros(3, 7), 0.3)
    b, a = torch.randn(5, 4), torch.randn(4, 7)
    layer.untrained = lambda: b, lambda: a
    found = []
    for held in (False, True):
        x = torch.linspace(-1, 1, 2 * 3 * 7).reshape(2, 3, 7).to(kind).requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            if held:
                hidden = functional.linear(x.to(a.dtype), a) * layer.scale
                out = base(x) + functional.linear(hidden, b).to(base(x).dtype)
            else:
                out = layer(x)
        (out.float() ** 3).sum().backward()
        found.append((out, x.grad))
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))
    assert found[0][1].dtype == kind


def test_slices_that_cannot_be_rewritten_are_refused():
    make = partial(bf.fs_lora, adapted(), [2], **ONE, sampling="singular")
    for own in ({"train_a": False}, {"anchored": False, "by_coverage": True}):
        with pytest.raises(ArgumentError, match="sampling"):
            make(**own)

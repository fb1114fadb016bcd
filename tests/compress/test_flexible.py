"""Flexible compression: kernels over the whole update, and random rounding."""

import math

import numpy as np
import pytest
import torch

import bayesfed as bf
from bayesfed.compress import Coded, ErrorFeedback, Float, Probabilistic, TopK
from bayesfed.compress.flexible import LEVELS, Flexible
from bayesfed.compress.masks.runs import PlainMask, RunMask
from bayesfed.compress.quantisers.sparsify import Kernels
from bayesfed.compress.wire import seal, unseal
from bayesfed.errors import ArgumentError, WireError
from bayesfed.testing import check_codec
from tests.compress.quantiser_leaves import LEAVES, Words, there_and_back
from tests.compress.updates import EDGES, KEY, META, distance, fitted, power, update
from tests.support.codecs import promises
from tests.support.hostile.mutations import check_mutants, reseal

__all__ = ["fitted"]


def bound(codec):
    sent = Kernels(Probabilistic(codec.levels))

    def of(name, tree):
        leaf, kept = tree[name].detach().float(), codec.sparse(tree)[name]
        return (
            float((leaf - kept).abs().max()) + promises.bound(sent, kept) if leaf.numel() else 0.0
        )

    return of


@pytest.mark.parametrize(
    "codec",
    [
        Flexible(0.3, 4),
        Flexible(1.0, 1),
        Flexible(0.2, 1 << 24),
        Flexible(0.3, 4, mask=RunMask()),
    ],
    ids=["default", "coarse", "fine", "runs"],
)
def test_the_laws_of_codecs(codec):
    check_codec(codec, bound=bound(codec), further=EDGES)
    check_codec(ErrorFeedback(codec), bound=bound(codec), damages=20)


def test_one_threshold_for_all_kernels_of_the_update():
    """(2), by a loop."""
    tree, share = update(4), 0.15
    kernels = [tree["conv.weight"][o, i] for o in range(4) for i in range(4)]
    kernels += [entry for name in list(tree)[1:] for entry in tree[name].reshape(-1)]
    norms = sorted((float(kernel.double().norm()) for kernel in kernels), reverse=True)
    threshold = norms[math.ceil(share * len(norms)) - 1]
    sparse = Flexible(share).sparse(tree)
    expected = {name: torch.where(leaf.abs() >= threshold, leaf, 0) for name, leaf in tree.items()}
    expected["conv.weight"] = (
        tree["conv.weight"]
        * (tree["conv.weight"].double().flatten(2).norm(dim=2) >= threshold)[:, :, None, None]
    )
    assert all(torch.equal(leaf, expected[name]) for name, leaf in sparse.items())
    assert sum(int((leaf != 0).sum()) for leaf in sparse.values()) > math.ceil(
        share * len(norms)
    )  # kernels of more than an entry


def test_one_threshold_for_all_kernels_of_either_kind():
    tree = {
        "large": 10 * torch.ones(4, 5),
        "small": torch.arange(1.0, 21).reshape(4, 5) / 100,
        "conv": torch.full((2, 2, 3, 3), 0.1),
    }
    assert {name: int((leaf != 0).sum()) for name, leaf in Flexible(0.5).sparse(tree).items()} == {
        "large": 20,
        "small": 0,
        "conv": 2 * 9,
    }


@pytest.mark.parametrize("name", LEAVES)
def test_kernels_that_are_not_zero_are_sent(name):
    leaf = LEAVES[name].detach()
    assert torch.equal(there_and_back(Kernels(Float(32)), leaf), leaf.float())


def test_what_is_kept_is_unbiased_and_as_far_off_as_it_says():
    codec, tree, count = Flexible(0.3, 2, mask=PlainMask(), code=Words()), update(2), 150
    sparse = codec.sparse(tree)
    backs = [
        codec.decode(codec.encode(tree, META, KEY.child(number)), KEY.child(number))[0]
        for number in range(count)
    ]
    for name, kept in sparse.items():
        drawn = torch.stack([back[name].double() for back in backs])
        assert bool(((drawn != 0) == (kept != 0)).all())  # the mask m is the decoded leaf's
        off, exact = drawn.mean(0) - kept, Flexible(1.0, codec.levels).variance({name: kept})
        step = (
            float(kept.abs().max() - kept[kept != 0].abs().min()) / codec.levels
            if bool(kept.any())
            else 0.0
        )
        assert float(off.abs().max()) <= step * (math.log(1e8) / (2 * count)) ** 0.5 + 1e-6, (
            name
        )  # Hoeffding
        assert abs(float((off * kept.sign()).sum())) <= 5 * (exact / count) ** 0.5 + 1e-5, name
    found = np.mean([distance(tree, back) for back in backs])
    assert found == pytest.approx(codec.variance(tree), rel=0.08)


@pytest.mark.parametrize("name", ["nothing but zeros", "one magnitude"])
def test_nothing_is_lost_where_there_is_one_magnitude(name):
    back, _ = Flexible(1.0, 3).decode(Flexible(1.0, 3).encode(EDGES[name], META, KEY), KEY)
    assert all(torch.equal(leaf, back[leaf_name]) for leaf_name, leaf in EDGES[name].items())
    assert Flexible(1.0, 3).variance(EDGES[name]) == 0


def test_the_receiver_needs_neither_share_nor_levels():
    tree = update(3)
    message = Flexible(0.4, 37, mask=RunMask()).encode(tree, META, KEY)
    back, meta = Flexible(0.9, 2, mask=RunMask()).decode(message, KEY.child("another"))
    assert meta == META
    assert distance(Flexible(0.4).sparse(tree), back) < 0.05 * power(tree)


def test_the_levels_in_a_message_are_checked():
    message = Flexible(0.4, 5).encode(update(2), {}, KEY)
    leaves, _ = unseal(message)
    for levels in (0, -1, (1 << 24) + 1, 1 << 40, 2.0, True, "5"):
        with pytest.raises(WireError, match="1 to 16777216"):
            Flexible().decode(seal(leaves, {LEVELS: levels}), KEY)
    with pytest.raises(WireError, match=r"found None"):
        Flexible().decode(seal(leaves, {}), KEY)
    with pytest.raises(WireError, match="integers from -2 to 2"):
        Flexible().decode(seal(leaves, {LEVELS: 1}), KEY)
    with pytest.raises(WireError, match="not the codec's own"):
        Flexible().encode(update(2), {LEVELS: 5}, KEY)
    with pytest.raises(WireError):
        Flexible().decode(Coded().encode(update(2), META, KEY), KEY)


def test_changed_messages_are_refused_or_read_as_promised(fitted):
    codec = bf.compress.Budgeted(fitted, 0.1)
    messages = [
        codec.encode(tree, META, KEY)
        for tree in (update(2), update(3), EDGES["empty leaves"], EDGES["one magnitude"])
    ]
    tally = check_mutants(codec, messages, KEY, count=400)
    assert tally["section", "read"] + tally["promise", "read"] > 0
    with pytest.raises(WireError):
        codec.overrun_bits(messages[0][:-1] + b"x")
    with pytest.raises(WireError):
        codec.overrun_bits(reseal(messages[0][:60]))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Flexible(0), "a share above 0"),
        (lambda: Flexible(1.5), "a share above 0"),
        (lambda: Flexible(0.1, 0), "levels: expected an integer from 1"),
        (lambda: Flexible(0.1, (1 << 24) + 1), "levels: expected an integer from 1"),
    ],
)
def test_parameters_out_of_range(make, words):
    with pytest.raises(ArgumentError, match=words):
        make()


def test_whole_kernels_cost_fewer_positions_than_entries():
    """Where kernels are large as a whole, naming them is cheaper than naming entries."""
    random = KEY.child("kernels").generator()
    weight = (
        torch.randn(30, 40, 5, 5, generator=random)
        * torch.randn(30, 40, 1, 1, generator=random).exp()
    )
    kernels = Flexible(0.1, 16)
    entries = Coded(TopK(0.1, Probabilistic(16)))
    assert len(kernels.encode({"a": weight}, {}, KEY)) < 0.85 * len(
        entries.encode({"a": weight}, {}, KEY)
    )

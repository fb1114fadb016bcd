"""Flexible compression: kernels over the whole update, random rounding, the map from a size to
(rho, L), and budgets that are kept.
"""

import itertools
import json
import math
from typing import ClassVar

import numpy as np
import pytest
import torch

import bayesfed as bf
from bayesfed.compress import Cast, Coded, ErrorFeedback, Probabilistic, TopK
from bayesfed.compress.budgets import Setting, full_bits
from bayesfed.compress.budgets.fitting import _best_chain
from bayesfed.compress.flexible import LEVELS, Flexible
from bayesfed.compress.masks.runs import PlainMask, RunMask
from bayesfed.compress.quantisers.sparsify import KernelWise
from bayesfed.compress.wire import seal, unseal
from bayesfed.errors import ArgumentError, WireError
from bayesfed.keys import Key
from bayesfed.testing import check_codec
from tests.compress.quantiser_leaves import LEAVES, Words, there_and_back
from tests.support.codecs import promises
from tests.support.hostile.mutations import check_mutants, reseal

KEY = Key(0, "flexible")
META = {"client": "k", "round": 3}


def update(width, *names):
    """Layers as a CNN's, of a few scales, heavy-tailed."""
    random = KEY.child("update", *names).generator()

    def heavy(scale, *shape):
        return (
            scale
            * torch.randn(shape, generator=random)
            * torch.randn(shape, generator=random).exp()
        )

    return {
        "conv.weight": heavy(1.0, width, 4, 3, 3),
        "conv.bias": heavy(1.0, width),
        "fc.weight": heavy(0.1, 4 * width, 20 * width),
        "fc.bias": heavy(0.1, 4 * width),
        "head.weight": heavy(0.5, 10, 4 * width),
    }


EDGES = {
    "nothing but zeros": {"a": torch.zeros(4, 3, 2, 2), "b": torch.zeros(5)},
    "one magnitude": {"a": torch.full((4, 6), -0.3), "b": 0.3 * torch.ones(3, 2, 2, 2)},
    "single entries": {
        "a": torch.tensor([[2.0]]),
        "b": torch.tensor(-1.0),
        "c": torch.tensor([1e-3]),
    },
    "empty leaves": {
        "a": torch.zeros(0, 3),
        "b": torch.zeros(3, 0, 2, 2),
        "c": torch.zeros(0),
        "d": torch.tensor([1.0, -4.0]),
    },
    "zeros inside kernels": {"a": torch.eye(3).repeat(2, 3, 1, 1) * torch.arange(1.0, 4)},
    "an update": update(4),
}


def power(tree):
    return sum(float(leaf.double().square().sum()) for leaf in tree.values())


def distance(left, right):
    return sum(
        float((leaf.double() - right[name].double()).square().sum()) for name, leaf in left.items()
    )


@pytest.fixture(scope="module")
def fitted():
    return bf.compress.fit_flexible(
        [update(8, "public", number) for number in range(2)],
        KEY,
        shares=[2.0**-n for n in range(7)],
        levels=(1, 4, 16, 64),
    )


# The codec.


def bound(codec):
    sent = KernelWise(None, Probabilistic(codec.levels), dense=codec.dense)

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
        Flexible(0.3, 4, dense="row", mask=RunMask()),
    ],
    ids=["default", "coarse", "fine", "rows"],
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
    # Twelve kernels: four rows each, norms up to 0.29 and 0.40 of the last two small ones, and four
    # of the convolution, 0.3 each.
    rows = Flexible(0.5, dense="row").sparse(tree)
    assert torch.equal(rows["large"], tree["large"])
    assert rows["small"].any(1).tolist() == [False, False, False, True]
    assert rows["conv"].flatten(2).any(2).tolist() == [[True, False], [False, False]]


@pytest.mark.parametrize("name", LEAVES)
def test_kernels_that_are_not_zero_are_sent(name):
    """KernelWise(None) loses nothing."""
    leaf = LEAVES[name].detach()
    for dense in ("row", "entry"):
        back = there_and_back(KernelWise(None, dense=dense), leaf)
        assert torch.equal(back, leaf.float())
    assert promises.unbiased(KernelWise(None))
    assert there_and_back(
        KernelWise(0.25, dense="entry"), torch.arange(8.0).reshape(2, 4)
    ).tolist() == [[0, 0, 0, 0], [0, 0, 6, 7]]


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
        (lambda: Flexible(dense="column"), "dense: expected one of 'row', 'entry'"),
        (lambda: KernelWise(dense="column"), "dense: expected one of 'row', 'entry'"),
    ],
)
def test_parameters_out_of_range(make, words):
    with pytest.raises(ArgumentError, match=words):
        make()


# The map.


def test_the_map_is_monotone_and_between_its_points_a_line(fitted):
    settings = fitted.settings
    assert len(settings) > 5
    betas = np.geomspace(fitted.least / 3, fitted.most * 3, 500)
    found = [(*fitted(beta), -fitted.error(beta)) for beta in betas]
    for column in zip(*found, strict=True):
        assert all(low <= high for low, high in itertools.pairwise(column))
    low, high = next((a, b) for a, b in itertools.pairwise(settings) if a.share < b.share)
    middle = (low.beta + high.beta) / 2
    assert fitted(middle) == (
        pytest.approx((low.share + high.share) / 2),
        math.floor((low.levels + high.levels) / 2),
    )
    assert all(fitted(row.beta) == (row.share, row.levels) for row in settings)
    assert fitted(fitted.least / 3) == settings[0][1:3]
    assert fitted(3 * fitted.most) == settings[-1][1:3]


def test_the_sizes_are_those_of_messages_and_the_errors_real(fitted):
    public = [update(8, "public", number) for number in range(2)]
    for row in fitted.settings:
        codec = Flexible(row.share, row.levels)
        messages = [codec.encode(tree, {}, KEY) for tree in public]
        assert row.beta == pytest.approx(
            np.mean(
                [
                    8 * len(message) / full_bits(tree)
                    for message, tree in zip(messages, public, strict=True)
                ]
            )
        )
        errors = [
            distance(tree, codec.decode(message, KEY)[0]) / power(tree)
            for message, tree in zip(messages, public, strict=True)
        ]
        assert np.mean(errors) == pytest.approx(row.error, rel=0.15)
        assert row.error < 1


def test_the_chain_is_the_best_of_all():
    random = KEY.child("chain").numpy()
    for _ in range(20):
        shares, levels = sorted(random.random(2)), (1, 4, 9)
        found = [
            Setting(float(random.random()), share, count, float(1.2 * random.random()))
            for share in shares
            for count in levels
        ]
        chains = [
            chain
            for number in range(1, 7)
            for chain in itertools.combinations(sorted(found), number)
            if is_chain(chain)
        ]
        assert area(_best_chain(found), found) == pytest.approx(
            min(area(chain, found) for chain in chains)
        )
        assert is_chain(_best_chain(found))


def is_chain(chain):
    return all(
        a.beta < b.beta and a.share <= b.share and a.levels <= b.levels and a.error > b.error
        for a, b in itertools.pairwise(chain)
    )


def area(chain, found):
    last, total = math.log(max(row.beta for row in found)), 0.0
    for a, b in itertools.pairwise(chain):
        total += (math.log(b.beta) - math.log(a.beta)) * math.log(a.error)
    return total + (last - math.log(chain[-1].beta)) * math.log(chain[-1].error)


def test_the_map_travels_as_json_and_prints(fitted):
    again = bf.compress.FlexibleMap(
        tuple(Setting(*row) for row in json.loads(json.dumps(fitted.settings)))
    )
    assert again == fitted
    assert hash(again) == hash(fitted)
    lines = str(fitted).splitlines()
    assert lines[0].split() == ["beta", "rho", "L", "error"]
    assert len(lines) == 1 + len(fitted.settings)


@pytest.mark.parametrize(
    "second",
    [
        (0.1, 0.3, 5, 0.4),
        (0.3, 0.1, 5, 0.4),
        (0.3, 0.3, 3, 0.4),
        (0.3, 0.3, 5, 0.6),
        (0.3, 1.3, 5, 0.4),
        (0.3, 0.3, 0, 0.1),
    ],
)
def test_maps_out_of_order_are_refused(second):
    with pytest.raises(ArgumentError):
        bf.compress.FlexibleMap((Setting(0.2, 0.2, 4, 0.5), Setting(*second)))


def test_updates_that_nothing_can_be_fitted_on():
    zero = EDGES["nothing but zeros"]
    for updates, more in (
        ([], {}),
        ([zero], {}),
        ([update(1)], {"shares": ()}),
        ([update(1)], {"levels": ()}),
    ):
        with pytest.raises(ArgumentError, match="some of each"):
            bf.compress.fit_flexible(updates, KEY, **more)
    few = {"shares": (0.5, 1.0), "levels": (4,)}
    assert bf.compress.fit_flexible([zero, update(1)], KEY, **few) == bf.compress.fit_flexible(
        [update(1)], KEY, **few
    )
    with pytest.raises(WireError):
        bf.compress.fit_flexible([{"a": torch.tensor([math.nan])}], KEY)
    for beta in (0, -1, math.nan, math.inf):
        with pytest.raises(ArgumentError, match="beta: expected a positive"):
            bf.compress.fit_flexible([update(1)], KEY, **few)(beta)


# Budgets.


class Counting(Flexible):
    """Flexible that says what it was encoded at."""

    seen: ClassVar = []

    def encode(self, tree, meta, key):
        message = super().encode(tree, meta, key)
        self.seen.append((self.share, self.levels, 8 * len(message)))
        return message


@pytest.mark.parametrize("width", [4, 8, 12])
def test_messages_keep_to_their_budgets(fitted, width):
    for number, beta in enumerate(np.geomspace(0.02, 0.3, 12)):
        tree, codec = update(width, "client", number), bf.compress.Budgeted(fitted, float(beta))
        message = codec.encode(tree, META, KEY.child(number))
        if beta * full_bits(tree) < 8 * 600:
            continue  # little more than the header
        assert 8 * len(message) <= beta * full_bits(tree)
        assert codec.overrun_bits(message) == 0
        if beta < fitted.most and width <= 8:  # a larger model has a smaller header
            assert 8 * len(message) > 0.75 * beta * full_bits(tree)
        back, meta = codec.decode(message, KEY.child(number))
        assert meta == META
        # Unlike updates, and some budgets used to three quarters.
        assert distance(tree, back) / power(tree) < 2 * fitted.error(0.75 * float(beta)) + 0.05


def flat(width):
    """An update that costs more than those that were fitted: all entries alike, so there is nothing
    to leave out nor to code well.
    """
    return {name: leaf.sign() * (2 + leaf.tanh()) for name, leaf in update(width, "flat").items()}


def test_a_message_too_large_is_encoded_again(fitted):
    tried = 0
    for tree, beta in itertools.product(
        (flat(10), flat(8), update(6, "client")), (0.05, 0.08, 0.12)
    ):
        Counting.seen = []
        codec = bf.compress.Budgeted(fitted, beta, Counting())
        message = codec.encode(tree, META, KEY)
        assert len(Counting.seen) <= codec.tries
        assert Counting.seen[0][:2] == fitted(beta)
        assert 8 * len(message) <= beta * full_bits(tree)
        if len(Counting.seen) > 1:
            tried += 1
            assert Counting.seen[0][2] > beta * full_bits(tree)
            assert all(
                share <= fitted(beta)[0] and levels <= fitted(beta)[1]
                for share, levels, _ in Counting.seen
            )
        assert message == codec.encode(tree, META, KEY)
    assert tried >= 4


def steps(*rows):
    return bf.compress.FlexibleMap(tuple(Setting(*row) for row in rows))


def test_bisection_finds_what_proportion_does_not():
    """A map that promises far too much: the first try in proportion is still too large."""
    tree = update(8, "client")
    lies = steps((0.0001, 0.002, 1, 0.9), (0.05, 1.0, 256, 0.1))
    Counting.seen = []
    codec = bf.compress.Budgeted(lies, 0.05, Counting(), tries=12)
    message = codec.encode(tree, META, KEY)
    assert len(Counting.seen) > 2
    assert 0.5 * 0.05 * full_bits(tree) < 8 * len(message) <= 0.05 * full_bits(tree)
    sizes = sorted((share, levels, bits) for share, levels, bits in Counting.seen)
    assert 8 * len(message) == max(bits for _, _, bits in sizes if bits <= 0.05 * full_bits(tree))
    # With two tries: the planned setting, and the smallest.
    assert bf.compress.Budgeted(lies, 0.05, tries=2).encode(tree, META, KEY) == Flexible(
        0.002, 1
    ).encode(tree, META, KEY)


def test_an_overrun_is_sent_and_said(fitted):
    tree = update(1)
    for beta in (fitted.least / 50, fitted.least, 0.04):
        codec = bf.compress.Budgeted(fitted, beta)
        message = codec.encode(tree, META, KEY)
        assert message == Flexible(*fitted(fitted.least)).encode(tree, META, KEY)
        over = 8 * len(message) - beta * full_bits(tree)
        assert codec.overrun_bits(message) == math.ceil(over) > 0
        back, _ = codec.decode(message, KEY)
        assert list(back) == list(tree)


def test_budgets_obey_the_laws_of_codecs(fitted):
    def loose(name, tree):
        return 2 * float(tree[name].detach().abs().max()) + 1e-6 if tree[name].numel() else 0.0

    check_codec(bf.compress.Budgeted(fitted, 0.1), bound=loose, further=EDGES)
    with pytest.raises(ArgumentError, match="beta: expected a positive"):
        bf.compress.Budgeted(fitted, 0.0)
    for tries in (1, 31):
        with pytest.raises(ArgumentError, match="tries: expected an integer from 2 to 30"):
            bf.compress.Budgeted(fitted, 0.1, tries=tries)


def test_a_budget_beyond_the_map_is_not_used_up(fitted):
    tree = update(8, "client")
    message = bf.compress.Budgeted(fitted, 1.0).encode(tree, META, KEY)
    assert message == Flexible(*fitted(fitted.most)).encode(tree, META, KEY)
    assert len(message) < len(Cast(32).encode(tree, META, KEY))


def test_integers_and_masks_travel_exactly(fitted):
    tree = update(8, "client") | {
        "steps": torch.arange(12),
        "support": torch.rand(9, 9, generator=KEY.generator()) > 0.5,
    }
    back, _ = bf.compress.Budgeted(fitted, 0.1).decode(
        bf.compress.Budgeted(fitted, 0.1).encode(tree, META, KEY), KEY
    )
    assert torch.equal(back["steps"], tree["steps"])
    assert torch.equal(back["support"], tree["support"])


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

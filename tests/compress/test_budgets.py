"""Budgets: the map from a size to (rho, L), and messages that keep to a planned size."""

import itertools
import json
import math
from typing import ClassVar

import numpy as np
import pytest
import torch

import bayesfed as bf
from bayesfed.compress import Cast
from bayesfed.compress.budgets import Setting, full_bits
from bayesfed.compress.budgets.fitting import _best_chain
from bayesfed.compress.flexible import Flexible
from bayesfed.errors import ArgumentError, WireError
from bayesfed.testing import check_codec
from tests.compress.updates import EDGES, KEY, META, distance, fitted, power, update

__all__ = ["fitted"]


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


def test_the_map_travels_as_json(fitted):
    again = bf.compress.FlexibleMap(
        tuple(Setting(*row) for row in json.loads(json.dumps(fitted.settings)))
    )
    assert again == fitted
    assert hash(again) == hash(fitted)


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

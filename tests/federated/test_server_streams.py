"""What a server draws comes from the key of its run: another seed, other numbers."""

from dataclasses import dataclass
from itertools import islice

import pytest
import torch

import bayesfed as bf
from bayesfed.algorithms.composing import compose
from bayesfed.algorithms.fed_hm import factored
from bayesfed.compress import Lattice, Qsgd
from bayesfed.federated import Exchange, rounds
from bayesfed.federated.links.compressed_sensing import Compressed
from bayesfed.keys import Key, forked, forked_key
from tests.conftest import tree_equal
from tests.support import recipes

WORK = bf.Training(steps=2, batch_size=8)
ROUNDS = 3


# Keys that codecs of the running test have written with.
KEYS = []


@dataclass(frozen=True)
class Recorded:
    """A codec of leaves that notes the keys that it writes with."""

    codec: object

    def write(self, leaf, key, out):
        KEYS.append(key.integer())
        self.codec.write(leaf, key, out)

    def read(self, source, shape, key):
        return self.codec.read(source, shape, key)


def exchanging(codec):
    net = recipes.net()
    layer = Exchange(codec=Recorded(codec))
    return compose("changes", net, WORK.fitting(net), training=WORK, layers=(layer,))


def streams_of_exchange(seed, codec, **options):
    KEYS.clear()
    pool = recipes.Tiny(None, recipes.rows()).pool(**options)
    *_, last = rounds(exchanging(codec), pool, rounds=ROUNDS, seed=seed)
    return list(KEYS), last.state


@pytest.mark.parametrize("codec", [Qsgd(4), Lattice(4)], ids=["rounding", "dither"])
def test_a_down_link_draws_by_the_seed_of_the_run(codec):
    first, state = streams_of_exchange(0, codec)
    assert len(set(first)) == len(first) > ROUNDS
    again, same = streams_of_exchange(0, codec)
    assert again == first
    assert tree_equal(same, state)
    other, _ = streams_of_exchange(1, codec)
    assert not set(other) & set(first)


def test_a_down_link_draws_the_same_when_a_run_is_resumed_or_has_workers():
    whole, state = streams_of_exchange(7, Qsgd(4))
    KEYS.clear()
    algorithm = exchanging(Qsgd(4))
    pool = recipes.Tiny(algorithm, recipes.rows()).pool
    (_, second) = islice(rounds(algorithm, pool(), rounds=ROUNDS, seed=7), 2)
    (last,) = rounds(algorithm, pool(), rounds=ROUNDS, seed=7, resume=second.snapshot)
    assert list(KEYS) == whole
    several, same = streams_of_exchange(7, Qsgd(4), workers=2)
    assert several == whole
    assert tree_equal(same, state)
    assert tree_equal(last.state, state)


def test_fed_hm_searches_by_the_seed_of_the_run(monkeypatch):
    keys, spectra = [], factored.spectra

    def recorded(*arguments, key=None, **options):
        if key:
            keys.append(key.integer())
        return spectra(*arguments, key=key, **options)

    monkeypatch.setattr(factored, "spectra", recorded)
    found = {}
    for run, seed in (("one", 0), ("again", 0), ("other", 1)):
        keys.clear()
        tiny = recipes.tiny_recipes()["fed_hm"]()
        list(rounds(tiny.algorithm, tiny.pool(), rounds=ROUNDS, seed=seed))
        found[run] = list(keys)
    assert len(set(found["one"])) == ROUNDS
    assert found["one"] == found["again"]
    assert not set(found["one"]) & set(found["other"])


def test_the_key_of_a_block_is_that_of_the_innermost():
    outside = forked_key()
    assert forked_key() == outside
    with forked(Key(1, "outer")):
        assert forked_key() == Key(1, "outer")
        with forked(Key(2, "inner")):
            assert forked_key() == Key(2, "inner")
        assert forked_key() == Key(1, "outer")
    assert forked_key() == outside


def test_sensing_matrices_have_a_key():
    values = torch.arange(300.0)
    usual, again = (Compressed(20).forward(values, "leaf") for _ in range(2))
    other = Compressed(20, key=Key(1, "sensing")).forward(values, "leaf")
    assert torch.equal(usual, again)
    assert not torch.equal(usual, other)

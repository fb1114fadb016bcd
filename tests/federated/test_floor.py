"""Keys and trees."""

import pytest
import torch

from bayesfed import trees
from bayesfed.errors import ArgumentError, UpdateError
from bayesfed.keys import Key, forked


def test_a_name_is_a_stream():
    draw = [torch.rand(3, generator=Key(1, "fit", 2, "a").generator()) for _ in range(2)]
    assert torch.equal(*draw)
    others = [
        Key(1, "fit", 2, "b"),
        Key(1, "fit", 3, "a"),
        Key(2, "fit", 2, "a"),
        Key(1, "fit", "2", "a"),
        Key(1, "fit", 2, "a", 0),
    ]
    assert len({key.integer() for key in [*others, Key(1, "fit", 2, "a")]}) == 6


def test_a_stream_is_the_same_on_every_machine():
    assert Key(0, "fit", 3, "client-7").integer() == 7763111620069985716
    assert Key(0, "a").child("b", 1) == Key(0, "a", "b", 1)


def test_forked_puts_the_global_stream_back():
    before = torch.get_rng_state()
    with forked(Key(0, "x")):
        first = torch.rand(2)
    assert torch.equal(before, torch.get_rng_state())
    with forked(Key(0, "x")):
        assert torch.equal(first, torch.rand(2))


@pytest.mark.parametrize("bad", [(0.5,), (True,), (0, 1.5), (0, None)])
def test_a_key_refuses_other_types(bad):
    with pytest.raises(ArgumentError, match="Key: expected an integer"):
        Key(*bad)


def test_trees_never_broadcast():
    with pytest.raises(UpdateError, match=r"shape \(2, 3\)"):
        trees.zip_map(torch.add, {"a": torch.ones(2, 3)}, {"a": torch.ones(1, 3)})


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({}, "no such leaf"),
        ({"a": torch.ones(2), "b": torch.ones(1)}, "an extra leaf"),
        ({"a": torch.ones(3)}, r"expected shape \(2,\), found \(3,\)"),
        ({"a": torch.tensor([1.0, float("nan")])}, "1 NaN or Inf"),
        ({"a": torch.ones(2, dtype=torch.complex64)}, "real numbers"),
    ],
)
def test_check_names_the_leaf(tree, words):
    with pytest.raises(UpdateError, match=words):
        trees.check(tree, {"a": (2,)}, where="payload")

"""Trees: the parts of one that share a prefix."""

import torch

from bayesfed.trees import under, without


def test_a_prefix_cuts_a_tree_in_two():
    tree = {
        "weight": torch.ones(2),
        "site/weight": torch.zeros(2),
        "site/site/bias": torch.ones(1),
        "sites": torch.ones(3),
    }
    assert under(tree, "site/").keys() == {"weight", "site/bias"}
    assert under(tree, "site/")["weight"] is tree["site/weight"]
    assert list(without(tree, "site/")) == ["weight", "sites"]
    assert without(tree, "site/")["sites"] is tree["sites"]


def test_what_was_put_under_a_prefix_comes_back():
    rest, part = {"weight": torch.ones(2)}, {"weight": torch.zeros(2), "bias": torch.ones(1)}
    tree = {**rest, **{f"adam/{name}": leaf for name, leaf in part.items()}}
    assert (under(tree, "adam/"), without(tree, "adam/")) == (part, rest)
    assert (under(rest, "adam/"), without({}, "adam/")) == ({}, {})

"""Messages of `bayesfed.models.low_rank`."""

import torch
from torch import nn

import bayesfed as bf
from bayesfed import geometry as g
from bayesfed.models import (
    FactoredLayer,
    Unrolling,
    align,
    factorise,
    fixed_rank,
    frobenius_decay,
    hybrid,
    hybrid_ranks,
    points,
    probes,
    spectra,
    tangents,
    unrollings,
    weight_matrices,
    whole_first,
    with_points,
)
from bayesfed.trees import parameters
from tests.models.thin_nets import net, randn

COMPLETE = ("bayesfed/models/low_rank",)
KEY = bf.Key(0)
HYBRID = hybrid(net(), 1 / 2)
TREE, LAYERS, RANKS = parameters(net()), unrollings(HYBRID), hybrid_ranks(net(), 1 / 2)
THIN, FIXED = factorise(TREE, LAYERS, RANKS), parameters(fixed_rank(net(), 2))
ONE = "1.weight"
weight = randn(3, 4)


def lacking():
    """Return the tree of a part of the network."""
    return {name: leaf for name, leaf in TREE.items() if name != ONE}


def tangent(as_mapping):
    """Return the tangents of a function of the probes."""
    at = points(FIXED)
    probed = probes(at)
    loss = sum(one.sum() for one in probed.values())
    found = torch.autograd.grad(loss, list(probed.values()))
    return tangents(at, dict(zip(probed, found, strict=True)) if as_mapping else {})


def biases(name, module):
    """Select biases."""
    return name.endswith("bias")


def grouped(ranks):
    """Make a network thin that has a grouped convolution."""
    return hybrid(nn.Sequential(nn.Conv2d(4, 4, 3, groups=2), nn.Conv2d(4, 8, 3)), ranks)


def tied(**options):
    """Make a network thin of which two layers share a weight."""
    layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3))
    layers[1].weight = layers[0].weight
    return fixed_rank(layers, 2, **options)


class Beside(nn.Module):
    """A frozen layer with an adapter of another library."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4).requires_grad_(False)
        self.down, self.up = nn.Linear(4, 1, bias=False), nn.Linear(1, 4, bias=False)

    def forward(self, x):
        return self.layer(x) + self.up(self.down(x))


def beside():
    return nn.Sequential(Beside(), nn.ReLU(), nn.Linear(4, 3))


CASES = [
    (
        lambda: spectra(TREE, LAYERS, {"fc": 1}),
        "hybrid_ranks",
        lambda: spectra(TREE, LAYERS, hybrid_ranks(net(), 1 / 2)),
    ),
    (lambda rank: spectra(TREE, LAYERS, {"1": rank}), 99),
    (
        lambda: spectra(lacking(), LAYERS, RANKS),
        "the whole network's tree",
        lambda: spectra(TREE, LAYERS, RANKS),
    ),
    (
        lambda: factorise(TREE, LAYERS, RANKS, {}),
        "spectra(tree, layers, ranks)",
        lambda: factorise(TREE, LAYERS, RANKS, spectra(TREE, LAYERS, RANKS)),
    ),
    (
        lambda: align({**THIN, "1.u": randn(5)}, LAYERS),
        "the shapes published, any rank",
        lambda: align({**THIN, "1.u": THIN["1.u"][:, :1], "1.v": THIN["1.v"][:, :1]}, LAYERS),
    ),
    (lambda coefficient: frobenius_decay({}, coefficient), -1.0),
    (lambda rank: fixed_rank(net(), rank), 1.5),
    (
        lambda: points({**FIXED, "1.s": randn(3, 3)}),
        "the point's shapes",
        lambda: points({**FIXED, "1.s": randn(2, 2)}),
    ),
    (
        lambda: with_points({}, {"1": g.random_point(9, 12, 2, KEY)}),
        "the tree of a network made by fixed_rank",
        lambda: with_points(FIXED, {"1": g.random_point(9, 12, 2, KEY)}),
    ),
    (
        lambda: tangent(False),
        "dict(zip(probes, torch.autograd.grad(loss, list(probes.values()))))",
        lambda: tangent(True),
    ),
    (lambda count: whole_first(net(), count), 9),
    (
        lambda: hybrid(net(), 1 / 2, whole=["layer9"]),
        "whole_first(net, 0)",
        lambda: hybrid(net(), 1 / 2, whole=whole_first(net(), 0)),
    ),
    (
        lambda: fixed_rank(net(), 2, where=biases),
        "a predicate that leaves it out",
        lambda: fixed_rank(net(), 2, where=weight_matrices),
    ),
    (
        lambda: bf.lora(beside(), 2, KEY),
        "a predicate that leaves them out",
        lambda: bf.lora(beside(), 2, KEY, where=lambda name, module: name == "2.weight"),
    ),
    (
        lambda: bf.lora(net(), 2, KEY, where=biases),
        "a predicate that leaves it out",
        lambda: bf.lora(net(), 2, KEY, where=weight_matrices),
    ),
    (
        lambda: grouped({"0": 1, "1": 1}),
        "ranks without it",
        lambda: grouped({"1": 1}),
    ),
    (
        tied,
        "a predicate that leaves it out",
        lambda: tied(where=lambda name, module: name == "2.weight"),
    ),
    (lambda rank: fixed_rank(net(), rank), {"first": 2}),
    (lambda ratio: hybrid(net(), ratio), {"fc": 2}),
    (lambda rank: fixed_rank(net(), rank), {}),
    (
        lambda: hybrid(net(), 1 / 2, whole=weight_matrices),
        "a predicate that selects some",
        lambda: hybrid(net(), 1 / 2, whole=lambda name, module: name == ONE),
    ),
    (lambda key: hybrid(net(), 1 / 2, initial="random", key=key), None),
    (
        lambda: fixed_rank(net(torch.bfloat16), 2),
        ".to(torch.float32)",
        lambda: fixed_rank(net(torch.bfloat16).to(torch.float32), 2),
    ),
    (
        lambda: FactoredLayer(nn.Linear(4, 3), randn(3, 2), randn(4, 3)),
        "factors of the layer's matrix",
        lambda: FactoredLayer(nn.Linear(4, 3), randn(3, 2), randn(4, 2)),
    ),
    (lambda shape: Unrolling(shape), (3,)),  # noqa: PLW0108
]

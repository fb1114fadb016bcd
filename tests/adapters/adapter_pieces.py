"""What tests of methods that train adapters share: networks, leaves, runs."""

import torch

import bayesfed as bf
from bayesfed.trees import trainable

KEY, R = bf.Key(0, "fs_lora"), 6
ONE = {"capacity": lambda profile, round, key: 0}
WORK = bf.Training(steps=3, batch_size=8)


def base():
    return bf.mlp([64, 16, 10], bf.Key(0, "net"))


def matrix(draw, rank):
    """The sketch S of some slices, ``(r, r)``."""
    return (
        torch.zeros(rank, dtype=torch.float64).index_copy(0, draw.indices, draw.multipliers).diag()
    )


def adapted(dropout=0.0, head=("3",), rank=R):
    return bf.lora(
        base(),
        rank,
        bf.Key(0, "lora"),
        where=lambda name, module: name == "1.weight",
        head=head,
        dropout=dropout,
    )


def begun(net, seed=0):
    """The network's leaves, B drawn."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: 0.2 * torch.randn(leaf.shape, generator=generator) if "lora_b" in name else leaf
        for name, leaf in trainable(net).items()
    }


def run(algorithm, clients, rounds=2, **rest):
    return bf.run(algorithm, clients, rounds=rounds, progress=False, **rest)


def close(left, right, atol=1e-5):
    return left.keys() == right.keys() and all(
        torch.allclose(leaf, right[name], atol=atol) for name, leaf in left.items()
    )

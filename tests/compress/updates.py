"""Updates that tests of flexible compression and of budgets encode."""

import pytest
import torch

import bayesfed as bf
from bayesfed.keys import Key

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

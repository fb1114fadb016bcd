"""What exact sums cost: a client at the size of the engine's benchmark, and the engine's round against the bare loop."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from unittest.mock import patch

import torch
from engine import one_round
from targets import interleaved, target

from bayesfed.federated import Sum, Update
from bayesfed.federated.core import limbs

SHAPES = {"1.weight": (784, 256), "3.weight": (256, 256), "5.weight": (256, 10)}


def targets(check: bool) -> Iterator[bool]:
    """Print the targets of sums, and yield whether each is met."""
    torch.set_num_threads(1)
    update = Update({name: torch.randn(shape) for name, shape in SHAPES.items()}, 3.0, "value")
    exact, kept = Sum(), [update]

    def plain() -> None:
        kept[0] = kept[0] + update

    seconds = interleaved({"exact": lambda: exact.add("a", update), "plain": plain}, 200 if check else 1000)
    count = sum(leaf.numel() for leaf in update.total.values())
    for name, values in seconds.items():
        print(f"{name} sum of {count:,} numbers: median {1e3 * statistics.median(values):.3f} ms a client, fastest {1e3 * min(values):.3f}")
    yield target(f"exact sum at {count:,}, ms a client", 1e3 * statistics.median(seconds["exact"]), 0.3)
    with patch.object(limbs, "_compiled", lambda: None):
        slow = interleaved({"torch": lambda: exact.add("a", update)}, 20)["torch"]
    print(f"without numba: median {1e3 * statistics.median(slow):.3f} ms a client")
    yield one_round(11 if check else 25)

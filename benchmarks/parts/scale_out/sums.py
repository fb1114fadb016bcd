"""What exact sums cost: a client at the size of the engine's benchmark, and the engine's round
against the bare loop.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from unittest.mock import patch

import torch
from parts.shared.targets import interleaved, ratio, target
from parts.speed.engine import one_round

from bayesfed.federated import Sum, Update
from bayesfed.federated.core import limbs

SHAPES = {"1.weight": (784, 256), "3.weight": (256, 256), "5.weight": (256, 10)}


# Clients that are added one after another, by processor time.
ADDED = 20
# Plain sums in PyTorch that an exact one may take. It takes four.
MOST_SUMS = 8


def _each(seconds: dict[str, list[float]]) -> dict[str, list[float]]:
    return {name: [value / ADDED for value in values] for name, values in seconds.items()}


def targets(options: argparse.Namespace) -> Iterator[bool]:
    """Print the targets of sums, and yield whether each is met."""
    torch.set_num_threads(1)
    update = Update({name: torch.randn(shape) for name, shape in SHAPES.items()}, 3.0, "value")
    exact, kept = Sum(), dict(update.total)

    def plain() -> None:
        for _ in range(ADDED):
            for name, leaf in update.total.items():
                kept[name] = kept[name] + leaf

    def added() -> None:
        for _ in range(ADDED):
            exact.add("a", update)

    seconds = _each(
        interleaved(
            {"exact": added, "plain": plain}, 30 if options.check else 100, clock=time.process_time
        )
    )
    count = sum(leaf.numel() for leaf in update.total.values())
    for name, values in seconds.items():
        print(
            f"{name} sum of {count:,} numbers: median "
            f"{1e3 * statistics.median(values):.3f} ms a client, fastest "
            f"{1e3 * min(values):.3f}"
        )
    yield target(
        f"exact sum at {count:,} / plain sum", ratio(seconds["exact"], seconds["plain"]), MOST_SUMS
    )
    with patch.object(limbs, "LARGE", 1 << 62):
        slow = _each(interleaved({"torch": added}, 5, clock=time.process_time))["torch"]
    print(f"in torch: median {1e3 * statistics.median(slow):.3f} ms a client")
    yield one_round(11 if options.check else 25)

"""What every benchmark shares: interleaved timing and the one line a target prints."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager


def interleaved(
    work: Mapping[str, Callable[[], object]],
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Time each function `repeats` times in turn, A B A B ..., after one warm-up each; return
    seconds by name.

    `time.process_time` as `clock` leaves out the time that others had the core.
    """
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for function in work.values():
        function()
    for _ in range(repeats):
        for name, function in work.items():
            gc.collect()
            start = clock()
            function()
            seconds[name].append(clock() - start)
    return seconds


@contextmanager
def calls_timed(owner: type, name: str) -> Iterator[list[float]]:
    """Collect the processor seconds of every call of a method."""
    seconds, method = list[float](), getattr(owner, name)

    def timed(*arguments: object, **named: object) -> object:
        start = time.process_time()
        try:
            return method(*arguments, **named)
        finally:
            seconds.append(time.process_time() - start)

    setattr(owner, name, timed)
    try:
        yield seconds
    finally:
        setattr(owner, name, method)


def ratio(above: list[float], below: list[float]) -> float:
    """Return the median of the pairwise ratios: steady when the machine's speed drifts."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def at_least(name: str, measured: float, wanted: float) -> bool:
    """Print the line of a target that is to be reached from below, and return whether it is met."""
    met = measured >= wanted
    print(
        f"target {name}: measured {measured:.3f}, wanted >= {wanted:g}, "
        f"{'met' if met else 'missed'}"
    )
    return met


def target(name: str, measured: float, at_most: float) -> bool:
    """Print one target's line and return whether it is met."""
    met = measured <= at_most
    print(
        f"target {name}: measured {measured:.3f}, wanted <= {at_most:g}, "
        f"{'met' if met else 'missed'}"
    )
    return met


def tiny(name: str, measured: float, at_most: float) -> bool:
    """Print the line of a target that is near rounding, and return whether it is met."""
    met = measured <= at_most
    print(
        f"target {name}: measured {measured:.1e}, wanted <= {at_most:g}, "
        f"{'met' if met else 'missed'}"
    )
    return met


def between(name: str, measured: float, low: float, high: float) -> bool:
    """Print the line of a target with two ends, and return whether it is met."""
    met = low <= measured <= high
    print(
        f"target {name}: measured {measured:.3f}, wanted {low:g} to {high:g}, "
        f"{'met' if met else 'missed'}"
    )
    return met

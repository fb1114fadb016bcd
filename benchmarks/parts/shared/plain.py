"""A plain compiled loop over bytes, the unit in which codes are timed: a machine of half the speed
takes twice as long for both, so that a target on their ratio holds there too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numba
import numpy as np

# Bytes that one measurement passes over at least: some milliseconds.
LEAST_BYTES = 1 << 22
CONTEXTS = 1024


@numba.njit(error_model="numpy")
def count_in_contexts(data: Any, counts: Any) -> int:
    """Count bytes in the context of those before them, as an adaptive code does, one after the
    other; return the last context.
    """
    context = np.uint32(2166136261)
    for i in range(len(data)):
        context = (context ^ data[i]) * np.uint32(16777619)
        counts[context % np.uint32(CONTEXTS)] += 1
    return int(context)


def plain_loop(size: int) -> Callable[[], None]:
    """Return a function that passes over `LEAST_BYTES` or more, in whole turns of `size` bytes."""
    data = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    counts = np.zeros(CONTEXTS, np.int64)
    count_in_contexts(data, counts)

    def passes() -> None:
        for _ in range(turns(size)):
            count_in_contexts(data, counts)

    return passes


def turns(size: int) -> int:
    """Return how often `plain_loop` passes over `size` bytes."""
    return max(1, LEAST_BYTES // size)


def loop_seconds(size: int, repeats: int = 7) -> float:
    """Return the shortest processor time that one pass over `size` bytes takes."""
    passes, seconds = plain_loop(size), []
    for _ in range(repeats):
        start = time.process_time()
        passes()
        seconds.append((time.process_time() - start) / turns(size))
    return min(seconds)

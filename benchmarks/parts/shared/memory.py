"""How much memory a piece of work takes, as Linux and PyTorch say it."""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from torch.profiler import ProfilerActivity, profile

EVERY_S = 0.005


@contextmanager
def grown() -> Iterator[list[float]]:
    """Yield a list of the most megabytes that this process has had beyond those at the start."""
    # What was freed goes back to the system, so that the work's own memory counts.
    ctypes.CDLL(None).malloc_trim(0)
    done, most, begun = threading.Event(), [0.0], held()

    def watch() -> None:
        while not done.wait(EVERY_S):
            most[0] = max(most[0], held() - begun)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield most
    finally:
        done.set()
        watching.join()


def held() -> float:
    """Return the megabytes of anonymous memory that this process has."""
    found = re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) / 1e3


def allocated(work: Callable[[], object]) -> float:
    """Return the most megabytes of tensors that a piece of work has at once, beyond those at its
    start: of every call of PyTorch's allocator, so that nothing is missed and nothing counts that
    was freed.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        work()
    assert seen.profiler
    assert seen.profiler.kineto_results
    events = [one for one in seen.profiler.kineto_results.events() if one.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda one: one.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most / 1e6

"""How much memory a piece of work takes, as Linux says it."""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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

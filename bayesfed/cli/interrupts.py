"""Ctrl-C while modules are imported waits until they are: a module that is imported by half fails
later, in ways that say nothing of it.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# Seconds after which an interrupt that came during an import is tried again.
AGAIN_S = 0.05
IMPORTING = "<frozen importlib._bootstrap>"


@contextmanager
def after_imports() -> Iterator[None]:
    """Raise `KeyboardInterrupt` inside the block only where nothing is being imported, and as soon
    as that is so.
    """
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield
        return
    signal.signal(signal.SIGINT, _interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _interrupted(number: int, frame: FrameType | None) -> None:
    while frame is not None:
        if frame.f_code.co_filename == IMPORTING:
            later = threading.Timer(AGAIN_S, _again)
            later.daemon = True
            later.start()
            return
        frame = frame.f_back
    raise KeyboardInterrupt


def _again() -> None:
    # Unlike `interrupt_main` this wakes a thread that sleeps or waits.
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

"""The log of a site: what went wrong in full, which the server does not get.

It is Python's logger "bayesfed.site". The worker and the ClientApp print it on standard error, with
the time; whoever uses `Site` from Python chooses handlers as for any logger.
"""

from __future__ import annotations

import logging
import sys

log = logging.getLogger("bayesfed.site")
FORMAT = "%(asctime)s %(levelname)s %(message)s"


class _Screen(logging.Handler):
    """Print lines on what is standard error when they are printed."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a line."""
        print(self.format(record), file=sys.stderr, flush=True)  # noqa: T201


def print_log() -> None:
    """Print the log on standard error from now on; a second call changes nothing."""
    if not any(isinstance(handler, _Screen) for handler in log.handlers):
        handler = _Screen()
        handler.setFormatter(logging.Formatter(FORMAT))
        log.addHandler(handler)
    log.setLevel(logging.INFO)

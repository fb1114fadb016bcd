"""Memory of this process, as Linux says it."""

from __future__ import annotations

import re
from pathlib import Path


def megabytes(figure: str) -> float:
    """Return a figure of `/proc/self/status`: "RssAnon", memory that no file backs, or "VmHWM", the
    most resident memory. That of `resource` begins with what the parent had.
    """
    found = re.search(rf"{figure}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) / 1024

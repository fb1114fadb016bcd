"""What somebody meets who uses the package: the names on `bayesfed`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping

LISTED = """
import sys, types
import bayesfed as bf

for name in dir(bf):
    if not name.startswith("_"):
        value = getattr(bf, name)
        home = value.__name__ if isinstance(value, types.ModuleType) else value.__module__
        print(name, home.split(".")[0])
"""


def names() -> dict[str, str]:
    """Return the names on `bayesfed` after its import, with the packages that define them."""
    command = [sys.executable, "-c", LISTED]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return dict(line.split() for line in found.splitlines())


def strangers(found: Mapping[str, str]) -> list[str]:
    """Return the names of what the package does not define."""
    return [f"{name} of {home}" for name, home in found.items() if home != "bayesfed"]

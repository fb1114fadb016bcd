"""Finished runs on disk: made once, whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def kept(file: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return a run's content from its file, or make it and keep it; a run that is interrupted leaves no file."""
    if not file.exists():
        content = make()
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".part")
        part.write_text(json.dumps(content) + "\n")
        part.replace(file)
    found: dict[str, Any] = json.loads(file.read_text())
    return found

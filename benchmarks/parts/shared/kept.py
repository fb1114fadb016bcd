"""Finished runs on disk: made once, whole or not at all; packed into one file of `records`, and
unpacked again.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]


def kept(file: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return a run's content from its file, or make it and keep it, with the commit; a run that is
    interrupted leaves no file.
    """
    if not file.exists():
        _write(file, make() | {"commit": commit()})
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def commit() -> str:
    """Return the commit that runs, with "-dirty" where code or settings were changed since; records
    that are being written do not count. Empty without git.
    """
    if shutil.which("git") is None:
        return ""
    found, changed = (
        subprocess.run(
            ["git", *said.split()], capture_output=True, text=True, cwd=ROOT, check=False
        ).stdout
        for said in ("describe --always", "diff --name-only HEAD -- *.py *.toml")
    )
    return found.strip() + "-dirty" * bool(changed)


def pack(folder: Path, file: Path) -> int:
    """Write all runs of a folder as lines of one file, in the order of their names; return how many
    there are.
    """
    lines = [
        json.dumps({"name": found.name, "run": json.loads(found.read_text())})
        for found in sorted(folder.glob("*.json"))
    ]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{line}\n" for line in lines))
    return len(lines)


def unpack(file: Path, folder: Path) -> int:
    """Write every line's run to its file, unless there is one; return how many lines there are."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        if not (folder / line["name"]).exists():
            _write(folder / line["name"], line["run"])
    return len(lines)


def _write(file: Path, content: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")
    part.write_text(json.dumps(content) + "\n")
    part.replace(file)

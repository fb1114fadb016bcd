"""A benchmark's settings of a case, and its finished runs on disk: made once, whole or not at all; `records/` has those behind the published tables.

    python benchmarks/kept.py pack results/fedhm/runs benchmarks/records/fedhm.jsonl
    python benchmarks/kept.py unpack benchmarks/records/fedhm.jsonl results/fedhm/runs

Once unpacked, a benchmark prints its tables and draws its pictures from them and makes only what is missing. A run is found by its settings, not by
the code that made it: `docs/ledger.md` says when that was.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def resolved(cases: Mapping[str, Mapping[str, Any]], name: str, base: Mapping[str, Any]) -> dict[str, Any]:
    """Return all settings of a case: those that all share, those of the case it is like, its own."""
    own = dict(cases[name])
    return {**(resolved(cases, own.pop("like"), base) if "like" in own else base), **own}


def kept(file: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return a run's content from its file, or make it and keep it; a run that is interrupted leaves no file."""
    if not file.exists():
        _write(file, make())
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def main() -> None:
    """Pack runs into one file, or unpack it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["pack", "unpack"])
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    options = parser.parse_args()
    if not options.source.exists():
        parser.error(f"{options.source}: no such file or folder")
    count = {"pack": pack, "unpack": unpack}[options.verb](options.source, options.target)
    print(f"{count} runs in {options.target}")


def pack(folder: Path, file: Path) -> int:
    """Write all runs of a folder as lines of one file, in the order of their names; return how many there are."""
    lines = [json.dumps({"name": found.name, "run": json.loads(found.read_text())}) for found in sorted(folder.glob("*.json"))]
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


if __name__ == "__main__":
    main()

"""Figures of pages, and the runs of a record that they come from."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parts.front.ages import older, written

RECORDS = Path(__file__).parents[2] / "records"
Run = dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """What a line of README may say: the values, as they are printed, and the setting that stands
    in the same line.
    """

    values: tuple[str, ...]
    setting: str
    source: str
    # Commits that made the record, where it tells.
    commits: tuple[str, ...] = ()

    @property
    def older(self) -> bool:
        """Whether the code that is measured has changed since."""
        return older(self.source, self.commits)


def runs(name: str) -> list[tuple[str, Run]]:
    """Return the names and contents of all runs of a record, with the commit that made them: the
    one that they name, or that which wrote their line.
    """
    lines = [json.loads(line) for line in (RECORDS / f"{name}.jsonl").read_text().splitlines()]
    made = written(name) or [""] * len(lines)
    return [
        (line["name"], {"commit": commit} | line["run"])
        for line, commit in zip(lines, made, strict=True)
    ]


def commits_of(several: Iterable[Run]) -> tuple[str, ...]:
    """Return the commits that made these runs."""
    return tuple(sorted({run["commit"] for run in several}))

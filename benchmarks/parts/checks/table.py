"""The last value of every target, with its commit and date: `records/targets.tsv`."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).parents[2] / "records" / "targets.tsv"
# What `parts.shared.targets` prints.
LINE = re.compile(r"target (.+): measured (\S+), wanted (.+), (met|missed)")


class Target(NamedTuple):
    """A target of a program: what was measured, where and when."""

    program: str
    target: str
    measured: str
    wanted: str
    verdict: str
    commit: str = ""
    date: str = ""


def printed(program: str, text: str, commit: str = "", date: str = "") -> list[Target]:
    """Return the targets among the lines that a program printed."""
    found = (LINE.fullmatch(line.strip()) for line in text.splitlines())
    return [Target(program, one[1], one[2], one[3], one[4], commit, date) for one in found if one]


def kept(file: Path = FILE) -> list[Target]:
    """Return the targets of the table."""
    if not file.exists():
        return []
    with file.open(encoding="utf-8", newline="") as lines:
        return [Target(**row) for row in csv.DictReader(lines, delimiter="\t")]


def write(new: Iterable[Target], order: Sequence[str], file: Path = FILE) -> None:
    """Write the table anew: programs that were run have their new targets, all others those that
    they had; the programs in order.
    """
    new = list(new)
    made = {one.program for one in new}
    rows = [*new, *(one for one in kept(file) if one.program not in made)]
    rows = [one for program in order for one in rows if one.program == program]
    with file.open("w", encoding="utf-8", newline="") as lines:
        writer = csv.writer(lines, delimiter="\t", lineterminator="\n")
        writer.writerows([Target._fields, *rows])

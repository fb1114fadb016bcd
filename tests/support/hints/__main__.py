"""Walk rooms, and print what fails and what is missing."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from tests.support.hints.places import Place
from tests.support.hints.walking import missing, rooms, timed


def say(head: str, rest: Iterable[object]) -> None:
    """Print a line, and others below it."""
    sys.stdout.write("\n  ".join([head, *map(str, rest)]) + "\n")


asked = sys.argv[1:]
reached: set[Place] = set()
for name, room in rooms().items():
    names = (name.split(".")[0], *room.COMPLETE)
    if asked and not any(one in path for one in names for path in asked):
        continue
    walked, seconds = timed(room.CASES)
    reached |= walked.reached
    say(f"{name}: {len(room.CASES)} cases, {seconds:.1f} s", walked.problems)
absent = missing(asked or ["bayesfed"], reached)
say(f"{len(absent)} messages without a case", absent)

"""Whether wrong calls are refused, and what the refusals say to try works: the product of doors.

    python benchmarks/contracts.py [--check]

Every public callable on `bayesfed` is called wrongly in one argument, as its signature says:
another type, shape or range, a misspelt keyword, two arguments swapped (`tests.support.doors`).
Each call must end in an error of the package, or have a documented meaning
(`tests.support.doors.meanings`). Every message of the package is provoked and its hint followed,
and every hint of a role is held against it (`tests.support.hints`). The kinds of errors that once
passed in silence stay closed by tests of their own (`parts/contracts/kinds.py`). Random hostile
formulas of regressions are refused and do nothing, legal ones mean what they say
(`parts/contracts/formulas.py`). No cell of a row is in what a site sends, and experiments that
differ have different fingerprints (`parts/contracts/letters.py`).
The status of a regression without a site is held against a fresh fit of the others
(`parts/contracts/without.py`).
"""

from __future__ import annotations

import sys
from collections import Counter

from parts.contracts.formulas import hostile_refused, legal_accepted
from parts.contracts.kinds import KINDS, still_open
from parts.contracts.letters import told_apart, without_cells
from parts.contracts.without import statuses_hold
from parts.shared.parts import command_line
from parts.shared.targets import at_least, target
from tqdm import tqdm

from tests.support import hints
from tests.support.doors.calls import outcome, wrong_calls
from tests.support.hints.places import Place
from tests.support.hints.roles import wanted
from tests.support.hints.walking import missing, rooms, walk

LEAST = 2000


def executed() -> bool:
    """Follow the hint of every message, print how many there are and whether all were followed;
    return whether the target is met.
    """
    reached, problems = set[Place](), list[str]()
    for name, room in tqdm(rooms().items(), desc="rooms", leave=False):
        walked = walk(room.CASES)
        reached |= walked.reached
        problems += [f"{name}, {problem}" for problem in walked.problems]
    roles = list(wanted())
    problems += [problem for one in roles if (problem := one.problem())]
    print(*problems, sep="\n", end="\n" * bool(problems))
    absent = len(missing(["bayesfed"], reached))
    count = len(roles) + len(reached) + absent
    name = "messages whose hint was executed"
    met = at_least(f"{name}, of {count}", count - absent - len(problems), count)
    return met or not (hints.ALL or problems)


def closed() -> bool:
    """Run the tests of every kind of silent error, and print how many kinds are closed."""
    found = still_open()
    print(*found, sep="\n", end="\n" * bool(found))
    return at_least("kinds of silent errors that are closed", len(KINDS) - len(found), len(KINDS))


def main() -> int:
    """Make the calls, and print what came of them and the targets; return the exit status."""
    command_line(__doc__).parse_args()
    ends: Counter[str] = Counter()
    for call in tqdm([*wrong_calls()], desc="wrong calls", leave=False):
        end = outcome(call)
        if end not in ("refused", "meant"):
            print(f"{call}: {end}")
        ends[end if end in ("refused", "meant", "silent") else "raw"] += 1
    print(f"{ends['refused']} calls refused, {ends['meant']} with a documented meaning")
    met = [
        at_least("generated wrong calls", sum(ends.values()), LEAST),
        target("raw errors", ends["raw"], 0),
        target("silent calls without a documented meaning", ends["silent"], 0),
        executed(),
        closed(),
        hostile_refused(),
        legal_accepted(),
        without_cells(),
        told_apart(),
        statuses_hold(),
    ]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())

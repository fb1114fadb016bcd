"""Random formulas: hostile ones must be refused and do nothing, legal ones must mean what they say.

The grammars are in `tests.support.formulas`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from parts.shared.targets import at_least, target
from tqdm import tqdm

from tests.support.formulas.legal import legal_formulas, problem_of

ROOT = Path(__file__).parents[3]
SEED = 2026
HOSTILE = 2000
SOUP = 2000
LEGAL = 220
SECONDS = 300


def hostile_refused() -> bool:
    """Refuse hostile formulas in a process that is watched; return whether the targets are met."""
    counts = ("--seed", str(SEED), "--count", str(HOSTILE), "--soup", str(SOUP))
    ended = subprocess.run(
        [sys.executable, "-m", "tests.support.formulas.watch", *counts],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
        cwd=ROOT,
    )
    record = json.loads(ended.stdout.splitlines()[-1])
    problems = {**record["through"], **record["raw"]}
    for formula, problem in problems.items():
        print(f"{formula!a}: {problem}")
    print(f"seed {SEED}; a formula that is not checked is seen to {record['seen'] or 'do nothing'}")
    met = [
        at_least("hostile formulas", record["formulas"], HOSTILE),
        target("hostile formulas that got through", len(record["through"]), 0),
        target("raw errors of tokens in random order", len(record["raw"]), 0),
        target("files that formulas wrote", len(record["files"]), 0),
        at_least("writes of an unchecked formula that the watch sees", bool(record["seen"]), 1),
    ]
    return all(met)


def legal_accepted() -> bool:
    """Hold legal formulas against their meaning; return whether the targets are met."""
    drawn = tqdm(legal_formulas(SEED, LEGAL), "legal formulas", LEGAL, leave=False)
    problems = {one.text: problem for one in drawn if (problem := problem_of(one))}
    for formula, problem in problems.items():
        print(f"{formula!a}: {problem}")
    return target(f"legal formulas refused or wrong, of {LEGAL}", len(problems), 0)

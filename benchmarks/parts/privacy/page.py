"""The record of the audit, and the tables of SECURITY.md that are made of it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from parts.privacy.attack import DELTA, ROUNDS, Found

ROOT = Path(__file__).parents[3]
RECORD, PAGE = ROOT / "benchmarks" / "records" / "privacy.jsonl", ROOT / "SECURITY.md"
BEGIN, END = "<!-- privacy: begin -->", "<!-- privacy: end -->"
KINDS = ("local_privacy", "private")
Run = dict[str, Any]


def run_of(found: Found | str) -> Run:
    """Return what the record says of an order."""
    if isinstance(found, str):
        return {"refused": found}
    bound = found.bound if math.isfinite(found.bound) else None
    return {"bound": bound, "printed": found.printed, "bare": list(found.bare)}


def write(runs: dict[str, Run]) -> None:
    """Write the record, and the page anew."""
    lines = [json.dumps({"name": name, "run": run}) for name, run in runs.items()]
    RECORD.write_text("".join(f"{line}\n" for line in lines))
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{tables(recorded())}\n{END}{after}")


def recorded() -> dict[str, Run]:
    """Return the record by order and kind."""
    lines = map(json.loads, RECORD.read_text().splitlines())
    return {line["name"]: line["run"] for line in lines}


def tables(runs: dict[str, Run]) -> str:
    """Return the tables of a record, and what the letters in them mean."""
    reasons = sorted({run["refused"] for run in runs.values() if "refused" in run})
    letters = {reason: chr(ord("a") + number) for number, reason in enumerate(reasons)}

    def cell(run: Run) -> str:
        if "refused" in run:
            return f"refused ({letters[run['refused']]})"
        bound = math.inf if run["bound"] is None else run["bound"]
        return f"{bound:.2f} of {run['printed']:.2f}"

    names = list(dict.fromkeys(name.rpartition(", ")[0] for name in runs))
    rows = [
        f"| {name} | " + " | ".join(cell(runs[f"{name}, {kind}"]) for kind in KINDS) + " |"
        for name in names
    ]
    meant = [f"- ({letter}) expected {reason}" for reason, letter in letters.items()]
    setting = f"{ROUNDS} rounds, delta {DELTA:g}"
    head = f"| order ({setting}) | `local_privacy` | `private` |\n|---|---|---|"
    return "\n".join(["", head, *rows, "", "Reasons of refusals:", "", *meant, ""])

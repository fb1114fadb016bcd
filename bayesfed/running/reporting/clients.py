"""What every client did in a run: rows, messages, absences, seconds, joules, and scores of
its own.
"""

from __future__ import annotations

import csv
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from bayesfed.errors import ArgumentError
from bayesfed.federated import Record
from bayesfed.running.comparison import Column, filled
from bayesfed.running.folders import Folder

# Heading, figure, factor, digits after the point. Figures that no client has are left out.
COLUMNS: tuple[Column, ...] = (
    ("rows", "samples", 1.0, 0),
    ("rounds", "rounds", 1.0, 0),
    ("left out", "left_out", 1.0, 0),
    ("MB down", "bits_down", 1 / 8e6, 3),
    ("MB up", "bits_up", 1 / 8e6, 3),
    ("clock s", "seconds", 1.0, 2),
    ("device s", "latency_s", 1.0, 2),
    ("joules", "energy_j", 1.0, 2),
    ("own accuracy %", "accuracy", 100.0, 2),
    ("own RMSE", "rmse", 1.0, 4),
    ("own NLL", "nll", 1.0, 3),
    ("own ECE", "ece", 1.0, 3),
)
ALWAYS = ("rounds", "left_out", "bits_down", "bits_up")
# Scores of clients on their own rows, a line for each client, where a run has any.
OWN = "clients.csv"
SCORES = ("accuracy", "rmse", "nll", "ece")


def client_table(
    folder: Folder, histories: Sequence[Sequence[Record]]
) -> tuple[list[str], list[list[str]]]:
    """Return headings and rows, a row for each client: sums over a run, means over seeds.
    `histories` are those of the finished seeds.
    """
    seeds = [
        _figures(history, _own(folder, seed))
        for seed, history in zip(folder.finished, histories, strict=True)
    ]
    names = sorted({name for one in seeds for name in one}, key=_by_number)
    figures = {name: [one[name] for one in seeds if name in one] for name in names}
    headings, rows = filled(COLUMNS, figures, _text, ALWAYS)
    return ["client", *headings], [[name, *row] for name, row in zip(names, rows, strict=True)]


def _text(values: Sequence[float], digits: int) -> str:
    """Return a mean with so many digits after the point; a smaller one that is not 0 with two
    significant digits.
    """
    value = statistics.fmean(values)
    text = f"{value:,.{digits}f}"
    return text if value == 0 or text.strip("-0.") else f"{value:.2g}"


def _by_number(name: str) -> list[str | int]:
    """Return a key that sorts client-9 before client-10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


def _figures(
    history: Sequence[Record], own: Mapping[str, Mapping[str, float]]
) -> dict[str, dict[str, float]]:
    sums: dict[str, Counter[str]] = defaultdict(Counter)
    for record in history:
        for row in record.rows:
            spent = {
                f"bits_{row.direction}": row.bits,
                "seconds": row.seconds,
                "latency_s": row.cost.latency_s,
                "energy_j": row.cost.energy_j,
            }
            sums[row.client].update(spent)
        for name in record.clients:
            sums[name]["rounds"] += 1
        for name in record.refused:
            sums[name]["left_out"] += 1
    rows = {
        name: info["samples"]
        for record in history
        for name, info in record.clients.items()
        if "samples" in info
    }
    absent = dict.fromkeys(ALWAYS, 0.0)
    return {
        name: {
            **absent,
            **figures,
            **({"samples": rows[name]} if name in rows else {}),
            **own.get(name, {}),
        }
        for name, figures in sums.items()
    }


def _own(folder: Folder, seed: int) -> Mapping[str, Mapping[str, float]]:
    path = folder.seed(seed) / OWN
    if not path.is_file():
        return {}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return {
                line["client"]: {name: float(line[name]) for name in SCORES if name in line}
                for line in csv.DictReader(file)
            }
    except (OSError, ValueError, KeyError, TypeError) as problem:
        hint = "a line for each client below client,rows,rounds,accuracy,..."
        raise ArgumentError(str(path), "scores of clients", repr(problem), hint) from problem

"""What every client did in a run: rows, messages, absences, seconds, joules, and scores of
its own.
"""

from __future__ import annotations

import csv
import re
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

from bayesfed.errors import ArgumentError
from bayesfed.federated import Record, Row
from bayesfed.inspect.personal import SCORES
from bayesfed.running.comparison import Column, filled
from bayesfed.running.folders import Folder, spent

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


def client_table(
    folder: Folder, histories: Sequence[Sequence[Record]]
) -> tuple[list[str], list[list[str]]]:
    """Return headings and rows, a row for each client: sums over a run, means over seeds.
    `histories` are those of the finished seeds.
    """
    each = zip(folder.finished, histories, strict=True)
    seeds = [_figures(history, _own(folder, seed)) for seed, history in each]
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
    found: dict[str, dict[str, float]] = defaultdict(lambda: dict.fromkeys(ALWAYS, 0.0))
    rows: dict[str, list[Row]] = defaultdict(list)
    for record in history:
        for row in record.rows:
            rows[row.client].append(row)
        for name, info in record.clients.items():
            found[name]["rounds"] += 1
            found[name] |= {key: info[key] for key in ("samples",) if key in info}
        for name in record.refused:
            found[name]["left_out"] += 1
    for name, messages in rows.items():
        found[name] |= spent(messages) | {"seconds": sum(row.seconds for row in messages)}
    return {name: {**figures, **own.get(name, {})} for name, figures in found.items()}


def _own(folder: Folder, seed: int) -> dict[str, dict[str, float]]:
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

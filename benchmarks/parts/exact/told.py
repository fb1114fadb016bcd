"""What pages say of the exact posterior, from its record."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from parts.exact.limits import CERTAIN, ERROR
from parts.front.record import RECORDS, Figure, commits_of

from bayesfed.inference.evaluation.simulation import Calibration

Record = dict[str, Any]


def told(kind: str) -> dict[str, Record]:
    """Return the records of a kind, "beside" or "hierarchy", by what follows in their names."""
    lines = map(json.loads, (RECORDS / "exact.jsonl").read_text().splitlines())
    parted = [(*line["name"].partition(", ")[::2], line) for line in lines]
    return {name: line for of, name, line in parted if of == kind}


def hierarchies() -> list[list[str]]:
    """Return the cells of the table of hierarchies."""
    return [
        [
            name,
            f"{one['size']}",
            f"{one['error']:.3f}",
            f"{one['low']:.3f} to {one['high']:.3f}",
            f"{one['rounds']}",
            f"{one['kilobytes']:.0f}",
            one["status"],
        ]
        for name, one in told("hierarchy").items()
    ]


def beside() -> list[list[str]]:
    """Return the cells of the table beside NUTS, Laplace, a guide and Pathfinder."""
    paths = told("pathfinder")
    return [
        [
            name,
            f"{one['error']:.3f}",
            _range(one["low"], one["high"]),
            one["status"],
            f"{one['seconds']:.1f}",
            f"{one['nuts_seconds']:.0f}",
            *_pair(*one["laplace"]),
            *_pair(*one["guide"]),
            *_pair(*(paths[name][column] for column in ("error", "low", "high"))),
        ]
        for name, one in told("beside").items()
    ]


def _pair(error: float, low: float, high: float) -> tuple[str, str]:
    return f"{error:.2f}", _range(low, high)


def _range(low: float, high: float) -> str:
    return f"{low:.2f} to {high:.2f}"


def calibrations() -> dict[str, tuple[Calibration, list[Record]]]:
    """Return the ranks of all blocks of a model, and the blocks, by the model."""
    found = dict[str, list[Record]]()
    for name, one in told("calibration").items():
        found.setdefault(name.partition(",")[0], []).append(one)
    made = dict[str, tuple[Calibration, list[Record]]]()
    for name, blocks in found.items():
        sites = blocks[0]["ranks"]
        ranks = {s: torch.cat([torch.tensor(one["ranks"][s]) for one in blocks]) for s in sites}
        made[name] = Calibration(ranks, blocks[0]["draws"]), blocks
    return made


def figures() -> Iterator[tuple[str, Figure]]:
    """Yield the figures of the ledger: hierarchies that are near, errors beside NUTS, coverage,
    hospitals.
    """
    for kind, rows in (("hierarchies", told("hierarchy")), ("beside", told("beside"))):
        made = partial(Figure, setting="", source="exact", commits=commits_of(rows.values()))
        near = [one for one in rows.values() if one["error"] <= ERROR]
        sure = [one for one in near if one["status"] in CERTAIN]
        off = max(max(1 - one["low"], one["high"] - 1) for one in sure)
        worst = max(one["error"] for one in rows.values())
        yield f"exact.{kind}.near", made((f"{len(near)}", f"{len(rows)}", f"{ERROR:g}"))
        yield f"exact.{kind}.certain", made((f"{len(sure)}", f"{100 * off:.1f}"))
        yield f"exact.{kind}.worst", made((f"{worst:.3f}",))
    for name, (found, blocks) in calibrations().items():
        count = sum(sum(one["statuses"].values()) for one in blocks)
        share = f"{found.coverage(0.9):.3f}"
        told_of = Figure((f"{count:,}", "90", share), "", "exact", commits_of(blocks))
        yield f"exact.calibration.{name}", told_of
    heart, nuts = told("heart")[""], told("nuts")["heart"]
    accuracy = sum(heart["accuracy"].values()) / len(heart["accuracy"])
    masses = heart["masses"].values()
    ends = (f"{100 * end(masses):.1f}" for end in (min, max))
    values = f"{accuracy:.3f}", f"{heart['nll']:.3f}", f"{nuts['nll']:.3f}", "90", *ends
    yield "exact.heart", Figure(values, "", "exact", (heart["commit"],))

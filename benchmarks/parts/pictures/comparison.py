"""Five methods side by side on digits, as `bayesfed compare` runs them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from parts.front.record import RECORDS, runs
from parts.pictures.style import BLUE, GREEN, GREY, ORANGE, RED, figure, save, tidy

ROOT = Path(__file__).parents[3]
METHODS = {
    "d_turbo_vbi": ("D-Turbo-VBI", BLUE),
    "fed_avg": ("FedAvg", GREY),
    "fed_paq": ("FedPAQ", ORANGE),
    "fed_hm": ("FedHM", GREEN),
}
METHODS["fs_lora"] = ("FSLoRA", RED)


def measure() -> None:
    """Run `bayesfed compare` in `results/digits`, whose runs are kept and gone on with, and write
    its curves; four minutes.
    """
    files, folder = (
        [str(ROOT / "examples" / "experiments" / f"{name}.toml") for name in METHODS],
        ROOT / "results" / "digits",
    )
    subprocess.run(
        [
            sys.executable,
            "-m",
            "bayesfed.cli.main",
            "compare",
            *files,
            "--quiet",
            "--out",
            str(folder),
        ],
        check=True,
    )
    with (RECORDS / "compare.jsonl").open("w") as file:
        for name in METHODS:
            seeds = [_curve(path) for path in sorted((folder / name).glob("seed-*"))]
            file.write(json.dumps({"name": name, "run": {"seeds": seeds}}) + "\n")


def _curve(folder: Path) -> list[list[float]]:
    """Return (megabytes, accuracy) of every round of a folder of results."""
    rows = [json.loads(text) for text in (folder / "rounds.jsonl").read_text().splitlines()]
    return [
        [sum(part["cost"]["bits"] for part in row["rows"]) / 8e6, row["metrics"]["accuracy"]]
        for row in rows
    ]


def draw() -> None:
    """Draw their accuracy against rounds and against megabytes."""
    for path in save(_drawn, "compare_digits"):
        print(path.name)


def _drawn() -> Figure:
    found = dict(runs("compare"))
    whole = figure(8.4, 3.6)
    panels = whole.subplots(1, 2, sharey=True)
    for method, (name, colour) in METHODS.items():
        seeds = np.array(found[method]["seeds"])
        spent, mean = seeds[:, :, 0].cumsum(1).mean(0), 100 * seeds[:, :, 1].mean(0)
        for axes, x in zip(panels, (np.arange(1, len(mean) + 1), spent), strict=True):
            axes.plot(
                x, mean, color=colour, linewidth=2.4 if method == "d_turbo_vbi" else 1.5, label=name
            )
            axes.plot(x[-1], mean[-1], ".", color=colour, markersize=8)
    for axes, label in zip(
        panels, ("round", "megabytes of all messages, down and up (log)"), strict=True
    ):
        tidy(axes).set(xlabel=label, ylim=(60, 98))
    panels[0].set(ylabel="test accuracy, %, mean of two seeds", xticks=[1, 5, 10, 15, 20])
    panels[0].legend(loc="lower right", fontsize=9)
    panels[1].set(xscale="log", xlim=(0.3, 17), xticks=[0.5, 1, 2, 5, 10])
    panels[1].xaxis.set_major_formatter("{x:g}")
    panels[1].xaxis.set_minor_formatter("")
    return whole

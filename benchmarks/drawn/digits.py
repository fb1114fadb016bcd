"""Digits: which weights of the first layer README's quickstart leaves, and five methods side by side by `bayesfed compare`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from front_door.figures import RECORDS, runs
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

import bayesfed as bf
from bayesfed.federated import keep
from drawn.style import BLUE, GREEN, GREY, ORANGE, RED, figure, save, tidy

EXPERIMENTS = Path(__file__).parents[2] / "examples" / "experiments"
METHODS = {"d_turbo_vbi": BLUE, "fed_avg": GREY, "fed_paq": ORANGE, "fed_hm": GREEN, "fs_lora": RED}
NAMES = {"d_turbo_vbi": "D-Turbo-VBI", "fed_avg": "FedAvg", "fed_paq": "FedPAQ", "fed_hm": "FedHM", "fs_lora": "FSLoRA"}


def measure_comparison() -> None:
    """Write what `bayesfed compare` gives; its runs are kept in `results/digits` and gone on with."""
    files, folder = [str(EXPERIMENTS / f"{name}.toml") for name in METHODS], Path("results/digits")
    subprocess.run([sys.executable, "-m", "bayesfed.cli.main", "compare", *files, "--quiet", "--out", str(folder)], check=True)
    entries = [{"name": name, "run": {"seeds": [_curve(path) for path in sorted((folder / name).glob("seed-*"))]}} for name in METHODS]
    (RECORDS / "compare.jsonl").write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))


def _curve(folder: Path) -> list[list[float]]:
    """Return (megabytes of the round, seconds of the round, accuracy) of every round of a folder of results."""
    rows = [json.loads(text) for text in (folder / "rounds.jsonl").read_text().splitlines()]
    return [[sum(part["cost"]["bits"] for part in row["rows"]) / 8e6, row["seconds"], row["metrics"]["accuracy"]] for row in rows]


def measure_quickstart() -> None:
    """Run README's quickstart and write its table and the masks of its first layer."""
    train, test = bf.digits()
    clients = bf.federate(train, bf.dirichlet(train.targets, 10, 0.5, bf.Key(0, "partition")))
    net = bf.mlp([64, 128, 64, 10], bf.Key(0, "net"))
    prior = bf.Prior(support=bf.MarkovGrid(row=0.6, column=0.6), precision=bf.BernoulliGamma())
    work = bf.Training(steps=25, optimiser=bf.Adam(5e-3))
    ours = bf.d_turbo_vbi(bf.declare(net, prior), observations=len(train), density=0.2, training=work)
    frames: dict[int, torch.Tensor] = {}
    result = bf.run(ours, clients, rounds=30, test=test, callbacks=[keep("1.weight.log_odds", frames, every=10)], progress=False)
    masks = {str(number + 1): np.packbits((leaf > 0).numpy()).tobytes().hex() for number, leaf in frames.items()}
    run = {"shape": [128, 64], "masks": masks, "table": result.table(every=10)}
    (RECORDS / "quickstart.jsonl").write_text(json.dumps({"name": "quickstart", "run": run}) + "\n")


def supports() -> None:
    """Draw the active weights of the first layer over the rounds."""
    for path in save(_supports, "support_maps"):
        print(path.name)


def _supports() -> Figure:
    run = dict(runs("quickstart"))["quickstart"]
    height, width = run["shape"]
    whole = figure(8.4, 4.2)
    panels = whole.subplots(1, len(run["masks"]), sharey=True)
    for axes, (number, packed) in zip(panels, run["masks"].items(), strict=True):
        mask = np.unpackbits(np.frombuffer(bytes.fromhex(packed), dtype=np.uint8))[: height * width].reshape(height, width)
        axes.imshow(mask, cmap=ListedColormap([(0, 0, 0, 0), BLUE]), vmin=0, vmax=1, aspect="auto", interpolation="nearest")
        axes.set(title=f"round {number}: {100 * mask.mean():.0f} %", xlabel="input", xticks=[0, 31, 63])
    panels[0].set(ylabel="hidden unit", yticks=[0, 63, 127])
    return whole


def compare() -> None:
    """Draw the accuracy of five methods against rounds, megabytes and seconds."""
    for path in save(_compare, "compare_digits"):
        print(path.name)


def _compare() -> Figure:
    found = dict(runs("compare"))
    whole = figure(8.4, 3.4)
    panels = whole.subplots(1, 2, sharey=True)
    for name, colour in METHODS.items():
        seeds = np.array(found[name]["seeds"])
        spent, mean = seeds[:, :, 0].cumsum(1).mean(0), 100 * seeds[:, :, 2].mean(0)
        for axes, x in zip(panels, (np.arange(1, len(mean) + 1), spent), strict=True):
            axes.plot(x, mean, color=colour, linewidth=2.4 if name == "d_turbo_vbi" else 1.5, label=NAMES[name])
            axes.plot(x[-1], mean[-1], ".", color=colour, markersize=8)
    for axes, label in zip(panels, ("round", "megabytes of all messages, down and up (log)"), strict=True):
        tidy(axes).set(xlabel=label, ylim=(70, 98))
    panels[0].set(ylabel="test accuracy, %, mean of two seeds", xticks=[1, 5, 10, 15, 20])
    panels[0].legend(loc="lower right", fontsize=9)
    panels[1].set(xscale="log", xticks=[0.5, 1, 2, 5, 10])
    panels[1].xaxis.set_major_formatter("{x:g}")
    panels[1].xaxis.set_minor_formatter("")
    return whole

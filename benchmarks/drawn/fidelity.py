"""Every rule of fusion beside the exact posterior: how far its means are off, and how wide it is."""

from __future__ import annotations

import json

from front_door.figures import RECORDS, runs
from matplotlib.figure import Figure

from drawn.style import BLUE, GREY, ORANGE, figure, save, tidy

SPLITS = {"iid": ("like clients (IID)", BLUE, -0.13), "features": ("clients that see 3 of 8 features", ORANGE, 0.13)}


def measure() -> None:
    """Fit every rule on both partitions and write the record; a few minutes."""
    import torch
    from fidelity import RULES, by_split
    from fidelity_fits import Job, solve

    torch.set_num_threads(1)
    with (RECORDS / "fidelity.jsonl").open("w") as file:
        for split in SPLITS:
            exact, rules = by_split(split, {rule: solve(Job("linear", split, 5, rule)) for rule in RULES})
            found = {
                rule: {"mean": ((q.mean - exact.mean) / exact.sd).tolist(), "sd": (q.sd / exact.sd).tolist(), "label": label}
                for rule, (q, label) in rules.items()
            }
            file.write(json.dumps({"name": split, "run": found}) + "\n")


def draw() -> None:
    """Draw it."""
    for path in save(_drawn, "fidelity_rules"):
        print(path.name)


def _drawn() -> Figure:
    found = dict(runs("fidelity"))
    whole = figure(8.6, 4.4)
    left, right = whole.subplots(1, 2, sharey=True)
    rules = list(found["iid"])
    for split, (name, colour, shift) in SPLITS.items():
        for place, rule in enumerate(rules):
            for axes, values in ((left, [max(0.005, abs(value)) for value in found[split][rule]["mean"]]), (right, found[split][rule]["sd"])):
                axes.plot(values, [place + shift] * len(values), ".", color=colour, markersize=6, alpha=0.8, label=name if place == 0 else None)
    left.set(xscale="log", xlabel="distance of each mean to the exact one, in exact sds", xlim=(0.004, 40))
    right.set(xscale="log", xlabel="each sd as a multiple of the exact one", xlim=(0.3, 8))
    for axes in (left, right):
        tidy(axes).xaxis.set_major_formatter("{x:g}")
    right.xaxis.set_minor_formatter("")
    right.set_xticks([0.5, 1, 2, 4])
    right.axvline(1, color=GREY, linewidth=1)
    left.set_yticks(range(len(rules)), rules)
    left.invert_yaxis()
    whole.legend(*left.get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return whole

"""Every rule of fusion beside the exact posterior: how far its means are off, and how wide
it is.
"""

from __future__ import annotations

import json

from matplotlib.figure import Figure
from parts.front.record import RECORDS, runs
from parts.pictures.style import BLUE, GREY, ORANGE, figure, save, tidy

SPLITS = {
    "iid": ("like clients (IID)", BLUE, -0.13),
    "features": ("clients that see 3 of 8 features", ORANGE, 0.13),
}


def measure() -> None:
    """Fit every rule on both partitions, as `fidelity.py` does, and write means and sds in sds of
    the exact posterior; minutes.
    """
    import torch
    from fidelity import by_split
    from parts.fidelity.fits import RULES, Job, solve

    torch.set_num_threads(1)
    entries = []
    for split in SPLITS:
        exact, rules = by_split(
            split, {rule: solve(Job("linear", split, 5, rule)) for rule in RULES}
        )
        entries.append(
            {
                "name": split,
                "run": {
                    rule: {
                        "mean": ((q.mean - exact.mean) / exact.sd).tolist(),
                        "sd": (q.sd / exact.sd).tolist(),
                        "label": label,
                    }
                    for rule, (q, label) in rules.items()
                },
            }
        )
    (RECORDS / "fidelity.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))


def draw() -> None:
    """Draw it."""
    for path in save(_drawn, "fidelity_forest"):
        print(path.name)


def _drawn() -> Figure:
    found = dict(runs("fidelity"))
    rules = [rule for rule in found["iid"] if rule != "commit"]
    whole = figure(8.6, 0.9 + 0.32 * len(rules))
    left, right = whole.subplots(1, 2, sharey=True)
    for split, (name, colour, shift) in SPLITS.items():
        for place, rule in enumerate(rules):
            # What is nearer than 0.005 sds stands at the edge.
            off, wide = (
                [max(0.005, abs(value)) for value in found[split][rule]["mean"]],
                found[split][rule]["sd"],
            )
            for axes, values in ((left, off), (right, wide)):
                axes.plot(
                    values,
                    [place + shift] * len(values),
                    ".",
                    color=colour,
                    markersize=6,
                    alpha=0.8,
                    label=name if place == 0 else None,
                )
    left.set(
        xscale="log",
        xlabel="distance of each mean to the exact one, in exact sds",
        xlim=(0.004, 150),
    )
    right.set(xscale="log", xlabel="each sd as a multiple of the exact one", xlim=(0.11, 9))
    for axes in (left, right):
        tidy(axes).xaxis.set_major_formatter("{x:g}")
    right.xaxis.set_minor_formatter("")
    right.set_xticks([0.125, 0.25, 0.5, 1, 2, 4, 8])
    right.axvline(1, color=GREY, linewidth=1)
    left.set_xticks([0.005, 0.1, 1, 10, 100], ["≤ 0.005", "0.1", "1", "10", "100"])
    left.set_yticks(range(len(rules)), rules)
    left.invert_yaxis()
    whole.legend(*left.get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return whole

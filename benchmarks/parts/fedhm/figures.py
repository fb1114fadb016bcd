"""The pictures of `fedhm.py`, and the two figures that need no training: costs by layer (Fig. 7)
and inference.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from parts.fedhm.runs import Finished
from parts.shared.targets import interleaved, ratio
from torch import Tensor, nn

from bayesfed.inspect import save
from bayesfed.models import costs, dense_or_thin, hybrid
from bayesfed.models.low_rank.hybrid import Whole
from bayesfed.trees import parameters, size


def by_round(groups: Mapping[str, Sequence[Finished]], path: Path, *, title: str) -> None:
    """Draw the smallest model's accuracy by round, mean and range over seeds; Fig. 2."""
    axes: Axes = Figure(figsize=(7.5, 4.4), layout="constrained").subplots()
    for number, (label, runs) in enumerate(groups.items()):
        columns = list(zip(*(run.rows for run in runs), strict=False))
        values = [[100 * row[2][-1] for row in column] for column in columns]
        at = [column[0][0] for column in columns]
        style = "-" if label.startswith("FedHM") else ("--", "-.", ":")[number % 3]
        note = ", diverges" if any(run.failure for run in runs) else ""
        line = axes.plot(
            at,
            [statistics.mean(value) for value in values],
            style,
            linewidth=1.5,
            label=f"{label}, {runs[0].counts[-1]:,}{note}",
        )[0]
        axes.fill_between(
            at,
            [min(value) for value in values],
            [max(value) for value in values],
            color=line.get_color(),
            alpha=0.15,
            linewidth=0,
        )
    axes.set(xlabel="round", ylabel="accuracy of the smallest model, %")
    axes.set_title(title, fontsize=9)
    axes.grid(alpha=0.3)
    axes.legend(
        title="method, parameters",
        fontsize=7,
        title_fontsize=7,
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        frameon=False,
    )
    save(axes, path)


def by_size(groups: Mapping[str, Sequence[Sequence[Finished]]], path: Path, *, title: str) -> None:
    """Draw accuracy against parameters, a line through the means and a dot a seed; Figs. 3
    and 8.
    """
    axes: Axes = Figure(figsize=(6.8, 4.0), layout="constrained").subplots()
    for label, cases in groups.items():
        points = sorted(
            (runs[0].counts[-1], [100 * run.last(-1, run.settings["last"]) for run in runs])
            for runs in cases
        )
        (line,) = axes.plot(
            [count for count, _ in points],
            [statistics.mean(values) for _, values in points],
            linewidth=1.2,
            label=label,
        )
        dots = [(count, value) for count, values in points for value in values]
        axes.plot(*zip(*dots, strict=True), "o", markersize=4, alpha=0.6, color=line.get_color())
    axes.set(xscale="log", xlabel="parameters of a client's model", ylabel="accuracy, %")
    axes.set_title(title, fontsize=9)
    axes.grid(alpha=0.3, which="both")
    axes.legend(fontsize=8, frameon=False)
    save(axes, path)


def by_layer(
    net: nn.Module,
    example: Tensor,
    ratios: Sequence[float],
    whole: Whole,
    path: Path,
    *,
    title: str,
) -> list[list[str | float | int]]:
    """Draw parameters and MACs of every layer at every ratio, Fig. 7; return a row a layer, with
    parameters and MACs at each.
    """
    found = [
        {
            row.layer: row
            for row in costs(net if share == 1 else hybrid(net, share, whole=whole), example)
        }
        for share in ratios
    ]
    names = [name for name, row in found[0].items() if row.macs]
    plots = Figure(figsize=(10, 5.2), layout="constrained").subplots(2, 1, sharex=True)
    width = 0.8 / len(ratios)
    for number, (share, rows) in enumerate(zip(ratios, found, strict=True)):
        for axes, values in zip(
            plots,
            ([rows[name].parameters for name in names], [rows[name].macs for name in names]),
            strict=True,
        ):
            axes.bar(
                [place + (number - (len(ratios) - 1) / 2) * width for place in range(len(names))],
                values,
                width,
                label=f"ratio {share:g}",
            )
    for axes, what in zip(plots, ("parameters", "MACs of an example"), strict=True):
        axes.set(ylabel=what, yscale="log")
        axes.grid(alpha=0.3, axis="y")
    plots[0].set_title(title, fontsize=9)
    plots[0].legend(fontsize=8, ncols=len(ratios), frameon=False)
    plots[1].set_xticks(range(len(names)), names, rotation=60, ha="right", fontsize=7)
    save(plots[0], path)
    return [
        [name, *(cell for rows in found for cell in (rows[name].parameters, rows[name].macs))]
        for name in names
    ]


def inference(
    net: nn.Module, inputs: Tensor, ratios: Sequence[float], whole: Whole, repeats: int
) -> list[list[str | float | int]]:
    """Time a plain torch module at every ratio beside the dense network, in turn; return ratio,
    parameters, ms, and how many times quicker.
    """
    nets = {
        f"{share:g}": net if share == 1 else dense_or_thin(hybrid(net, share, whole=whole))
        for share in ratios
    }
    seconds = interleaved(
        {name: partial(_forward, made.eval(), inputs) for name, made in nets.items()}, repeats
    )
    rows: list[list[str | float | int]] = []
    for name, made in nets.items():
        mine, count = seconds[name], size(parameters(made))
        rows.append(
            [
                name,
                f"{count:,}",
                f"{4 * count / 1e6:.2f}",
                f"{1e3 * statistics.median(mine):.1f}",
                f"{ratio(seconds['1'], mine):.2f}",
            ]
        )
    return rows


def _forward(net: nn.Module, inputs: Tensor) -> Tensor:
    with torch.no_grad():
        output: Tensor = net(inputs)
    return output

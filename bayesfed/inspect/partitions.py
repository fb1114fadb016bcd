"""Partitions: the number of rows of each class that each client holds, as a table and as a plot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bayesfed.data import Dataset
from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import checked
from bayesfed.inspect.figures import new_figure
from bayesfed.inspect.tables import table

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@checked()
def partition_table(clients: Mapping[str, Dataset]) -> str:
    """Return a table of numbers of rows, with a line for each client, a column for each class, and
    totals.

    Parameters
    ----------
    clients
        Data sets by client, as returned by `federate`. Columns have the names in `Dataset.classes`,
        or numbers.

    Raises
    ------
    ArgumentError
        If there are no clients, their targets are not class labels, or their class names differ.
    """
    names, counts = _counts(clients, "partition_table")
    lines: list[list[str | int]] = [
        [client, *row, sum(row)] for client, row in zip(clients, counts.tolist(), strict=True)
    ]
    totals = counts.sum(0).tolist()
    return table(["client", *names, "rows"], [*lines, ["all", *totals, sum(totals)]])


@checked()
def plot_partition(clients: Mapping[str, Dataset]) -> Axes:
    """Plot the number of rows of each class at each client: clients from top to bottom, classes
    from left to right, numbers if there is room.

    Parameters
    ----------
    clients
        Data sets by client, as returned by `federate`. Columns have the names in `Dataset.classes`,
        or numbers.

    Raises
    ------
    ArgumentError
        If there are no clients, their targets are not class labels, or their class names differ.
    """
    names, counts = _counts(clients, "plot_partition")
    few, short = len(clients) <= 40, len(names) <= 30  # few enough for readable names
    height, width = 0.3 if few else 7 / len(clients), 0.5 if short else 14 / len(names)
    axes: Axes = new_figure(
        max(4.0, 2.6 + width * len(names)), max(2.4, 1.3 + height * len(clients))
    ).subplots()
    image = axes.imshow(
        counts.numpy(), aspect="auto", interpolation="nearest", cmap="Blues", vmin=0
    )
    if few:
        axes.set_yticks(
            range(len(clients)),
            [f"{client} ({int(row.sum())})" for client, row in zip(clients, counts, strict=True)],
            fontsize=7,
        )
    if short:
        axes.set_xticks(range(len(names)), names, fontsize=7)
        if max(map(len, names), default=0) > 3:
            for label in axes.get_xticklabels():
                label.set(rotation=45, ha="right", rotation_mode="anchor")
    for client, place in (
        counts.nonzero().tolist() if few and short else ()
    ):  # empty cells have no number
        rows = int(counts[client, place])
        shade = "white" if rows > 0.6 * int(counts.max()) else "0.15"
        axes.text(place, client, str(rows), ha="center", va="center", fontsize=6.5, color=shade)
    axes.set(xlabel="class", ylabel="client (rows)" if few else "client")
    axes.figure.colorbar(image, ax=axes, label="rows")
    return axes


def _counts(clients: Mapping[str, Dataset], where: str) -> tuple[list[str], Tensor]:
    """Return the names of the classes and the numbers of rows ``(clients, classes)``."""
    if not clients:
        raise ArgumentError(where, "at least one client", "none", "bf.federate(train, parts)")
    for client, data in clients.items():
        if data.targets.is_floating_point() or data.targets.ndim != 1:
            raise ArgumentError(
                f"{where}, {client}",
                "class labels (N,)",
                f"{data.targets.dtype} {tuple(data.targets.shape)}",
                "a set with labels",
            )
    named = sorted({data.classes for data in clients.values()})
    if len(named) != 1:
        raise ArgumentError(
            where, "clients with the same classes", named[:2], "bf.federate of one data set"
        )
    held = max((int(data.targets.max()) + 1 for data in clients.values() if len(data)), default=0)
    names = list(named[0]) or [str(number) for number in range(held)]
    return names, torch.stack(
        [torch.bincount(data.targets.cpu(), minlength=len(names)) for data in clients.values()]
    )

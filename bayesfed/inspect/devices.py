"""Plots of the cost of rounds for devices: stacked bars of computing and up-link, in seconds and
joules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import checked
from bayesfed.federated.core import Cost
from bayesfed.inspect.figures import new_figure
from bayesfed.wireless import RoundCost

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COMPUTING, _UPLINK = "#3b6ea5", "#e39b3f"


@checked()
def plot_client_costs(
    costs: Mapping[str, RoundCost | Cost],
    *,
    latency_s: float | None = None,
    energy_j: Mapping[str, float] | None = None,
) -> tuple[Axes, Axes]:
    """Plot the latency and energy of each client in a round, with the deadline as a line and energy
    budgets as marks.

    Parameters
    ----------
    costs
        Costs by client, from plans or from the ledger of a round, without the clients that did not
        take part.
    latency_s
        Deadline in seconds.
    energy_j
        Energy budgets in joules by client.

    Raises
    ------
    ArgumentError
        If there are no clients.
    MissingExtraError
        If Matplotlib is not installed.
    """
    if not costs:
        raise ArgumentError("plot_client_costs", "at least one client", "none", "{name: plan.cost}")
    above, below = new_figure(max(4.0, 1.8 + 0.3 * len(costs)), 5.2).subplots(2, 1, sharex=True)
    places = [float(number) for number in range(len(costs))]
    for axes, unit, label in ((above, "s", "latency [s]"), (below, "j", "energy [J]")):
        _stack(axes, places, list(costs.values()), unit)
        axes.set_ylabel(label)
    if latency_s is not None:
        above.axhline(
            latency_s, color="0.2", linestyle="--", linewidth=1, label=f"deadline {latency_s:g} s"
        )
    if energy_j:
        kept = [
            (place, energy_j[name])
            for place, name in zip(places, costs, strict=True)
            if name in energy_j
        ]
        below.plot(
            [place for place, _ in kept],
            [budget for _, budget in kept],
            "_",
            color="0.2",
            markersize=9,
            label="budget",
        )
    below.set_xticks(
        places, list(costs), rotation=45, ha="right", rotation_mode="anchor", fontsize=8
    )
    # The bars may fill the panels, so the legends are beside them.
    for axes in (above, below):
        axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1))
    return above, below


def _stack(
    axes: Axes, places: list[float] | list[int], costs: Sequence[RoundCost | Cost], unit: str
) -> None:
    computing = [float(getattr(cost, f"compute_{unit}")) for cost in costs]
    uplink = [float(getattr(cost, f"uplink_{unit}")) for cost in costs]
    axes.bar(places, computing, color=_COMPUTING, width=0.8, label="computing")
    axes.bar(places, uplink, bottom=computing, color=_UPLINK, width=0.8, label="up-link")
    axes.grid(alpha=0.3, axis="y")
    axes.set_axisbelow(True)

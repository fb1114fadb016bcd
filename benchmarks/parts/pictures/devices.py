"""Seconds and joules of the devices of `examples/on_demand.py` in its last round, those that were
left out among them.
"""

from __future__ import annotations

import json
from pathlib import Path

from matplotlib.figure import Figure
from parts.front.record import RECORDS, runs
from parts.pictures.style import BLUE, GREY, ORANGE, figure, save, tidy

ROOT = Path(__file__).parents[3]


def measure() -> None:
    """Run the example's AnycostFL and write the last round; a minute."""
    import bayesfed as bf
    from examples import on_demand as example

    train, test = bf.digits()
    public, private = train[:16], train[16:]
    clients = bf.federate(private, bf.dirichlet(private.targets, 12, 0.5, bf.Key(0, "partition")))
    devices = example.fleet(sorted(clients), 0)
    pool = bf.InProcess(
        clients, devices={name: device.figures() for name, device in devices.items()}
    )
    algorithm = example.methods(train, public, 0)["AnycostFL"]
    result = bf.run(algorithm, pool, rounds=25, test=test, on_client_error="drop", progress=False)
    last = result.history[-1]
    rows = {row.client: row for row in last.rows if row.direction == "up" and not row.reason}
    found = {
        name: {
            "budget": device.energy_j,
            "reason": dict(last.refused).get(name, ""),
            "cost": None
            if name not in rows
            else [
                rows[name].cost.compute_s,
                rows[name].cost.uplink_s,
                rows[name].cost.compute_j,
                rows[name].cost.uplink_j,
            ],
        }
        for name, device in devices.items()
    }
    (RECORDS / "on_demand.jsonl").write_text(
        json.dumps(
            {"name": "last round", "run": {"deadline": example.DEADLINE_S, "clients": found}}
        )
        + "\n"
    )


def draw() -> None:
    """Draw it."""
    for path in save(_drawn, "on_demand_clients"):
        print(path.name)


def _drawn() -> Figure:
    run = dict(runs("on_demand"))["last round"]
    clients = run["clients"]
    whole = figure(7.4, 4.6)
    above, below = whole.subplots(2, 1, sharex=True)
    for place, client in enumerate(clients.values()):
        if client["cost"] is None:
            said = "over budget" if "energy" in client["reason"] else "late"
            for axes in (above, below):
                axes.text(
                    place,
                    0.06,
                    f"out: {said}",
                    rotation=90,
                    color=GREY,
                    fontsize=8.5,
                    ha="center",
                    transform=axes.get_xaxis_transform(),
                )
            continue
        for axes, (computing, uplink) in ((above, client["cost"][:2]), (below, client["cost"][2:])):
            axes.bar(place, computing, 0.7, color=BLUE)
            axes.bar(place, uplink, 0.7, bottom=computing, color=ORANGE)
        below.plot(place, client["budget"], "_", color=GREY, markersize=14, markeredgewidth=2)
    above.axhline(run["deadline"], color=GREY, linestyle="--")
    above.text(
        -0.5,
        run["deadline"] * 1.03,
        f"deadline {run['deadline']:g} s",
        color=GREY,
        fontsize=8.5,
        va="bottom",
    )
    tidy(above).set(ylabel="seconds", ylim=(0, 1.2 * run["deadline"]))
    tidy(below).set(ylabel="joules", xlabel="client")
    below.set_xticks(
        range(len(clients)), [name.removeprefix("client-").lstrip("0") or "0" for name in clients]
    )
    below.plot([], [], "s", color=BLUE, label="computing")
    below.plot([], [], "s", color=ORANGE, label="sending")
    below.plot([], [], "_", color=GREY, markersize=12, markeredgewidth=2, label="budget")
    below.legend(ncols=3, loc="lower center", bbox_to_anchor=(0.5, 0.98), fontsize=8.5)
    return whole

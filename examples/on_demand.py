"""Train digits on devices that differ in speed, battery and channel, each as much as it can within
five seconds a round.

python examples/on_demand.py [--rounds 25] [--seed 0] [--out results/on_demand]

AnycostFL gives every device a width of the network and a size of message that its deadline and its
energy budget allow in this round. Beside it QSGD, where all train the whole network and send the
same, within the same budgets: a device that cannot train a whole epoch takes the steps that fit.
Twelve devices, their budgets and where they move are drawn; they are as much slower than the
paper's as digits are easier than what it trains.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from matplotlib.figure import Figure

import bayesfed as bf
from bayesfed.federated import energy_j, evaluate, latency_s, score
from bayesfed.federated.engine.reports import Row
from bayesfed.inspect import plot_client_costs, save, table
from bayesfed.models import channel_graph, shrunk_shares

DEADLINE_S = 5.0


def main() -> None:
    """Run both, print what they reach and spend, draw one round's costs, all rounds' plans and
    accuracy against energy.
    """
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--rounds", type=int, default=25)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--out", type=Path, default=Path("results/on_demand"))
    chosen = arguments.parse_args()

    train, test = bf.digits()
    public, private = train[:16], train[16:]
    clients = bf.federate(
        private, bf.dirichlet(private.targets, 12, 0.5, bf.Key(chosen.seed, "partition"))
    )
    devices = fleet(sorted(clients), chosen.seed)
    pool = bf.InProcess(
        clients, devices={name: device.figures() for name, device in devices.items()}
    )
    rows: list[list[str | float]] = []
    curves, results = {}, {}
    for method, algorithm in methods(train, public, chosen.seed).items():
        results[method] = result = bf.run(
            algorithm,
            pool,
            rounds=chosen.rounds,
            seed=chosen.seed,
            callbacks=[evaluate(test)],
            on_client_error="drop",
        )
        up = [row for row in result.ledger if row.direction == "up" and not row.reason]
        out = sum(bool(row.reason) for row in result.ledger)
        curves[method] = spent(result)
        figures = (
            energy_j(result.ledger),
            latency_s(result.ledger, DEADLINE_S) / 60,
            sum(row.bits for row in up) / 8e3,
            out,
        )
        over = sum(row.cost.energy_j > devices[row.client].energy_j for row in up)
        rows.append(
            [
                method,
                f"{100 * score(result.model, test):.1f} %",
                f"{figures[0]:.0f}",
                f"{figures[1]:.1f}",
                f"{figures[2]:.0f}",
                out,
                over,
            ]
        )
    print(
        table(
            ["method", "accuracy", "energy, J", "time, min", "kB up", "left out", "over budget"],
            rows,
        )
    )

    ledger = results["AnycostFL"].ledger
    last = {
        row.client: row.cost
        for row in ledger
        if row.direction == "up" and row.round == chosen.rounds - 1 and not row.reason
    }
    budgets = {name: device.energy_j for name, device in devices.items()}
    save(
        plot_client_costs(last, latency_s=DEADLINE_S, energy_j=budgets)[0],
        chosen.out / "clients.png",
    )
    plot_plans(ledger).savefig(chosen.out / "plans.png", dpi=110)
    axes = Figure(figsize=(6, 3.6), layout="constrained").subplots()
    for method, curve in curves.items():
        axes.plot(*zip(*curve, strict=True), label=method)
    axes.set(xlabel="energy, J", ylabel="accuracy")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    save(axes, chosen.out / "energy.png")
    print(f"\nclients.png, plans.png and energy.png in {chosen.out}/")


def fleet(names: list[str], seed: int) -> dict[str, bf.Device]:
    """Return devices for which a network of 4,810 parameters is work."""
    slow = replace(
        bf.Device(),
        macs_per_cycle=7e-4,
        bandwidth_hz=3e3,
        noise_w_per_hz=bf.Device().noise_w_per_hz * 300,
    )
    return bf.fleet(names, bf.Key(seed, "fleet"), like=slow)


def methods(train: bf.Dataset, public: bf.Dataset, seed: int) -> dict[str, bf.federated.Algorithm]:
    """Return both methods."""
    net, sample, optimiser = (
        bf.mlp([64, 48, 32, 10], bf.Key(seed, "net")),
        train.inputs[:1],
        bf.Sgd(0.1),
    )
    settings = bf.public_settings(
        net,
        public,
        bf.Key(seed, "settings"),
        training=bf.Training(steps=20, batch_size=None, optimiser=optimiser),
    )
    training = bf.Training(epochs=1.0, batch_size=32, optimiser=optimiser)
    whole = tuple(shrunk_shares(net, channel_graph(net, sample), sample, [1.0]))
    planner = bf.Planner(whole, DEADLINE_S, beta=(1 / 15, 1 / 15), epochs=1.0, batch_size=32)
    return {
        "AnycostFL": bf.anycost_fl(
            net, sample, deadline_s=DEADLINE_S, settings=settings, training=training
        ),
        "QSGD on devices": bf.on_devices(
            bf.qsgd(net, share=0.1, levels=4, training=training), planner
        ),
    }


def spent(result: bf.Result) -> list[tuple[float, float]]:
    """Return (joules so far, accuracy) after every round."""
    total, curve = 0.0, []
    for record in result.history:
        total += energy_j(record.rows)
        curve.append((total, record.metrics["accuracy"]))
    return curve


def plot_plans(ledger: Sequence[Row]) -> Figure:
    """Draw each client's share of the network's work in each round (top), and the kilobits that it
    really sent (bottom); rounds in which it did not take part are blank.
    """
    planned = [row for row in ledger if row.direction == "up" and row.cost.alpha]
    names = sorted({row.client for row in planned})
    alphas, kilobits = torch.full(
        (2, len(names), 1 + max(row.round for row in planned)), float("nan")
    )
    for row in planned:
        place = names.index(row.client), row.round
        alphas[place], kilobits[place] = row.cost.alpha, row.bits / 1e3
    figure = Figure(figsize=(5.5, 2.0 + 0.4 * len(names)), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    for axes, values, label in ((above, alphas, "alpha"), (below, kilobits, "kb sent")):
        image = axes.imshow(values, aspect="auto", interpolation="nearest", cmap="viridis", vmin=0)
        axes.set_yticks(range(len(names)), names, fontsize=7)
        figure.colorbar(image, ax=axes, label=label)
    below.set_xlabel("round")
    return figure


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()

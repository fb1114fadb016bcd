"""Learn handwritten digits over ten devices: a clustered-sparse posterior beside FedAvg, in under a
minute.

python examples/quickstart.py [--rounds 30] [--out results/quickstart]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

import bayesfed as bf
from bayesfed.federated import keep
from bayesfed.inspect import (
    plot_accuracy_against_bits,
    plot_forest,
    plot_partition,
    plot_support_maps,
    save,
    table,
)


def main() -> None:
    """Run both methods, print what they cost, write pictures and an ArviZ file."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--rounds", type=int, default=30)
    arguments.add_argument("--out", type=Path, default=Path("results/quickstart"))
    chosen = arguments.parse_args()

    train, test = bf.digits()
    clients = bf.federate(train, bf.dirichlet(train.targets, 10, 0.5, bf.Key(0, "partition")))
    save(plot_partition(clients), chosen.out / "partition.png")
    net = bf.mlp([64, 128, 64, 10], bf.Key(0, "net"))

    # What is believed: active weights cluster along rows and columns. A fifth of them is to be
    # left.
    prior = bf.Prior(
        support=bf.models.MarkovGrid(row=0.6, column=0.6), precision=bf.BernoulliGamma()
    )
    work = bf.Training(steps=25, optimiser=bf.Adam(5e-3))
    ours = bf.d_turbo_vbi(
        bf.declare(net, prior), observations=len(train), density=0.2, training=work
    )
    plain = bf.fed_avg(net, training=work, codec=bf.Cast(16))

    frames: dict[int, torch.Tensor] = {}
    sparse = bf.run(
        ours,
        clients,
        rounds=chosen.rounds,
        test=test,
        callbacks=[keep("prior_log_odds/1.weight", frames, every=10)],
    )
    dense = bf.run(plain, clients, rounds=chosen.rounds, test=test)

    print(sparse.table(every=5), end="\n\n")
    rows: list[list[str | float]] = [
        [
            name,
            f"{100 * run.final('accuracy'):.1f} %",
            f"{100 * share:.1f} %",
            run.bits("down") / 8e6,
            run.bits("up") / 8e6,
        ]
        for name, run, share in (
            ("D-Turbo-VBI", sparse, sparse.final("density")),
            ("FedAvg", dense, 1.0),
        )
    ]
    print(table(["method", "accuracy", "weights sent", "MB down", "MB up"], rows))

    pictures = {
        "support_maps": plot_support_maps(
            frames, title="First layer: what neighbours say of each weight"
        )[0],
        "accuracy_against_bits": plot_accuracy_against_bits(
            {"D-Turbo-VBI": sparse.history, "FedAvg": dense.history}
        ),
        "elbo": sparse.plot_elbo(),
        "forest": plot_forest(sparse.belief["1.weight"]),
    }
    for name, axes in pictures.items():
        save(axes, chosen.out / f"{name}.png")
    sparse.to_arviz(test, draws=50).to_netcdf(str(chosen.out / "run.nc"))
    print(f"\npictures and run.nc (for ArviZ) in {chosen.out}/")


if __name__ == "__main__":
    main()

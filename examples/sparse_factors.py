"""Give the factors of low-rank layers a clustered-sparse prior: D-Turbo-VBI on U and V of FedHM's
layers.

python examples/sparse_factors.py [--rounds 24] [--seed 0] [--out results/sparse_factors]

Real digits over ten unlike devices. A layer U V^T of a quarter of the rank has fewer numbers than a
whole one; a prior that switches entries of U and V off leaves fewer still. Whole layers, low rank,
whole layers with the prior and both together are compared at the same local work.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from matplotlib.figure import Figure
from torch import nn

import bayesfed as bf
from bayesfed.inspect import save, table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STEPS = 25


def main() -> None:
    """Run the four, print accuracy, what is left and what was sent, draw the factors' supports."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--rounds", type=int, default=24)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--out", type=Path, default=Path("results/sparse_factors"))
    chosen = arguments.parse_args()

    train, test = bf.digits()
    clients = bf.federate(
        train, bf.dirichlet(train.targets, 10, 0.5, bf.Key(chosen.seed, "partition"))
    )
    net = bf.mlp([64, 128, 64, 10], bf.Key(chosen.seed, "net"))
    thin = bf.models.hybrid(net, 1 / 4, whole=["5"], convention="matrix")

    def sparse(made: nn.Module) -> bf.Result:
        # Factors are as large as they are whatever their fan-in, so the prior's sds are in units of
        # the entries.
        prior = bf.Prior(
            bf.models.MarkovGrid(row=0.6, column=0.6),
            bf.BernoulliGamma(slab_sd=0.5, spike_sd=0.03, relative=False),
        )
        likelihood = bf.Categorical(temperature=0.05)
        declared = bf.declare(
            made,
            prior,
            likelihood=likelihood,
            where=lambda name, module: name.endswith((".u", ".v", "1.weight", "3.weight")),
        )
        algorithm = bf.d_turbo_vbi(
            declared,
            observations=len(train),
            training=bf.Training(steps=STEPS, optimiser=bf.Adam(5e-3)),
            spread="layer",
            warm_up=min(10, chosen.rounds // 2),
        )
        return bf.run(algorithm, clients, rounds=chosen.rounds, test=test, seed=chosen.seed)

    def plain(made: nn.Module) -> bf.Result:
        return bf.run(
            bf.fed_avg(made, training=bf.Training(steps=STEPS, optimiser=bf.Adam(2e-3))),
            clients,
            rounds=chosen.rounds,
            test=test,
            seed=chosen.seed,
        )

    found = {
        "whole": plain(net),
        "low rank": plain(thin),
        "whole, sparse": sparse(net),
        "low rank, sparse": sparse(thin),
    }
    rows: list[list[str | float | int]] = [
        [
            name,
            f"{100 * result.final('accuracy'):.1f} %",
            sum(int((leaf != 0).sum()) for leaf in result.model.parameters.values()),
            f"{result.bits() / 8e6:.2f}",
        ]
        for name, result in found.items()
    ]
    print(table(["network", "accuracy", "numbers left", "MB in all"], rows))
    save(draw(found["low rank, sparse"]), chosen.out / "factors.png")
    print(f"\nfactors.png in {chosen.out}/")


def draw(result: bf.Result) -> Axes:
    """Draw which entries of each factor are on: rows are channels, columns the rank."""
    sites = {name: site.active for name, site in result.belief.items()}
    panels = Figure(figsize=(2.2 * len(sites), 4.2), layout="constrained").subplots(1, len(sites))
    for axes, (name, active) in zip(panels, sites.items(), strict=True):
        axes.imshow(
            active.float(), cmap="Greys", aspect="auto", interpolation="nearest", vmin=0, vmax=1
        )
        axes.set(
            title=f"{name}: {float(torch.as_tensor(active).float().mean()):.0%} on",
            xlabel="rank",
            ylabel="unit",
        )
    first: Axes = panels[0]
    return first


if __name__ == "__main__":
    main()

"""Learn digits over ten devices as a Bayesian network and by FedAvg, and ask both how sure they
are.

python examples/calibrated_digits.py [--rounds 60] [--seeds 0] [--out results/calibrated_digits]

With Dirichlet 100 the devices have all digits alike, with 0.1 one or two each. Accuracy, negative
log likelihood (NLL) and expected calibration error (ECE) are those of test probabilities: the mean
over draws of the posterior, and the softmax of FedAvg's point estimate. Both methods take the same
number of local steps. Points above the diagonal of the picture are doubts that were not needed.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from matplotlib.figure import Figure
from pyro.infer.autoguide import AutoNormal, init_to_value

import bayesfed as bf
from bayesfed.inference.evaluation.scoring import calibration_bins, nll
from bayesfed.inspect import plot_reliability, save, table

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def main() -> None:
    """Run both methods on both splits, print their scores, draw reliability diagrams of the first
    seed.
    """
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--rounds", type=int, default=60)
    arguments.add_argument("--seeds", type=int, nargs="+", default=[0])
    arguments.add_argument("--out", type=Path, default=Path("results/calibrated_digits"))
    chosen = arguments.parse_args()

    train, test = bf.digits()
    rows: list[list[str | float]] = []
    panels: dict[float, Axes] = dict(
        zip(
            (100.0, 0.1),
            Figure(figsize=(10, 6.2), layout="constrained").subplots(1, 2),
            strict=True,
        )
    )
    for seed in chosen.seeds:
        net = bf.mlp([64, 32, 10], bf.Key(seed, "net"))
        start = {name: value.detach() for name, value in net.named_parameters()}
        bayes = bf.federated_svi(
            bf.bayesian(net, bf.Gaussian(0.5)),
            partial(AutoNormal, init_scale=0.05, init_loc_fn=init_to_value(values=start)),
            fusion=bf.SummedGradients(0.03),
            scale="local",
            observations=len(train),
            example=train[:2],
            training=bf.Training(steps=2, batch_size=64),
        )
        plain = bf.fed_avg(net, training=bf.Training(steps=2, batch_size=64, optimiser=bf.Sgd(0.3)))
        for alpha, axes in panels.items():
            clients = bf.federate(
                train, bf.dirichlet(train.targets, 10, alpha, bf.Key(seed, "partition"))
            )
            found = {
                "Bayesian": bf.run(bayes, clients, rounds=chosen.rounds, seed=seed)
                .predictive(test.inputs, draws=50)
                .probabilities,
                "FedAvg": bf.run(plain, clients, rounds=chosen.rounds, seed=seed)
                .model(test.inputs)
                .detach()
                .softmax(-1)[None],
            }
            bins = {
                name: calibration_bins(draws.mean(0), test.targets, bins=10)
                for name, draws in found.items()
            }
            for name, draws in found.items():
                right = (draws.mean(0).argmax(1) == test.targets).float().mean()
                score = nll(draws[:, torch.arange(len(test)), test.targets].log())
                figures = (
                    f"{100 * float(right):.1f} %",
                    f"{float(score):.3f}",
                    f"{float(bins[name].error):.3f}",
                )
                rows.append([f"Dirichlet {alpha:g}", str(seed), name, *figures])
            if seed == chosen.seeds[0]:
                plot_reliability(bins, axes=axes)
                axes.set_xlabel(f"confidence, Dirichlet {alpha:g}")
    print(table(["split", "seed", "method", "accuracy", "NLL", "ECE"], rows))
    save(panels[100.0], chosen.out / "reliability.png")
    print(f"\nreliability.png in {chosen.out}/")


if __name__ == "__main__":
    main()

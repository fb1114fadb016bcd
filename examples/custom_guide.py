"""Write a guide by hand, a Normal for one site and a log-normal for the other, and let two fusion
rules fit it over three clients.

python examples/custom_guide.py [--rounds 40] [--seed 0] [--out results/custom_guide]

Real data: the sepal lengths of scikit-learn's 150 irises, dealt at random. The optimum of this
guide is known in closed form (as in Bishop 2006, 10.1.3), so what was found stands beside it.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import pyro
import pyro.distributions as dist
import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_iris
from torch import Tensor
from torch.distributions import constraints

import bayesfed as bf
from bayesfed.inference.variational.fusion import Fusion
from bayesfed.inspect import save, table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CENTRE_SD, SHAPE, RATE = 10.0, 1.0, 1.0


def model(inputs: Tensor, targets: Tensor | None = None) -> Tensor:
    """Centimetres are N(centre, 1 / precision); centre ~ N(0, 10^2), precision ~ Gamma(1, 1)."""
    centre = pyro.sample("centre", dist.Normal(inputs.new_zeros(()), CENTRE_SD))
    precision = pyro.sample("precision", dist.Gamma(inputs.new_tensor(SHAPE), RATE))
    with pyro.plate("rows", len(inputs)):
        found: Tensor = pyro.sample("y", dist.Normal(centre, precision.rsqrt()), obs=targets)
    return found


def guide(inputs: Tensor, targets: Tensor | None = None) -> None:
    """Draw both sites from Normals of `pyro.param`s, the second through its logarithm. What the
    parameters mean is seen in a run.
    """
    loc = pyro.param("centre_loc", inputs.new_tensor(5.0))
    scale = pyro.param("centre_scale", inputs.new_tensor(0.3), constraint=constraints.positive)
    pyro.sample("centre", dist.Normal(loc, scale))
    log_loc = pyro.param("log_precision_loc", inputs.new_zeros(()))
    log_scale = pyro.param(
        "log_precision_scale", inputs.new_tensor(0.3), constraint=constraints.positive
    )
    log = pyro.sample(
        "log_precision", dist.Normal(log_loc, log_scale), infer={"is_auxiliary": True}
    )
    pyro.sample("precision", dist.Delta(log.exp(), log_density=-log))


def optimum(y: Tensor) -> dict[str, Tensor]:
    """Return the guide that maximises the ELBO of all rows, by coordinate ascent: both steps are
    exact.
    """
    counts, mean = torch.tensor(SHAPE + len(y) / 2), torch.tensor(1.0)  # mean of the precision
    for _ in range(100):
        within = CENTRE_SD**-2 + len(y) * mean
        centre = mean * y.sum() / within
        mean = counts / (RATE + ((y - centre).square().sum() + len(y) / within) / 2)
    figures = {"centre.mean": centre, "centre.sd": within.rsqrt()}
    return figures | {
        "log_precision.mean": mean.log() - 1 / (2 * counts),
        "log_precision.sd": counts.rsqrt(),
    }


def main() -> None:
    """Fit by PVI and by summed gradients, print means and sds below the optimum's, draw all
    three.
    """
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--rounds", type=int, default=40)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--out", type=Path, default=Path("results/custom_guide"))
    chosen = arguments.parse_args()

    raw = load_iris()
    train = bf.Dataset(torch.zeros(len(raw.data), 0), torch.from_numpy(raw.data[:, 0]).float())
    clients = bf.federate(train, bf.iid(len(train), 3, bf.Key(chosen.seed, "partition")))

    fitted = {"optimum": optimum(train.targets)}
    # The same draws in all; gradients want more and shorter rounds.
    rules: dict[str, tuple[Fusion, int]] = {
        "PVI": (bf.PVI(damping=0.5), 1),
        "SummedGradients": (bf.SummedGradients(0.05), 5),
    }
    for name, (fusion, times) in rules.items():
        rounds = times * chosen.rounds
        algorithm = bf.federated_svi(
            model,
            guide,
            fusion=fusion,
            scale="local",
            observations=len(train),
            example=train[:2],
            training=bf.Training(
                steps=30 // times,
                batch_size=None,
                optimiser=bf.federated.NaturalGradient(0.15),
                schedule=bf.federated.cosine(0.02, rounds),
            ),
        )
        fitted[name] = bf.run(
            algorithm, clients, rounds=rounds, seed=chosen.seed
        ).posterior.constants

    columns = ["centre.mean", "centre.sd", "log_precision.mean", "log_precision.sd"]
    print(
        table(
            ["fit", "centre, cm", "sd", "log precision", "sd"],
            [[name, *(f"{float(f[c]):.3f}" for c in columns)] for name, f in fitted.items()],
        )
    )
    save(plot_densities(fitted), chosen.out / "densities.png")
    print(f"\ndensities.png in {chosen.out}/")


def plot_densities(fitted: dict[str, dict[str, Tensor]]) -> Axes:
    """Draw the densities of both sites, one line a fit."""
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    panels = figure.subplots(1, 2)
    for axes, site, label in zip(
        panels, ("centre", "log_precision"), ("centre, cm", "log precision"), strict=True
    ):
        for number, (name, figures) in enumerate(fitted.items()):
            mean, sd = (float(figures[f"{site}.{what}"]) for what in ("mean", "sd"))
            grid = torch.linspace(mean - 4 * sd, mean + 4 * sd, 200)
            density = dist.Normal(mean, sd).log_prob(grid).exp()
            axes.plot(
                grid.numpy(),
                density.numpy(),
                label=name,
                color="0.3" if number == 0 else None,
                linestyle="--" if number == 0 else "-",
            )
        axes.set(xlabel=label, ylabel="density")
        axes.grid(alpha=0.3)
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=len(fitted)
    )
    first: Axes = panels[0]
    return first


if __name__ == "__main__":
    main()

"""Fit a Pyro model whose rows lie on five devices, and compare with the fit of all rows in one
place.

python examples/federated_svi.py [--rounds 20] [--seed 0] [--out results/federated_svi]

Real data: scikit-learn's 442 diabetes patients, sorted by age before they are dealt, so that every
device has an age group of its own. Of the six blood serum figures three are used: the others are
nearly sums of these, and a posterior of independent Gaussians says little about such.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pyro
import pyro.distributions as dist
import torch
from pyro.infer.autoguide import AutoNormal
from sklearn.datasets import load_diabetes
from torch import Tensor

import bayesfed as bf
from bayesfed.inspect import table

MEASURED = {
    "age": 0,
    "sex": 1,
    "body mass": 2,
    "blood pressure": 3,
    "HDL": 6,
    "log triglycerides": 8,
    "blood sugar": 9,
}


def model(inputs: Tensor, targets: Tensor | None = None) -> Tensor:
    """Regress how far diabetes progressed in a year on measurements, with noise of unknown size."""
    weights = pyro.sample(
        "weights", dist.Normal(inputs.new_zeros(inputs.shape[1]), 1.0).to_event(1)
    )
    noise = pyro.sample("noise", dist.LogNormal(inputs.new_zeros(()), 1.0))
    with pyro.plate("rows", len(inputs)):
        found: Tensor = pyro.sample("y", dist.Normal(inputs @ weights, noise), obs=targets)
    return found


def main() -> None:
    """Fit over five clients and over one, print both posteriors, write them to ArviZ files."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--rounds", type=int, default=20)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--out", type=Path, default=Path("results/federated_svi"))
    chosen = arguments.parse_args()

    raw = load_diabetes(scaled=False)
    inputs, targets = (
        torch.from_numpy(raw.data[:, list(MEASURED.values())]),
        torch.from_numpy(raw.target),
    )
    by_age = inputs[:, 0].argsort(stable=True)
    train = bf.Dataset(
        ((inputs - inputs.mean(0)) / inputs.std(0))[by_age],
        ((targets - targets.mean()) / targets.std())[by_age],
    )
    clients = bf.federate(train, list(torch.arange(len(train)).tensor_split(5)))

    def fit(clients: dict[str, bf.Dataset]) -> bf.Result:
        algorithm = bf.federated_svi(
            model,
            AutoNormal,
            fusion=bf.PVI(damping=min(1.0, 2 / len(clients))),
            scale="local",
            observations=len(train),
            example=train[:2],
            training=bf.Training(
                steps=150 // len(clients),  # the same work in all
                batch_size=None,
                optimiser=bf.federated.NaturalGradient(0.15),
                schedule=bf.federated.cosine(0.05, chosen.rounds),
            ),
        )
        return bf.run(algorithm, clients, rounds=chosen.rounds, seed=chosen.seed)

    federated, central = fit(clients), fit({"all": train})
    ours, theirs = federated.posterior.constants, central.posterior.constants
    rows: list[list[str | float]] = []
    for site, names in (("weights", MEASURED), ("noise", ["log noise"])):
        figures = [
            tree[f"{site}.{what}"].reshape(-1).tolist()
            for what in ("mean", "sd")
            for tree in (ours, theirs)
        ]
        rows += [
            [name, *(f"{value:.3f}" for value in values)]
            for name, *values in zip(names, *figures, strict=True)
        ]
    print(
        table(
            ["weight", "mean, 5 clients", "mean, one place", "sd, 5 clients", "sd, one place"], rows
        )
    )

    apart = max(
        float(((ours[name] - theirs[name]).abs() / theirs[name.replace(".mean", ".sd")]).max())
        for name in ours
        if name.endswith(".mean")
    )
    wide = torch.cat(
        [(ours[name] / theirs[name]).reshape(-1) for name in ours if name.endswith(".sd")]
    )
    print(
        f"\nmeans at most {apart:.2f} posterior sds apart, ratio of sds "
        f"{float(wide.min()):.2f} to {float(wide.max()):.2f}"
    )
    print(
        f"sent {federated.bits('down') / 8e3:.1f} kB down, "
        f"{federated.bits('up') / 8e3:.1f} kB up, in {chosen.rounds} rounds"
    )

    chosen.out.mkdir(parents=True, exist_ok=True)
    federated.to_arviz(train, draws=200).to_netcdf(str(chosen.out / "run.nc"))
    print(f"run.nc (for ArviZ) in {chosen.out}/")


if __name__ == "__main__":
    main()

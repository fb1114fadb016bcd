"""Learn digits over a noisy channel that adds what ten devices send at once, and ask whether the
noise spoils what the models say of themselves.

python examples/over_the_air.py [--rounds 25] [--seed 0] [--out results/over_the_air]

Federated SVI sends gradients of the posterior's parameters, FedRLR tangent vectors at the broadcast
weights of rank 8; both leave the fading as it is (`Gbma`). D-Turbo-VBI sends means and standard
deviations, of active weights only, and a fading sum of those would make all of them larger or
smaller together: it inverts the channel. SNR is per symbol: at 0 dB a device sends with the power
of the noise. NLL and ECE are those of the posterior predictive, for FedRLR of the softmax of its
point estimate.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from matplotlib.figure import Figure
from pyro.infer.autoguide import AutoNormal, init_to_value

import bayesfed as bf
from bayesfed.federated.core.algorithm import Algorithm
from bayesfed.federated.core.protocols import Link
from bayesfed.federated.engine.reports import channel_uses
from bayesfed.inference.evaluation.scoring import calibration_bins, nll
from bayesfed.inspect import plot_reliability, save, table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SNRS = (None, 25.0, 15.0, 5.0, 0.0)
Figures = dict[str, float]


def main() -> None:
    """Run every method on both splits over every channel, print the table, draw reliability and
    scores against SNR.
    """
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--rounds", type=int, default=25)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--out", type=Path, default=Path("results/over_the_air"))
    chosen = arguments.parse_args()

    train, test = bf.digits()
    key = bf.Key(chosen.seed, "partition")
    splits = {
        "IID": bf.iid(len(train), 10, key),
        "Dirichlet 0.3": bf.dirichlet(train.targets, 10, 0.3, key),
    }
    panels = dict(
        zip(splits, Figure(figsize=(10, 6.2), layout="constrained").subplots(1, 2), strict=True)
    )
    rows: list[list[str | float]] = []
    scores: dict[str, list[Figures]] = {}
    for split, partition in splits.items():
        clients = bf.federate(train, partition)
        drawn = {}
        for method, make in methods(train, chosen.seed).items():
            for snr in SNRS:
                result = bf.run(make(snr), clients, rounds=chosen.rounds, seed=chosen.seed)
                probabilities = predicted(result, test)
                found = scored(result, probabilities, test)
                scores.setdefault(f"{method}, {split}", []).append(found)
                if method == "federated SVI" and snr in (None, 25.0, 0.0):
                    drawn[label(snr)] = calibration_bins(
                        probabilities.mean(0), test.targets, bins=10
                    )
                up = [row.cost.mean_power_w for row in result.ledger if row.direction == "up"]
                costs = (f"{channel_uses(result.ledger):,}", f"{sum(up) / len(up):.1f}")
                rows.append(
                    [
                        split,
                        method,
                        label(snr),
                        f"{100 * found['accuracy']:.1f} %",
                        f"{found['NLL']:.3f}",
                        f"{found['ECE']:.3f}",
                        *costs,
                    ]
                )
        plot_reliability(drawn, axes=panels[split])
        panels[split].set_xlabel(f"confidence, federated SVI, {split}")
    print(
        table(
            ["split", "method", "link", "accuracy", "NLL", "ECE", "channel uses", "mean power, W"],
            rows,
        )
    )
    save(panels["IID"], chosen.out / "reliability.png")
    save(plot_scores(scores), chosen.out / "noise.png")
    print(f"\nreliability.png and noise.png in {chosen.out}/")


def methods(train: bf.Dataset, seed: int) -> dict[str, Callable[[float | None], Algorithm]]:
    """Return what makes each method's algorithm for an SNR, None for a digital link."""
    net = bf.mlp([64, 32, 10], bf.Key(seed, "net"))
    start = {name: value.detach() for name, value in net.named_parameters()}
    declared = bf.declare(
        net,
        bf.Prior(support=bf.models.MarkovGrid(row=0.6, column=0.6)),
        likelihood=bf.Categorical(temperature=0.2),
    )

    def svi(snr: float | None) -> Algorithm:
        return bf.federated_svi(
            bf.bayesian(net, bf.Gaussian(0.5)),
            partial(AutoNormal, init_scale=0.05, init_loc_fn=init_to_value(values=start)),
            fusion=bf.SummedGradients(0.03),
            scale="local",
            observations=len(train),
            example=train[:2],
            training=bf.Training(steps=2, batch_size=64),
            link=air(snr),
        )

    def rank_8(snr: float | None) -> Algorithm:
        return bf.fed_rlr(
            net,
            8,
            training=bf.Training(steps=5, batch_size=64, optimiser=bf.Sgd(0.3)),
            link=air(snr),
        )

    def turbo(snr: float | None) -> Algorithm:
        link = air(snr, bf.wireless.ChannelInversion(0.3))
        return bf.d_turbo_vbi(
            declared,
            observations=len(train),
            training=bf.Training(steps=20, optimiser=bf.Adam(5e-3)),
            warm_up=5,
            link=link,
        )

    return {"federated SVI": svi, "FedRLR": rank_8, "D-Turbo-VBI": turbo}


def air(
    snr: float | None, power: bf.wireless.Gbma | bf.wireless.ChannelInversion | None = None
) -> Link | None:
    """Return the channel of an SNR in dB per symbol, N0 = 1 W."""
    return None if snr is None else bf.OverTheAir(power or bf.wireless.Gbma(), snr_db=snr)


def label(snr: float | None) -> str:
    """Name a link."""
    return "digital" if snr is None else f"{snr:g} dB"


def predicted(result: bf.Result, test: bf.Dataset) -> torch.Tensor:
    """Return probabilities ``(S, B, C)``: of 50 draws of the posterior, or of the point
    estimate.
    """
    if result.algorithm.posterior is None:
        return result.model(test.inputs).detach().softmax(-1)[None]
    return result.predictive(test.inputs, draws=50).probabilities


def scored(result: bf.Result, probabilities: torch.Tensor, test: bf.Dataset) -> Figures:
    """Return accuracy, NLL and ECE of the mean over draws."""
    mean = probabilities.mean(0)
    right = float((mean.argmax(1) == test.targets).float().mean())
    score = float(nll(probabilities[:, torch.arange(len(test)), test.targets].log()))
    return {
        "accuracy": right,
        "NLL": score,
        "ECE": float(calibration_bins(mean, test.targets, bins=10).error),
    }


def plot_scores(scores: dict[str, list[Figures]]) -> Axes:
    """Draw NLL and ECE over the channels, one line a method and split."""
    figure = Figure(figsize=(10, 4.8), layout="constrained")
    axes: list[Axes] = list(figure.subplots(1, 2))
    for name, panel in zip(("NLL", "ECE"), axes, strict=True):
        for number, (curve, found) in enumerate(scores.items()):
            ours = number % (len(scores) // 2)
            panel.plot(
                [figures[name] for figures in found],
                color=f"C{ours}",
                marker="o",
                linestyle="-" if number == ours else "--",
                label=curve,
            )
        panel.set_xticks(range(len(SNRS)), [label(snr) for snr in SNRS])
        panel.set(xlabel="link, SNR per symbol", ylabel=name, ylim=(0, None))
        panel.grid(alpha=0.3)
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize="small"
    )
    return axes[0]


if __name__ == "__main__":
    main()

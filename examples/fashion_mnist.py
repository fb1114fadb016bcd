"""D-Turbo-VBI on Fashion-MNIST beside FedAvg: accuracy, sparsity, clustering and bits.

    python examples/fashion_mnist.py  # the named setting: three seeds, two worker processes
    # how small it gets: settings from dense to sparse, one seed
    python examples/fashion_mnist.py --sweep
    python examples/fashion_mnist.py --seeds 0 --rounds 1

MLP 784-256-256-10, 10 clients, Dirichlet 0.5, 40 rounds of 50 local Adam steps of 64, cosine
learning rate, 16-bit values for all. Learning rates were searched over 5e-4 to 4e-3 for FedAvg and
1e-3 to 5e-3 for D-Turbo-VBI, on seeds 0 and 1, by test accuracy: there is no validation split, so
read small gaps with care. "strip" is the clustered run with Module B's marginals by strips in place
of belief propagation; "pixels" also makes the first layer's neighbours those of the picture, 28 x
28 for each hidden unit (with log-odds lower by 0.4: evidence is clustered among pixels, and without
that the layer is a fifth denser). "independent" is the clustered run with a prior without
neighbours, its log-odds chosen for about the same density.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

import bayesfed as bf
from bayesfed.algorithms.d_turbo_vbi import ramp
from bayesfed.federated import Algorithm, cosine, keep
from bayesfed.inspect import (
    plot_accuracy_against_bits,
    plot_series,
    plot_support_maps,
    plot_unit_maps,
    save,
    table,
)
from bayesfed.models.random_fields.support_priors import neighbour_share

HIDDEN = ("1.weight", "3.weight")
FED_AVG_RATE = 1e-3


@dataclass(frozen=True)
class Setting:
    """What differs between runs: prior (of the first layer, if it has its own), Module B's method,
    likelihood temperature, learning rate.
    """

    support: bf.models.MarkovGrid | bf.Independent
    field: float
    method: Literal["auto", "strip"] = "auto"
    first: bf.models.MarkovGrid | bf.models.Neighbourhood | None = None
    slab_sd: float = 4.0
    spike_sd: float = 0.15
    temperature: float = 0.02
    learning_rate: float = 1.5e-3


MARKOV, INDEPENDENT = bf.models.MarkovGrid(0.6, 0.6), bf.Independent(0.5)
PIXELS = bf.models.MarkovGrid(0.6, 0.6, field=-0.4, patch=(28, 28))
METHODS = {
    "clustered": Setting(MARKOV, -1.0),
    "strip": Setting(MARKOV, -1.0, "strip"),
    "pixels": Setting(MARKOV, -1.0, "strip", PIXELS),
    "independent": Setting(INDEPENDENT, -1.5),
}
UNITS = {
    "strip": "Active weights, neighbours in the weight matrix",
    "pixels": "Active weights, neighbours in the picture",
}
SWEEP = {
    f"clustered {field:g}": Setting(MARKOV, field, slab_sd=2.8, spike_sd=0.28, learning_rate=4e-3)
    for field in (-0.5, -1.0, -1.5, -2.0, -2.5)
}


def main() -> None:
    """Parse arguments, run every method on every seed, print tables, write pictures."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument(
        "--data", default="/usr/share/datasets/fashion-mnist", help="folder with the four IDX files"
    )
    arguments.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arguments.add_argument("--rounds", type=int, default=40)
    arguments.add_argument(
        "--workers",
        type=int,
        default=2,
        help="worker processes; 0 runs serially, with the same bits",
    )
    arguments.add_argument(
        "--methods", nargs="+", choices=list(METHODS), default=list(METHODS), help="beside FedAvg"
    )
    arguments.add_argument(
        "--sweep", action="store_true", help="sparser and denser priors on the first seed"
    )
    arguments.add_argument("--out", type=Path, default=Path("results/fashion_mnist"))
    chosen = arguments.parse_args()
    torch.set_num_threads(1)
    train, test = bf.fashion_mnist(chosen.data)
    methods, out = (
        (SWEEP, chosen.out / "sweep")
        if chosen.sweep
        else ({name: METHODS[name] for name in chosen.methods}, chosen.out)
    )
    rows = []
    for seed in chosen.seeds[: 1 if chosen.sweep else None]:
        rows += run_seed(train, test, seed, chosen.rounds, chosen.workers, methods, out)
    (out / "figures.json").write_text(json.dumps(rows, indent=1) + "\n")
    report(rows)
    print(f"\npictures and figures in {out}/")


def run_seed(
    train: bf.Dataset,
    test: bf.Dataset,
    seed: int,
    rounds: int,
    workers: int,
    methods: dict[str, Setting],
    out: Path,
) -> list[dict[str, float | str]]:
    """Run FedAvg and every prior on one seed's partition and network."""
    clients = bf.federate(train, bf.dirichlet(train.targets, 10, 0.5, bf.Key(seed, "partition")))
    net = bf.mlp([784, 256, 256, 10], bf.Key(seed, "net"))
    schedule, codec = cosine(0.1, rounds), bf.Cast(16)
    training = bf.Training(
        steps=50, batch_size=64, optimiser=bf.Adam(FED_AVG_RATE), schedule=schedule
    )
    algorithms = {"FedAvg": bf.fed_avg(net, training=training, codec=codec)}
    algorithms |= {
        name: d_turbo_vbi(net, setting, rounds, len(train), schedule)
        for name, setting in methods.items()
    }
    results, rows = {}, []
    for name, algorithm in algorithms.items():
        frames: dict[int, torch.Tensor] = {}
        watch = (
            [keep("prior_log_odds/3.weight", frames, every=max(1, rounds // 3))]
            if name not in ("FedAvg", "independent")
            else []
        )
        print(f"seed {seed}, {name}", flush=True)
        with bf.InProcess(clients, workers=workers) as pool:
            results[name] = result = bf.run(
                algorithm, pool, rounds=rounds, test=test, seed=seed, callbacks=watch
            )
        rows.append(figures(name, seed, result))
        if frames:
            title = f"256 x 256 layer, {name}, seed {seed}: message from the support prior"
            maps = plot_support_maps(frames, title=title, history=result.history, site="3.weight")
            save(maps[0], out / f"support_{name.replace(' ', '_')}_{seed}.png")
        if name in UNITS and result.posterior is not None:
            units = plot_unit_maps(
                result.belief["1.weight"].inclusion,
                (28, 28),
                count=32,
                title=f"{UNITS[name]}, seed {seed}",
            )
            save(units[0], out / f"units_{name}_{seed}.png")
    save(
        plot_accuracy_against_bits({name: result.history for name, result in results.items()}),
        out / f"accuracy_against_bits_{seed}.png",
    )
    elbos = {name: result.series("elbo") for name, result in results.items() if name != "FedAvg"}
    save(plot_series(elbos, label="ELBO (nats)"), out / f"elbo_{seed}.png")
    return rows


def d_turbo_vbi(
    net: torch.nn.Module,
    setting: Setting,
    rounds: int,
    observations: int,
    schedule: Callable[[int], float],
) -> Algorithm:
    """Return the recipe with one setting's prior."""
    precision = bf.BernoulliGamma(setting.slab_sd, setting.spike_sd)

    def prior(name: str) -> bf.Prior:
        return bf.Prior(
            setting.first if setting.first and name == HIDDEN[0] else setting.support, precision
        )

    return bf.d_turbo_vbi(
        bf.declare(net, prior, likelihood=bf.Categorical(temperature=setting.temperature)),
        observations=observations,
        training=bf.Training(
            steps=50, batch_size=64, optimiser=bf.Adam(setting.learning_rate), schedule=schedule
        ),
        codec=bf.Cast(16),
        field=ramp(setting.field, max(1, round(0.7 * rounds))),
        warm_up=rounds // 4,
        exchange=bf.inference.Exchange(method=setting.method),
    )


def figures(name: str, seed: int, result: bf.Result) -> dict[str, float | str]:
    """Return what the table needs of one run; accuracy is the transmitted model's."""
    masks = {site: result.model.parameters[site] != 0 for site in HIDDEN}
    clustering: dict[str, float] = {}
    for number, mask in enumerate(masks.values(), 1):
        clustering |= {
            f"density {number}": float(mask.float().mean()),
            f"share {number}": neighbour_share(mask),
        }
    clustering["pixel share"] = neighbour_share(masks[HIDDEN[0]].reshape(-1, 28, 28))
    sparse = any("density" in record.server for record in result.history)
    return {
        "method": name,
        "seed": seed,
        "accuracy %": 100 * result.final("accuracy"),
        "non-zero %": 100 * (result.final("density") if sparse else 1.0),
        **(clustering if sparse else dict.fromkeys(clustering, 1.0)),
        "returned": sum(value for _, value in result.series("reactivated")) / len(result.history)
        if sparse
        else 0.0,
        "MB down": result.bits("down") / 8e6,
        "MB up": result.bits("up") / 8e6,
        "seconds": sum(record.seconds for record in result.history),
    }


def report(rows: list[dict[str, float | str]]) -> None:
    """Print every run, then what the runs say together."""
    print(
        "\nshare: active neighbours of active weights, hidden layers 1 and 2, and among "
        "pixels; returned: re-activations a round\n"
    )
    print(table(list(rows[0]), [list(row.values()) for row in rows]))

    def mean(name: str, figure: str) -> float:
        return statistics.mean(float(row[figure]) for row in rows if row["method"] == name)

    fed_avg = mean("FedAvg", "accuracy %")
    print()
    for name in dict.fromkeys(str(row["method"]) for row in rows if row["method"] != "FedAvg"):
        lost, left = fed_avg - mean(name, "accuracy %"), mean(name, "non-zero %")
        lift = [
            mean(name, share) / max(1e-9, mean(name, f"density {i}"))
            for share, i in (("share 1", 1), ("share 2", 2), ("pixel share", 1))
        ]
        share = f"{lift[0]:.2f} and {lift[1]:.2f}, among pixels {lift[2]:.2f}"
        print(
            f"{name}: {lost:+.2f} points below FedAvg with {left:.2f} % of the weights; "
            f"neighbour share / density {share}"
        )


if __name__ == "__main__":
    main()

"""D-Turbo-VBI at its default arguments on twelve networks that nobody tuned it for, beside FedAvg,
and every recipe for "any network" on them.

    python benchmarks/any_network.py            # three seeds, a table
    python benchmarks/any_network.py --check    # one seed, targets

Digits of scikit-learn, 10 clients, Dirichlet 0.5, 24 rounds of 40 Adam steps of 32 rows at 5e-3 for
both methods; the small MLP has 400 rows. The random control has the same number of active weights
in every layer, drawn from the key before round 0 and trained without a prior.
"""

from __future__ import annotations

import argparse
import inspect
import statistics
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import torch
from parts.any_network.networks import NETWORKS, made
from parts.shared.targets import at_least, target
from pyro.infer.autoguide import AutoNormal

import bayesfed as bf
from bayesfed import algorithms
from bayesfed.algorithms.d_turbo_vbi import ToDensity
from bayesfed.errors import BayesfedError, CollapseError, CollapseWarning
from bayesfed.federated.core.algorithm import Algorithm

ROUNDS = 24
WORK = bf.Training(steps=40, batch_size=32, optimiser=bf.Adam(5e-3))
FEW = 400


class Row(NamedTuple):
    """What a network and seed gave; accuracies and densities in [0, 1], NLL in nats a row."""

    network: str
    seed: int
    fed_avg: float
    ours: float
    share: float
    thinnest: float
    nll: float
    mean_nll: float
    warned: int


def problem(network: str, seed: int) -> tuple[Mapping[str, bf.Dataset], bf.Dataset, int]:
    """Return clients, test rows and the number of training rows."""
    train, test = bf.digits(bf.Key(seed, "digits"))
    train = train[slice(0, FEW)] if "400 rows" in network else train
    return (
        bf.federate(train, bf.dirichlet(train.targets, 10, 0.5, bf.Key(seed, "partition"))),
        test,
        len(train),
    )


def measured(network: str, seed: int) -> Row:
    """Train a network both ways."""
    torch.set_num_threads(1)
    clients, test, rows = problem(network, seed)
    plain = bf.run(
        bf.fed_avg(made(network, seed), training=WORK),
        clients,
        rounds=ROUNDS,
        test=test,
        seed=seed,
        progress=False,
    )
    net = made(network, seed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ours = bf.run(
            bf.d_turbo_vbi(bf.declare(net), observations=rows, training=WORK),
            clients,
            rounds=ROUNDS,
            test=test,
            seed=seed,
            progress=False,
        )
    parameters = ours.model.parameters.values()
    share = sum(int(value.count_nonzero()) for value in parameters) / sum(
        value.numel() for value in parameters
    )
    layers = [
        value for name, value in ours.history[-1].server.items() if name.startswith("density/")
    ]
    with torch.no_grad():
        mean_nll = float(torch.nn.functional.cross_entropy(ours.model(test.inputs), test.targets))
    warned = sum(issubclass(warning.category, CollapseWarning) for warning in caught)
    return Row(
        network,
        seed,
        plain.final("accuracy"),
        ours.final("accuracy"),
        share,
        min(layers),
        ours.scores(test)["all"]["nll"],
        mean_nll,
        warned,
    )


def recipes(example: bf.Dataset) -> Iterator[tuple[str, Callable[..., Algorithm]]]:
    """Yield every recipe that takes any network: those that ask for nothing else, and what others
    need.
    """
    rule: dict[str, Any] = {
        "fusion": bf.PVI(damping=0.3),
        "scale": "local",
        "observations": 16,
        "example": example,
    }
    yield (
        "d_turbo_vbi",
        lambda net, **options: bf.d_turbo_vbi(bf.declare(net), observations=16, **options),
    )
    yield (
        "federated_svi",
        lambda net, **options: bf.federated_svi(
            bf.bayesian(net, bf.Gaussian(1.0)), AutoNormal, **rule, **options
        ),
    )
    yield (
        "fed_avg, personalised",
        lambda net, **options: bf.personalised(bf.fed_avg(net, **options), steps=1),
    )
    for name in dir(algorithms):
        recipe = getattr(algorithms, name)
        if inspect.isfunction(recipe) and "training" in (
            parameters := inspect.signature(recipe).parameters
        ):
            asked = {
                own
                for own, one in parameters.items()
                if one.default is one.empty and one.kind is not one.VAR_KEYWORD
            }
            if asked <= {"net", "strength"}:
                yield name, partial(recipe, **dict.fromkeys(asked - {"net"}, 0.1))


def tried(network: str) -> list[str]:
    """Run every such recipe for one round; return what was refused, and what broke with ``!``
    before it.
    """
    torch.set_num_threads(1)
    clients, _, _ = problem(network, 0)
    few = {name: clients[name][slice(0, 8)] for name in sorted(clients)[:2]}
    example, lines = few[min(few)], []
    for name, recipe in recipes(example):
        adapted = "lora" in name
        try:
            net = made(network, 0)
            algorithm = recipe(
                bf.lora(net, 2, bf.Key(0)) if adapted else net,
                training=bf.Training(steps=1, batch_size=8),
            )
            result = bf.run(algorithm, few, rounds=1, progress=False)
            outputs = (
                result.predictive(example.inputs, draws=2).mean
                if name == "federated_svi"
                else result.model(example.inputs)
            )
            if not torch.isfinite(outputs).all():
                lines.append(f"! {network}: {name}: outputs that are not finite")
        except BayesfedError as error:
            lines.append(f"{network}: {name}: {error}")
        except Exception as error:
            lines.append(f"! {network}: {name}: {type(error).__name__}: {error}")
    return lines


def silent(setting: int) -> bool:
    """Return whether a run that is set up to collapse ends in silence, by too high a rate, too low
    a field or too hard a pruning.
    """
    torch.set_num_threads(1)
    clients, test, rows = problem("MLP", 0)
    wild = bf.Training(
        steps=40,
        batch_size=32,
        optimiser=bf.Adam(5e-3),
        schedule=lambda round: 1.0 if round < 6 else 400.0,
    )
    options = (
        {"training": wild},
        {"training": WORK, "field": lambda round: -30.0},
        {"training": WORK, "density": ToDensity(0.002, 0.05, 0.001)},
    )[setting]
    algorithm = bf.d_turbo_vbi(bf.declare(made("MLP", 0)), observations=rows, **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = bf.run(algorithm, clients, rounds=12, test=test, progress=False)
        except CollapseError:
            return False
    return (
        not any(issubclass(warning.category, CollapseWarning) for warning in caught)
        and result.final("accuracy") <= 0.5
    )


def table(rows: Iterable[Row]) -> list[Row]:
    """Print what was measured, each row when it is there, and return it."""
    print(
        (
            f"{'network':24} {'seed':>4} {'FedAvg':>7} {'ours':>7} {'weights':>8} "
            f"{'thinnest':>8} {'NLL':>6} {'of mean':>7}"
        ),
        flush=True,
    )
    done = []
    for row in rows:
        done.append(row)
        figures = (
            f"{row.fed_avg:7.1%} {row.ours:7.1%} {row.share:8.1%} {row.thinnest:8.1%} "
            f"{row.nll:6.3f} {row.mean_nll:7.3f}"
        )
        print(
            f"{row.network:24} {row.seed:4d} {figures}"
            + f"  ({row.warned} warnings)" * bool(row.warned),
            flush=True,
        )
    return done


def main() -> None:
    """Measure, print, and exit with 1 if a target is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="one seed; exit 1 if a target is missed"
    )
    parser.add_argument("--only", help="one network of the table, by name")
    options = parser.parse_args()
    names = [options.only] if options.only else list(NETWORKS)
    seeds = (0,) if options.check or options.only else (0, 1, 2)
    with ProcessPoolExecutor(2) as pool:
        measuring = pool.map(
            measured, *zip(*[(name, seed) for name in names for seed in seeds], strict=True)
        )
        trying, collapsing = pool.map(tried, names), pool.map(silent, range(3))
        rows = table(measuring)
        refused = [line for lines in trying for line in lines]
        unsaid = sum(collapsing)
    print(*refused, sep="\n")
    met = [
        target(
            "worst loss of accuracy against FedAvg, points",
            max(100 * (row.fed_avg - row.ours) for row in rows),
            3.0,
        ),
        target("largest share of the weights", max(row.share for row in rows), 0.4),
        at_least(
            "active entries of the thinnest layer, share", min(row.thinnest for row in rows), 1e-9
        ),
        target(
            "posterior's NLL over its mean model's, mean of networks",
            statistics.mean(row.nll - row.mean_nll for row in rows),
            0.0,
        ),
        target("recipes that break on a network", sum(line.startswith("!") for line in refused), 0),
        target("collapses in silence, of 3", unsaid, 0),
    ]
    sys.exit(not all(met))


if __name__ == "__main__":
    main()

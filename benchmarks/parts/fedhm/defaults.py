"""FedHM at its default arguments on six tasks, beside FedAvg of every size, HeteroFL and Split-Mix
at theirs: `fedhm.py --check`.

Clients, Dirichlet 0.5, are dealt three sizes once; the rivals' networks are slimmed to the widths
whose parameters are nearest to FedHM's, and every method has the same rounds of the same training,
`Training()`. What is scored are test rows that choose nothing.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from parts.fedhm.tasks import TASKS, Task, parts, slimmed
from parts.shared.kept import kept
from parts.shared.targets import at_least, target

import bayesfed as bf
from bayesfed.algorithms import hetero_fl, split_mix
from bayesfed.federated.core.algorithm import Algorithm
from bayesfed.inspect import table
from bayesfed.trees import size

RATIOS = (1, 1 / 4, 1 / 8)
POINTS, TASKS_AHEAD = -3.0, 4
FEDAVG = [f"FedAvg, size {number + 1}" for number in range(len(RATIOS))]


def recipes(
    task: Task, seed: int, names: list[str], **own: Any
) -> dict[str, Callable[[], Algorithm]]:
    """Return what makes each method at its defaults but for `own`, FedAvg at every size of
    FedHM's.
    """
    key, capacity = bf.Key(seed, "net"), bf.fixed(names, len(RATIOS))
    ours = bf.fed_hm(task.net(1.0, key), RATIOS, capacity, **own)
    counts = counted(ours)

    def mixed() -> Algorithm:
        several = [round(count / counts[-1]) for count in counts]
        return split_mix(
            lambda apart: slimmed(task, counts[-1], apart), several, capacity, key=key, **own
        )

    return {
        "FedHM": lambda: ours,
        "HeteroFL": lambda: hetero_fl(
            [slimmed(task, count, key) for count in counts], capacity, **own
        ),
        "Split-Mix": mixed,
    } | {
        name: lambda count=count: bf.fed_avg(slimmed(task, count, key), **own)
        for name, count in zip(FEDAVG, counts, strict=True)
    }


def counted(algorithm: Algorithm) -> list[int]:
    """Return how many parameters the networks have, largest first."""
    sizes = algorithm.sizes or {"": algorithm.predictor}
    return [size(of(algorithm.initial).parameters) for of in sizes.values()]


def runs(name: str, seed: int, out: Path) -> dict[str, dict[str, Any]]:
    """Return every method's run of a task, with accuracy in per cent of every size."""
    task = TASKS[name]
    clients, test = parts(task, seed)

    def made(method: str, make: Callable[[], Algorithm]) -> dict[str, Any]:
        algorithm = make()
        begun, sizes = time.perf_counter(), algorithm.sizes or {"": algorithm.predictor}
        state = bf.run(
            algorithm,
            clients,
            rounds=task.rounds,
            seed=seed,
            progress=False,
            on_client_error="drop",
        ).snapshot.state
        return {
            "method": method,
            "task": name,
            "seed": seed,
            "clients": task.clients,
            "rounds": task.rounds,
            "counts": counted(algorithm),
            "accuracy": [100 * bf.federated.score(of(state), test) for of in sizes.values()],
            "seconds": time.perf_counter() - begun,
        }

    return {
        method: kept(
            out / "defaults" / f"{name}_{method}_{task.clients}_{task.rounds}_{seed}.json",
            partial(made, method, make),
        )
        for method, make in recipes(task, seed, sorted(clients)).items()
    }


def checked(out: Path) -> list[bool]:
    """Run what is not kept, print tables and targets."""
    met, ahead, larger = list[bool](), 0, 0
    for name, task in TASKS.items():
        found = [runs(name, seed, out) for seed in range(task.seeds)]
        means = {
            method: [
                statistics.fmean(one[method]["accuracy"][number] for one in found)
                for number in range(len(found[0][method]["accuracy"]))
            ]
            for method in found[0]
        }
        counts = found[0]["FedHM"]["counts"]
        larger += sum(after > before for before, after in pairwise(counts))
        slim = [means[method][0] for method in FEDAVG]
        rows = {"FedHM": means["FedHM"], "FedAvg, each size": slim}
        rows |= {method: means[method] for method in ("HeteroFL", "Split-Mix")}
        seconds = sum(run["seconds"] for one in found for run in one.values())
        print(
            f"\n{name}: accuracy % at defaults, {task.clients} clients, {task.rounds} rounds, "
            f"seeds {task.seeds}, {seconds:.0f} s\n\n"
            + table(
                ["method", *(f"{count:,}" for count in counts)],
                [
                    [
                        method,
                        *(f"{one:.1f}" for one in several),
                        *["-"] * (len(counts) - len(several)),
                    ]
                    for method, several in rows.items()
                ],
            )
        )
        for ratio, ours, theirs in zip(RATIOS, means["FedHM"], slim, strict=True):
            said = f"{name}, ratio {ratio:g}: points above FedAvg of that size"
            met.append(at_least(said, ours - theirs, POINTS))
        smallest = means["FedHM"][-1]
        ahead += smallest > max(means["HeteroFL"][-1], means["Split-Mix"][-1])
    said = "tasks where the smallest is ahead of HeteroFL's and of Split-Mix's"
    met.append(at_least(said, ahead, TASKS_AHEAD))
    met.append(target("sizes with more parameters than the one before", larger, 0))
    return met

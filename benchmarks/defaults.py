"""Every recipe of README's table at its default arguments, on digits and on a table of numbers.

    python benchmarks/defaults.py [--check] [--only RECIPE ...] [--seeds N ...]
    # what a round of each costs: `parts/defaults/costs.py`
    python benchmarks/defaults.py --costs [--write] [--only RECIPE ...]

A recipe gets the arguments that it has no default for, and nothing else: `Training()`, FedAvg's
rounds. Four clients, Dirichlet 1; a quarter of each client's rows is held out and scored, by the
client's own model where a method has one. Adapters begin with FedAvg's network. A recipe is to end
at most five points below FedAvg.

Not here: what does not train (`calibrated`, `feature_density`, `compact`, `conjugate`, `infer`),
and what refuses to run without a strength of its own that costs accuracy (`private`,
`local_privacy`, `secure`, `OverTheAir`, `bayesian_lora`).

--check: exit status 1 if a recipe is further below. --write puts the costs into
`records/costs.tsv`, from which the page of benchmarks reads them.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import product

import torch
from parts.defaults.costs import costs, write
from parts.defaults.recipes import Problem, devices, recipes
from parts.fedhm.tasks import digits, wine
from parts.shared.targets import at_least

import bayesfed as bf
from bayesfed.data.splits import held_out_rows
from bayesfed.errors import BayesfedError
from bayesfed.federated import score
from bayesfed.federated.core.algorithm import Algorithm

POINTS = -5.0
ROUNDS = {"digits": 10, "wine": 8}
LOADED = {"digits": digits, "wine": wine}


def problem(name: str, seed: int) -> Problem:
    """Return clients and their held-out rows."""
    train, test = LOADED[name](seed)
    rows = bf.Dataset(
        torch.cat([train.inputs, test.inputs]), torch.cat([train.targets, test.targets])
    )
    shares = bf.dirichlet(rows.targets, 4, 1.0, bf.Key(seed, "partition"))
    halves = {
        client: held_out_rows(part, 0.25, bf.Key(seed, client))
        for client, part in bf.federate(rows, shares).items()
    }
    return Problem(
        {client: kept for client, (kept, _) in halves.items()},
        {client: out for client, (_, out) in halves.items()},
        ROUNDS[name],
        seed,
    )


def accuracy(given: Problem, make: Callable[[], Algorithm]) -> float:
    """Return a recipe's accuracy in per cent of held-out rows."""
    figures = {name: one.figures() for name, one in devices(given).items()}
    pool = bf.InProcess(given.clients, devices=figures)
    algorithm = make()
    result = bf.run(algorithm, pool, rounds=given.rounds, progress=False)
    if algorithm.personal is not None:
        return 100 * result.personal_scores(given.scored).mean("accuracy")
    return (
        100
        * sum(score(result.model, part) * len(part) for part in given.scored.values())
        / sum(map(len, given.scored.values()))
    )


def trained(given: Problem) -> torch.nn.Module:
    """Return the network after FedAvg's rounds."""
    net = given.net()
    fitted = bf.run(bf.fed_avg(net), given.clients, rounds=given.rounds, progress=False)
    net.load_state_dict(fitted.model.parameters)
    return net


def main() -> int:
    """Run, print; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="exit 1 if a target is missed")
    parser.add_argument("--only", nargs="+", metavar="RECIPE", default=[])
    parser.add_argument("--seeds", nargs="+", type=int, metavar="N", default=[0])
    parser.add_argument("--costs", action="store_true", help="measure what a round costs instead")
    parser.add_argument("--write", action="store_true", help="write records/costs.tsv anew")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.costs:
        found = costs(problem("digits", 0), options.only)
        if options.write:
            write(found)
        return 0
    met = list[bool]()
    for name, seed in product(LOADED, options.seeds):
        given = problem(name, seed)
        base = accuracy(given, partial(bf.fed_avg, given.net()))
        print(f"\n{name}, seed {seed}: FedAvg {base:.1f} %", flush=True)
        made = recipes(given, trained(given))
        for recipe in options.only or made:
            met.append(compared(f"{name}, {recipe}", given, made[recipe], base))
    return 0 if all(met) or not options.check else 1


def compared(said: str, given: Problem, make: Callable[[], Algorithm], base: float) -> bool:
    """Print how far a recipe is above FedAvg; one that refuses to run says why."""
    begun = time.perf_counter()
    try:
        found = accuracy(given, make)
    except BayesfedError as error:
        print(f"{said}: refuses: {error}")
        found = 0.0
    met = at_least(f"{said}: points above FedAvg", found - base, POINTS)
    print(f"    {found:.1f} %, {time.perf_counter() - begun:.0f} s", flush=True)
    return met


if __name__ == "__main__":
    sys.exit(main())

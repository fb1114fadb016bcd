"""FedHM's server, a round of ResNet-18 with ten clients: align, aggregate and factorise, beside an
SVD a layer and client.

    python benchmarks/speed.py --only refactor [--check]

Clients of four sizes (1, 1/2, 1/4 and 1/8 of the rank) return models; the server multiplies factors
out, averages, and factorises the mean for the next round. "one SVD a layer" is exact and serves all
sizes; "warm" iterates from last round's right vectors; "an SVD a client" factorises each layer anew
for each client, as the paper's algorithm 1 is written for clients of unlike sizes. Error: of the
largest factored size, relative, the whole network; what "warm" adds to the least possible is the
last column.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator

import torch
from parts.shared.targets import at_least, target

import bayesfed as bf
from bayesfed.algorithms.fed_hm import Factored, Refactor
from bayesfed.federated.core import MODEL, owned
from bayesfed.federated.core.sums import Sum
from bayesfed.inspect.tables import table
from bayesfed.models import (
    factorise,
    hybrid,
    hybrid_ranks,
    resnet18,
    spectra,
    unrollings,
    whole_first,
)
from bayesfed.trees import Tree, parameters, shapes

CLIENTS, RATIOS, DRIFT = 10, (1.0, 1 / 2, 1 / 4, 1 / 8), 0.02


def targets(options: argparse.Namespace) -> Iterator[bool]:
    """Measure and print; yield whether each target is met."""
    check = options.check
    torch.set_num_threads(1)
    net = resnet18((3, 32, 32), 10, bf.Key(0, "net"), norm="group")
    whole = whole_first(net, 3)
    ranks = [hybrid_ranks(net, ratio, whole=whole) for ratio in RATIOS]
    nets = [
        hybrid(net, share, initial="random", key=bf.Key(0, "layout")) if share else net
        for share in ranks
    ]
    layers = unrollings(nets[1])
    views = [
        Factored(layers, share, shapes(parameters(made)))
        for share, made in zip(ranks, nets, strict=True)
    ]
    servers = {
        "warm": Refactor(layers, tuple(ranks[1:]), True),
        "one SVD a layer": Refactor(layers, tuple(ranks[1:]), False),
    }
    state = servers["warm"].start(parameters(net))
    payloads = [moved(views[k % len(views)].restrict(state), k) for k in range(CLIENTS)]

    def added() -> Sum:
        reducer = Sum()
        for k, payload in enumerate(payloads):
            reducer.add(str(k), views[k % len(views)].lift(payload, 1.0, "value"))
        return reducer

    def each_client() -> None:
        total = added().total
        mean = owned(total.mean(), MODEL) if total else {}
        for k in range(CLIENTS):
            share = ranks[k % len(ranks)]
            if share:
                factorise(mean, layers, share, spectra(mean, layers, share))

    figures = {name: server.step(state, added(), 0)[1] for name, server in servers.items()}
    work: dict[str, Callable[[], object]] = {
        "align and add": added,
        "warm": lambda: servers["warm"].step(state, added(), 0),
        "one SVD a layer": lambda: servers["one SVD a layer"].step(state, added(), 0),
        "an SVD a client": each_client,
    }
    seconds = {
        name: timed(function, 1 if name == "an SVD a client" else 2 if check else 5)
        for name, function in work.items()
    }
    errors = {name: f"{found['svd_error']:.4f}" for name, found in figures.items()}
    errors["an SVD a client"] = errors["one SVD a layer"]
    extra = figures["warm"]["svd_error"] / figures["one SVD a layer"]["svd_error"] - 1
    rows = [
        [name, f"{value:.2f}", f"{value / seconds['warm']:.1f}", errors.get(name, "")]
        for name, value in seconds.items()
    ]
    print(table(["server's round", "seconds", "x warm", "worst layer's error"], rows))
    yield at_least("an SVD a client / warm", seconds["an SVD a client"] / seconds["warm"], 5)
    yield target("warm, error above the least possible, relative", extra, 0.01)


def moved(tree: Tree, client: int) -> Tree:
    """Return what training might: every leaf a little off."""
    generator = bf.Key(0, "moved", client).generator()
    return {
        name: leaf + DRIFT * leaf.std(correction=0) * torch.randn(leaf.shape, generator=generator)
        for name, leaf in tree.items()
    }


def timed(function: Callable[[], object], repeats: int) -> float:
    """Return the median of a function's seconds."""
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        found.append(time.perf_counter() - start)
    return statistics.median(found)

"""What sum-product on a binary grid costs, side by side with PGMax and fbgbp in one run.

    python benchmarks/message_passing.py [--check] [--peers DIR]

Two problems with the same potentials for everybody: "mild" keeps a neighbour's state with
probability 0.7, "hard" with 0.9; evidence is N(0, 2^2). A sweep renews all four messages of every
variable; sweeps are timed on the hard problem, from zero messages and without damping. A call's
packing and unpacking are left out by taking the difference of two calls of different length,
PGMax's compiling by a call before. PGMax and fbgbp answer from processes of their own, in turn, so
nothing else of this program works while one is timed; their environment (pins in
`peers/requirements.txt`; Python 3.11 or 3.12 and a C++ compiler, a quarter of a minute where pip's
cache is warm) is made under DIR on first use.

The limit: a sweep that keeps its messages in memory reads the unary odds and four messages of every
variable and writes four messages, 36 bytes of float32. At the speed at which `torch.Tensor.copy_`
moves bytes that is the floor; "of the floor" says how near the kernel is, with copies far beyond
the last cache ("memory") and with copies of the kernel's own working set ("own size"). On two cores
of an AMD EPYC (32 MiB of last cache) a sweep took 0.4 to 0.65 of the floor in memory at 784 x 256
and 512 x 512, 0.9 at 4096 x 1024, and 0.9 to 2.1 of the floor at its own size: inside the cache it
is the divisions that cost. Since then, blocks of rows take the sweeps between two looks at the
change while a cache holds them, so that a sweep can stay below the floor.

Whole calls, and the way from a declaration to what a kernel takes, are compared with a plain loop
over a byte for each variable (`parts/shared/plain.py`), and reading a networkx graph with building
it: milliseconds depend on the machine, these ratios hardly do.
"""

from __future__ import annotations

import gc
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from argparse import SUPPRESS
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Literal

import networkx as nx
import numpy as np
import torch
from parts.peers.client import Peer, environment, peer, say
from parts.shared.parts import add_only, command_line, measured
from parts.shared.plain import plain_loop
from parts.shared.plain import turns as loop_turns
from parts.shared.targets import at_least, ratio, target
from torch import Tensor
from tqdm import tqdm

from bayesfed.federated.clients import one_thread
from bayesfed.inference import FactorGraph, infer
from bayesfed.inference.sum_product.graphs.flat import TableGroup, Tables
from bayesfed.inspect import table
from bayesfed.models.random_fields.grid import Grid, Link

MILD, HARD, NOISE = 0.7, 0.9, 2.0
LAYER, SQUARE, LARGE, CELLS = (784, 256), (512, 512), (4096, 1024), (128, 128)
FLOOR, WORKING_SET = 36, 20
LOOP, ONE_THREAD = "plain loop", "bp, one thread"
Row = list[str | float | int]
Seconds = dict[str, list[float]]


def main() -> int:
    """Measure and print; return the exit status."""
    parser = command_line(__doc__)
    add_only(parser, (), aside=["accuracy", "observed"])
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="accuracy: draw the error against the stay probability there",
    )
    parser.add_argument(
        "--peers",
        type=Path,
        default=Path("build/peers"),
        metavar="DIR",
        help="the peers' environment (default: %(default)s)",
    )
    parser.add_argument("--child", choices=("memory", "first"), help=SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(peak_bytes() if options.child == "memory" else first_call()))
        return 0
    if options.only:
        return measured("message_passing", options)
    repeats = 5 if options.check else 15
    python = environment(options.peers)
    print(
        f"{torch.get_num_threads()} threads of torch, {len(os.sched_getaffinity(0))} "
        f"cores, last cache {last_cache() / 2**20:.0f} MiB"
    )
    print(
        f"load average before the start: {os.getloadavg()[0]:.2f}; with others at work "
        "figures are no more than upper bounds\n"
    )
    met = [
        *against_peers(python, repeats),
        *against_copies(repeats),
        *to_convergence(python, repeats),
        *lowering(repeats),
        *memory(),
    ]
    return 0 if all(met) else 1


def against_peers(python: Path, repeats: int) -> Iterator[bool]:
    """Compare sweeps with the peers', pairwise and general tables."""
    for shape in (LAYER, SQUARE):
        grid, u, links = model(shape, HARD), evidence(shape), agreement(HARD)
        with peer(python, "pgmax", links, u) as pgmax, peer(python, "fbgbp", links, u) as fbgbp:
            work = {"PGMax": peer_sweep(pgmax, 10), "fbgbp": peer_sweep(fbgbp, 10)}
            work["bp"] = sweep(grid, u, 200)
            if shape == SQUARE:
                work["tables 2 x 2"] = sweep(general(shape, links), u.reshape(-1), 16)
            seconds = turns(f"sweeps {name(shape)}", work, repeats)
        report(f"a sweep, {name(shape)}, hard", seconds, shape, against=("PGMax", "fbgbp"))
        yield at_least(
            f"PGMax / bp, sweep, {name(shape)} (stretch 300)",
            ratio(seconds["PGMax"], seconds["bp"]),
            150,
        )
        yield at_least(
            f"fbgbp / bp, sweep, {name(shape)} (stretch 100)",
            ratio(seconds["fbgbp"], seconds["bp"]),
            50,
        )
        if shape == SQUARE:
            yield at_least(
                f"PGMax / tables 2 x 2, sweep, {name(shape)} (stretch 6)",
                ratio(seconds["PGMax"], seconds["tables 2 x 2"]),
                3,
            )
        print()
    u, cells = (
        evidence(CELLS),
        0.3 * torch.randn(16, generator=torch.Generator().manual_seed(1), dtype=torch.float64),
    )
    with peer(python, "pgmax", cells, u) as pgmax:
        graph = general(CELLS, cells)
        seconds = turns(
            "sweeps of cells",
            {"PGMax": peer_sweep(pgmax, 10), "tables of 16": sweep(graph, u.reshape(-1), 20)},
            repeats,
        )
        report(
            f"a sweep, {name(CELLS)}, one table of 16 for each 2 x 2 cell",
            seconds,
            CELLS,
            against=("PGMax",),
        )
        pgmax.ask("settle", tol=1e-5, at_most=200)
        ours = infer(graph, u.reshape(-1), method="bp", tol=1e-5).marginals[..., 1].reshape(CELLS)
        gap = float((ours - pgmax.marginals(CELLS)).abs().max())
    yield target(
        f"largest difference of a marginal between PGMax and tables of 16, {name(CELLS)}, x 1e6",
        1e6 * gap,
        1e3,
    )
    yield at_least(
        f"PGMax / tables of 16, sweep, {name(CELLS)} (stretch 6)",
        ratio(seconds["PGMax"], seconds["tables of 16"]),
        3,
    )
    print()


def against_copies(repeats: int) -> Iterator[bool]:
    """Compare the checkerboard sweep with what copying its bytes would take."""
    rows: list[Row] = []
    lines: list[tuple[str, float]] = []
    size = max(64 << 20, min(4 * last_cache(), 512 << 20))
    for shape in (LAYER, SQUARE, LARGE):
        count, steps = math.prod(shape), 24 if shape == LARGE else 200
        work = {
            "bp": sweep(model(shape, HARD), evidence(shape), steps),
            "memory": copies(size, 1),
            "own size": copies(WORKING_SET * count // 2, max(1, 20_000_000 // count)),
        }
        seconds = turns(f"copies {name(shape)}", work, 2 * repeats)
        floors = {
            place: [FLOOR * count * value for value in seconds[place]]
            for place in ("memory", "own size")
        }
        above = {place: ratio(seconds["bp"], floor) for place, floor in floors.items()}
        speed = [1e-9 / statistics.median(seconds[place]) for place in floors]
        median = statistics.median(seconds["bp"])
        rows.append(
            [
                name(shape),
                1e3 * median,
                1e9 * median / count,
                1e-9 * FLOOR * count / median,
                *speed,
                *above.values(),
            ]
        )
        lines.append(
            (
                (
                    f"bp sweep / (36 bytes a variable at copy speed in memory), {name(shape)} "
                    "(stretch 1.1)"
                ),
                above["memory"],
            )
        )
    print(
        f"bp against copies; memory: {size >> 20} MiB arrays, own size: "
        f"{WORKING_SET} bytes a variable in all, bytes read and written"
    )
    headings = [
        "grid",
        "ms a sweep",
        "ns a variable",
        "GB/s",
        "GB/s memory",
        "GB/s own size",
        "x floor, memory",
        "x floor, own size",
    ]
    print(table(headings, rows))
    for line, value in lines:
        yield target(line, value, 1.25)
    print()


def to_convergence(python: Path, repeats: int) -> Iterator[bool]:
    """Time whole calls, from tensors in to the extrinsic out, and hold the solvers' marginals
    against each other.
    """
    u, rows, calls, gaps = (
        evidence(LAYER),
        list[Row](),
        list[tuple[str, float, float]](),
        dict[str, float](),
    )
    for label, stay, limit in (("mild", MILD, 100.0), ("hard", HARD, 500.0)):
        grid = model(LAYER, stay)
        work: dict[str, Callable[[], float]] = {
            "bp": partial(call, grid, u, "bp"),
            "strip": partial(call, grid, u, "strip"),
            ONE_THREAD: partial(call_on_one_thread, grid, u),
            LOOP: passes(u.numel()),
        }
        made = {
            "bp": infer(grid, u, method="bp", warn=False).sweeps,
            "strip": infer(grid, u, method="strip", warn=False).sweeps,
            LOOP: 1,
        }
        made[ONE_THREAD] = made["bp"]
        # On the hard problem PGMax without damping never settles.
        with (
            peer(python, "pgmax", agreement(stay), u) if label == "mild" else nullcontext() as pgmax
        ):
            if pgmax is not None:
                work["PGMax"] = lambda: pgmax.ask("settle", tol=1e-4, at_most=1000)["seconds"]
                made["PGMax"] = int(pgmax.ask("settle", tol=1e-4, at_most=1000)["sweeps"])
            seconds = turns(
                f"to convergence, {label}", work, 3 * repeats if pgmax is None else repeats
            )
            if pgmax is not None:
                pgmax.ask("settle", tol=1e-6, at_most=1000)
                gaps = differences(python, pgmax.marginals(u.shape), u)
        for method, values in seconds.items():
            rows.append(
                [
                    label,
                    method,
                    made[method],
                    1e3 * statistics.median(values),
                    1e3 * min(values),
                    ratio(values, seconds["bp"]),
                ]
            )
        calls.append(
            (
                f"bp to 1e-4, {name(LAYER)}, {label}, a call on one thread / plain loop",
                ratio(seconds[ONE_THREAD], seconds[LOOP]),
                limit,
            )
        )
    print(f"to convergence at 1e-4, {name(LAYER)}, whole calls")
    print(table(["problem", "method", "sweeps", "ms", "fastest", "times bp"], rows))
    for title, value, limit in calls:
        yield target(title, value, limit)
    for solver, gap in gaps.items():
        yield target(
            (
                f"largest difference of a marginal between PGMax and {solver}, {name(LAYER)}, "
                "mild, x 1e6"
            ),
            1e6 * gap,
            1e3,
        )
    print()


def differences(python: Path, theirs: Tensor, u: Tensor) -> dict[str, float]:
    """Return how far everybody's marginals of the mild problem are from PGMax's."""
    grid = model(LAYER, MILD)
    found = {"bp": infer(grid, u, method="bp", tol=1e-6).marginals}
    found["tables 2 x 2"] = (
        infer(general(LAYER, agreement(MILD)), u.reshape(-1), method="bp", tol=1e-5)
        .marginals[..., 1]
        .reshape(LAYER)
    )
    with peer(python, "fbgbp", agreement(MILD), u) as fbgbp:
        fbgbp.ask("settle", tol=1e-7, at_most=400)
        found["fbgbp"] = fbgbp.marginals(u.shape)
    return {solver: float((marginals - theirs).abs().max()) for solver, marginals in found.items()}


def lowering(repeats: int) -> Iterator[bool]:
    """Time the way from a declaration to what a kernel takes."""

    def lazy(fields: bool) -> float:
        with one_thread():
            start = time.process_time()
            lowered = FactorGraph.grid(LAYER, MILD, MILD).lower()
            if fields and isinstance(lowered, Grid):
                lowered.fields()
            return time.process_time() - start

    work: dict[str, Callable[[], float]] = {
        "lazy": partial(lazy, False),
        "with fields": partial(lazy, True),
        LOOP: passes(math.prod(LAYER)),
    }
    seconds = turns("lowering", work, 3 * repeats)

    def build() -> float:
        start = time.process_time()
        materialised(LAYER, MILD)
        return time.process_time() - start

    say("building a networkx graph of 200,704 variables and 400,368 factors")
    graph = materialised(LAYER, MILD)

    def read() -> float:
        start = time.process_time()
        FactorGraph.from_networkx(graph).lower()
        return time.process_time() - start

    work = {"build in networkx": build, "from_networkx": read}
    seconds |= turns("networkx", work, max(2, repeats // 4))
    rows: list[Row] = [[title, 1e3 * statistics.median(taken)] for title, taken in seconds.items()]
    print(table(["lowering", "ms"], rows))
    for title, key in ((" and lower", "lazy"), (", lower and fields", "with fields")):
        yield target(
            f"FactorGraph.grid({name(LAYER)}){title} / plain loop",
            ratio(seconds[key], seconds[LOOP]),
            20.0,
        )
    yield target(
        f"from_networkx of {name(LAYER)} and lower / building that graph in networkx",
        ratio(seconds["from_networkx"], seconds["build in networkx"]),
        1.0,
    )
    print()


def memory() -> Iterator[bool]:
    """Print what processes of their own report: memory of a call, and how long the very first call
    takes.
    """
    say("memory")
    count = math.prod(LARGE)
    # Every array in a mapping of its own: what the allocator keeps for later is not what a call
    # needs.
    spent = child("memory", {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(1 << 16)})
    print(
        f"memory of bp, {name(LARGE)}: {spent / 2**20:.0f} MiB. Peak resident size of a "
        "fresh process during the call, its result included,"
    )
    print(
        "less the resident size just before it: evidence made, numba loaded and its "
        "kernels run on a small grid."
    )
    yield target(f"peak bytes a variable of a bp call, {name(LARGE)}", spent / count, 40.0)
    say("first calls")
    with tempfile.TemporaryDirectory() as folder:
        cold, cached = (child("first", {**os.environ, "NUMBA_CACHE_DIR": folder}) for _ in range(2))
    print(
        f"first call in a process, compiling included: {cold:.2f} s, {cached:.2f} s where "
        "an earlier process left its kernels in numba's cache"
    )


def model(shape: tuple[int, int], stay: float) -> Grid:
    """Return the grid whose neighbours agree with weight `stay` and differ with the rest."""
    bonus = math.log(stay / (1 - stay))
    return Grid(shape, Link(2 * bonus, -bonus, -bonus), Link(2 * bonus, -bonus, -bonus))


def agreement(stay: float) -> Tensor:
    """Return the same weights as a flat log table."""
    return torch.tensor([stay, 1 - stay, 1 - stay, stay], dtype=torch.float64).log()


def evidence(shape: tuple[int, int]) -> Tensor:
    """Return log-odds."""
    return NOISE * torch.randn(shape, generator=torch.Generator().manual_seed(0))


def general(shape: tuple[int, int], values: Tensor) -> Tables:
    """Return a grid of links (4 values) or of 2 x 2 cells (16) as general tables."""
    index = torch.arange(math.prod(shape)).reshape(shape)
    if values.numel() == 4:
        ends = ((index[:, :-1], index[:, 1:]), (index[:-1], index[1:]))
        scope = torch.cat([torch.stack([a.reshape(-1), b.reshape(-1)], 1) for a, b in ends])
    else:
        corners = (index[:-1, :-1], index[:-1, 1:], index[1:, :-1], index[1:, 1:])
        scope = torch.stack([corner.reshape(-1) for corner in corners], 1)
    arity = scope.shape[1]
    group = TableGroup(
        values.reshape(1, *(2,) * arity).float(), torch.zeros(len(scope), dtype=torch.long), scope
    )
    return Tables(torch.full((index.numel(),), 2), torch.zeros(index.numel(), 2), (group,))


def materialised(shape: tuple[int, int], stay: float) -> nx.Graph[int]:
    """Return the grid as a networkx factor graph: a node for each variable and each factor."""
    values, index = agreement(stay).reshape(2, 2), np.arange(math.prod(shape)).reshape(shape)
    links = [*zip(index[:, :-1].ravel().tolist(), index[:, 1:].ravel().tolist(), strict=True)]
    links += [*zip(index[:-1].ravel().tolist(), index[1:].ravel().tolist(), strict=True)]
    graph: nx.Graph[int] = nx.Graph()
    graph.add_nodes_from(range(index.size), type="variable")
    for number, scope in enumerate(links, index.size):
        graph.add_node(number, type="factor", factor=values, scope=scope)
        graph.add_edges_from((number, variable) for variable in scope)
    return graph


def sweep(graph: Grid | Tables, u: Tensor, steps: int, **options: Any) -> Callable[[], float]:
    """Return a function that measures the seconds of a sweep."""

    def timed(sweeps: int) -> float:
        start = time.perf_counter()
        result = infer(graph, u, method="bp", tol=0.0, max_sweeps=sweeps, warn=False, **options)
        seconds = time.perf_counter() - start
        if result.sweeps != sweeps:
            raise SystemExit(f"asked for {sweeps} sweeps, {result.sweeps} made")
        return seconds

    def measured() -> float:
        few = timed(8)
        return (timed(8 + steps) - few) / steps

    return measured


def call(graph: Grid, u: Tensor, method: Literal["bp", "strip"]) -> float:
    """Measure a call to convergence."""
    start = time.perf_counter()
    _ = infer(graph, u, method=method, warn=False).extrinsic
    return time.perf_counter() - start


def call_on_one_thread(graph: Grid, u: Tensor) -> float:
    """Measure the processor seconds of a call of belief propagation on one thread."""
    with one_thread():
        start = time.process_time()
        _ = infer(graph, u, method="bp", warn=False).extrinsic
        return time.process_time() - start


def copies(size: int, times: int) -> Callable[[], float]:
    """Return a function that measures the seconds a byte moved takes, one array of `size` bytes
    copied to another.
    """
    source = torch.rand(size // 4)
    sink = torch.rand(size // 4)

    def measured() -> float:
        start = time.perf_counter()
        for _ in range(times):
            sink.copy_(source)
        return (time.perf_counter() - start) / (times * 2 * 4 * source.numel())

    return measured


def passes(size: int) -> Callable[[], float]:
    """Return a function that measures the processor seconds of one pass of the plain loop over
    `size` bytes.
    """
    loop = plain_loop(size)

    def measured() -> float:
        start = time.process_time()
        loop()
        return (time.process_time() - start) / loop_turns(size)

    return measured


def turns(title: str, work: Mapping[str, Callable[[], float]], repeats: int) -> Seconds:
    """Take each measurement in turn, A B A B ..., after one warm-up each."""
    results: Seconds = {key: [] for key in work}
    with tqdm(
        total=(repeats + 1) * len(work), desc=title, leave=False, delay=2.0, mininterval=1.0
    ) as bar:
        for number in range(repeats + 1):
            for key, measure in work.items():
                gc.collect()
                # The threads of the one before spin for a moment.
                time.sleep(0.02)
                value = measure()
                if number:
                    results[key].append(value)
                bar.update()
    return results


def report(title: str, seconds: Seconds, shape: tuple[int, int], against: tuple[str, ...]) -> None:
    """Print medians, and how many times slower the peers are."""
    rows: list[Row] = []
    for key, values in seconds.items():
        median = statistics.median(values)
        times = [ratio(seconds[other], values) for other in against]
        rows.append(
            [
                key,
                1e3 * median,
                1e3 * min(values),
                1e3 * max(values),
                1e9 * median / math.prod(shape),
                *times,
            ]
        )
    print(title)
    print(
        table(
            [
                "",
                "ms",
                "fastest",
                "slowest",
                "ns a variable",
                *(f"times faster than {other}" for other in against),
            ],
            rows,
        )
    )


def name(shape: tuple[int, int]) -> str:
    """Write a size as people do."""
    return f"{shape[0]} x {shape[1]}"


def last_cache() -> int:
    """Return the bytes of the largest cache, 32 MiB where the system does not say."""
    sizes = [
        path.read_text().strip()
        for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    ]
    return max((int(size[:-1]) << 10 for size in sizes if size.endswith("K")), default=32 << 20)


def peer_sweep(server: Peer, count: int) -> Callable[[], float]:
    """Return a function that measures the seconds of a peer's sweep."""
    return lambda: server.ask("sweeps", count=count)["seconds"] / count


def child(what: str, variables: Mapping[str, str] | None = None) -> float:
    """Ask a fresh process of this program for a number."""
    done = subprocess.run(
        [sys.executable, __file__, "--child", what],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env=variables,
    )
    return float(json.loads(done.stdout))


def first_call() -> float:
    """Return the seconds of this process's first call."""
    grid, u = model((64, 48), MILD), evidence((64, 48))
    return call(grid, u, "bp")


def peak_bytes() -> float:
    """Return the memory a call takes on top of what this process holds."""
    # Large and small grids take different kernels.
    for shape in ((64, 48), (192, 192)):
        call(model(shape, HARD), evidence(shape), "bp")
    grid, u = model(LARGE, HARD), evidence(LARGE)
    gc.collect()
    before, seen, done = resident(), [0], threading.Event()

    def look() -> None:
        while not done.wait(5e-4):
            seen.append(resident())

    watcher = threading.Thread(target=look)
    watcher.start()
    result = infer(grid, u, method="bp", tol=0.0, max_sweeps=8, warn=False)
    seen.append(resident())
    done.set()
    watcher.join()
    return max(seen) - before if result.extrinsic.numel() else 0.0


def resident() -> int:
    """Return the bytes this process holds, counted page by page: the kernel's running totals are
    off by tens of MiB on large machines.
    """
    return 1024 * int(Path("/proc/self/smaps_rollup").read_text().split("Rss:")[1].split()[0])


if __name__ == "__main__":
    sys.exit(main())

"""Many rounds, any workers and order, odd clients, for `recovery.py`."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path

import torch
from parts.recovery.kills import digest
from pyro.infer.autoguide import AutoNormal
from tqdm import tqdm

import bayesfed as bf
from bayesfed.errors import BayesfedError
from bayesfed.federated import Algorithm, checkpoint, rounds

Clients = dict[str, bf.Dataset]
Method = Callable[[torch.nn.Module, Clients], Algorithm]


def soak(folder: Path, number: int) -> tuple[float, int]:
    """Return the megabytes and file handles that a run has gained since its first tenth: serial,
    then with a worker process.
    """
    generator, grown, handles = bf.Key(0, "soak").generator(), 0.0, 0
    clients = {
        f"c{i}": bf.Dataset(
            torch.randn(8, 4, generator=generator), torch.randint(0, 2, (8,), generator=generator)
        )
        for i in range(3)
    }
    algorithm = bf.stc(
        bf.mlp([4, 2], bf.Key(0, "net")), share=0.5, training=bf.Training(steps=1, batch_size=4)
    )
    for workers, made in ((0, number), (1, number // 10)):
        start, saver = (0.0, 0), checkpoint(folder / str(workers), every=max(made // 100, 1))
        with bf.InProcess(clients, workers=workers) as pool:
            for report in tqdm(
                rounds(algorithm, pool, rounds=made), total=made, desc=f"soak, {workers} workers"
            ):
                saver(report)
                if report.snapshot.round == made // 10:
                    start = resident()
            end = resident()
        grown, handles = max(grown, end[0] - start[0]), max(handles, end[1] - start[1])
    return grown, handles


def resident() -> tuple[float, int]:
    """Return this process's resident megabytes and open file handles."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6, len(os.listdir("/proc/self/fd"))


def methods() -> dict[str, Method]:
    """Return makers of algorithms by name."""

    def svi(net: torch.nn.Module, clients: Clients) -> Algorithm:
        data = next(part for part in clients.values() if len(part))
        model = bf.bayesian(net, bf.Gaussian(0.5))
        rows = sum(map(len, clients.values()))
        return bf.federated_svi(
            model,
            AutoNormal,
            fusion=bf.PVI(damping=0.3),
            scale="local",
            observations=rows,
            example=data[slice(0, 2)],
            training=bf.Training(steps=2, batch_size=None),
        )

    def turbo(net: torch.nn.Module, clients: Clients) -> Algorithm:
        return bf.d_turbo_vbi(
            bf.declare(net),
            observations=sum(map(len, clients.values())),
            training=bf.Training(steps=2, batch_size=8),
        )

    return {
        "fed_avg": lambda net, clients: bf.fed_avg(
            net, training=bf.Training(steps=2, batch_size=8)
        ),
        "stc": lambda net, clients: bf.stc(
            net, share=0.1, training=bf.Training(steps=2, batch_size=8)
        ),
        "d_turbo_vbi": turbo,
        "federated_svi": svi,
        "fed_rlr": lambda net, clients: bf.fed_rlr(
            net, 2, training=bf.Training(steps=2, batch_size=8)
        ),
    }


def identity() -> dict[str, bool]:
    """Say of each method whether 1, 2 and 4 process workers and a shuffled federation give the
    history of the serial run.
    """
    train, _ = bf.digits()
    clients, same = (
        bf.federate(train, bf.iid(len(train), 6, bf.Key(0, "partition"))),
        dict[str, bool](),
    )
    for name, make in tqdm(methods().items(), desc="workers"):
        algorithm = make(bf.mlp([64, 16, 10], bf.Key(0, "net")), clients)
        wanted = digest(bf.run(algorithm, clients, rounds=3, progress=False))
        for workers in (0, 1, 2, 4):
            order = bf.Key(workers, "order").numpy().permutation(sorted(clients))
            with bf.InProcess(
                {str(client): clients[str(client)] for client in order}, workers=workers
            ) as pool:
                same[f"{name}, {workers} workers"] = (
                    digest(bf.run(algorithm, pool, rounds=3, progress=False)) == wanted
                )
    return same


def oddities() -> dict[tuple[str, str], str]:
    """Run every method on every odd federation; return "ok", "refused" (a typed error) or
    "crash".
    """
    train, _ = bf.digits()
    part, key = train[slice(0, 60)], bf.Key(0, "odd")
    few = bf.federate(part, bf.iid(60, 3, key))
    federations: dict[str, Clients] = {
        "an empty client": {**few, "empty": part[slice(0, 0)]},
        "one row": {**few, "one": part[slice(0, 1)]},
        "one row in all": {"one": part[slice(0, 1)]},
        "one class": {"a": bf.Dataset(part.inputs, torch.zeros_like(part.targets))},
        "constant features": {
            "a": bf.Dataset(torch.ones_like(part.inputs), part.targets),
            "b": bf.Dataset(0 * part.inputs, part.targets),
        },
        "K = 1": {"only": part},
        "K > N": bf.federate(part, bf.iid(60, 100, key)),
        "1,000 clients": bf.federate(train, bf.iid(len(train), 1000, key)),
    }
    found = {}
    for case, clients in tqdm(federations.items(), desc="oddities"):
        for name, make in methods().items():
            try:
                result = bf.run(
                    make(bf.mlp([64, 8, 10], key), clients), clients, rounds=2, progress=False
                )
                finite = all(
                    bool(torch.isfinite(leaf).all()) for leaf in result.snapshot.state.values()
                )
                found[case, name] = "ok" if finite else "crash"
            except BayesfedError as problem:
                tqdm.write(f"{case}, {name}: {problem}")
                found[case, name] = "refused"
            except Exception as problem:
                tqdm.write(f"{case}, {name}: {type(problem).__name__}: {problem}")
                found[case, name] = "crash"
    return found

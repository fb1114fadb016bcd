"""The runs of `fslora.py`: a case's settings, the algorithm they make, and its finished run, kept
on disk.
"""

from __future__ import annotations

import copy
import hashlib
import json
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from parts.fslora.sentiment_task import Task, last_output
from parts.shared.curves import Curve
from parts.shared.kept import commit, kept
from torch import nn
from tqdm import tqdm

import bayesfed as bf
from bayesfed.compress import Coded, TopK
from bayesfed.federated.core.algorithm import Algorithm
from bayesfed.federated.engine.reports import bits
from bayesfed.federated.engine.round_loop import rounds
from bayesfed.models.adapters.lora import adapters, resized
from bayesfed.models.costs import costs

Settings = Mapping[str, Any]
WHERE = {
    "queries and values": bf.models.query_value,
    "last output": last_output,
    "linear layers": bf.models.linear_weights,
}


@dataclass(frozen=True)
class Finished:
    """One run.

    Parameters
    ----------
    rows
        (round, MB up of a client so far, MB down, accuracies of the domains in the order of their
        names) where it was scored.
    client_s, server_s
        Seconds of all clients' turns and of the rest of the rounds, codecs included in either.
    """

    case: str
    seed: int
    settings: Settings
    domains: list[str]
    rows: list[list[float]]
    client_s: float
    server_s: float

    def last(self, domain: int | None = None) -> float:
        """Return the mean accuracy of a domain, or of all, at the last scores."""
        rows = self.rows[-self.settings["last"] :]
        return statistics.mean(
            statistics.mean(row[3:]) if domain is None else row[3 + domain] for row in rows
        )

    @property
    def curve(self) -> Curve:
        """Mean accuracy against megabytes up."""
        return [(row[1], statistics.mean(row[3:])) for row in self.rows]


def finished(
    name: str, settings: Settings, seed: int, task: Task, out: Path, workers: int
) -> Finished:
    """Return a run, from its file if it was made before with the same settings."""
    digest = hashlib.sha256(
        json.dumps([settings, len(task.test.data)], sort_keys=True).encode()
    ).hexdigest()[:12]
    found = kept(
        out / "runs" / f"{digest}_{seed}.json", lambda: _made(name, settings, seed, task, workers)
    )
    return Finished(
        name, seed, settings, found["domains"], found["rows"], found["client_s"], found["server_s"]
    )


def _made(name: str, settings: Settings, seed: int, task: Task, workers: int) -> dict[str, Any]:
    clients = parts(settings, seed, task)
    algorithm, scores = recipe(settings, seed, task.net, sorted(clients)), dict[str, float]()
    count = settings["rounds"] * settings.get("longer", 1)
    up, down, client_s, taken, found = 0.0, 0.0, 0.0, 0.0, list[list[float]]()
    with (
        bf.InProcess(clients, workers=workers) as pool,
        tqdm(total=count, desc=f"{name}, seed {seed}", unit="round", leave=False) as bar,
    ):
        for report in rounds(algorithm, pool, rounds=count, seed=seed):
            up += bits(report.rows, "up") / 8e6 / len(clients)
            down += bits(report.rows, "down") / 8e6 / len(clients)
            client_s += sum(row.seconds for row in report.rows)
            taken += report.seconds
            number = report.snapshot.round
            if not number % settings["every"] or number == count:
                scores = task.scores(report.model)
                found.append([number, up, down, *scores.values()])
                bar.set_postfix(scores, refresh=False)
            bar.update()
    # With workers clients overlap, and what is left is not the server's.
    server_s = taken - client_s if not workers else float("nan")
    return {
        "case": name,
        "settings": dict(settings),
        "commit": commit(),
        "domains": list(scores),
        "rows": found,
        "client_s": client_s,
        "server_s": server_s,
    }


def parts(settings: Settings, seed: int, task: Task) -> dict[str, bf.Dataset]:
    """Return the clients' rows: every client is of one domain; or one has all."""
    if settings["clients"] == 1:
        return {"all": task.train.data}
    names = sorted(set(task.train.domains))
    each = settings["clients"] // len(names)
    if each * len(names) != settings["clients"]:
        raise ValueError(
            f"clients: expected a multiple of {len(names)} domains, found {settings['clients']}"
        )
    key = bf.Key(seed, "partition")
    return bf.federate(
        task.train.data,
        bf.data.within_domains(
            task.train.domains, lambda rows, own: bf.iid(len(rows), each, own), key
        ),
    )


def adapted(settings: Settings, seed: int, net: nn.Module) -> nn.Module:
    """Return the network with adapters, its head trained as well; or alone, a rank of 0."""
    if not settings["rank"]:
        alone = copy.deepcopy(net)
        for name, leaf in alone.named_parameters():
            leaf.requires_grad_(name.startswith("classifier"))
        return alone
    own = {
        "alpha": settings["alpha"],
        "scaling": settings["scaling"],
        "dropout": settings["dropout"],
    }
    return bf.lora(
        net,
        settings["rank"],
        bf.Key(seed, "lora"),
        where=WHERE[settings["where"]],
        head=["classifier"],
        **own,
    )


def slices(settings: Settings) -> list[int]:
    """Return k of every size, largest first."""
    return [max(1, round(ratio * settings["rank"])) for ratio in settings["ratios"]]


def recipe(settings: Settings, seed: int, net: nn.Module, clients: list[str]) -> Algorithm:
    """Return a case's algorithm."""
    made, ranks = adapted(settings, seed, net), slices(settings)
    common: dict[str, Any] = {
        "training": bf.Training(
            settings["steps"], settings["batch_size"], bf.Adam(settings["learning_rate"])
        )
    }
    if "top" in settings:
        common["up"] = Coded(TopK(settings["top"]))
    own = {
        name: settings[name] for name in ("sampling", "broadcast", "by_norm") if name in settings
    }
    if settings["recipe"] == "fs_lora":
        own["anchored"] = settings.get("anchored", False)
        own.setdefault("sampling", "uniform")
    method: Callable[..., Algorithm] = getattr(bf, settings["recipe"])
    sized = (
        ()
        if settings["recipe"] in ("fed_avg", "fed_lora", "ffa_lora")
        else (ranks, bf.fixed(clients, len(ranks)))
    )
    return method(made, *sized, **own, **common)


def held(settings: Settings, task: Task, k: int) -> dict[str, float]:
    """Return what a client with k slices holds beside the frozen weights, in bytes, and what a step
    computes.

    Parameters, gradients and Adam's two moments of what it trains; what autograd saved for the
    backward of one batch, parameters not counted; and the multiply-accumulates of adapters in one
    forward of one row.
    """
    made = resized(adapted({**settings, "dropout": 0.0}, 0, task.net), k)
    trained = sum(
        leaf.numel() * leaf.element_size() for leaf in made.parameters() if leaf.requires_grad
    )
    own, saved = {leaf.untyped_storage().data_ptr() for leaf in made.parameters()}, dict[int, int]()

    def note(leaf: torch.Tensor) -> torch.Tensor:
        if leaf.untyped_storage().data_ptr() not in own:
            saved[leaf.untyped_storage().data_ptr()] = leaf.untyped_storage().nbytes()
        return leaf

    # A storage of their own: a slice's is that of all rows.
    rows = task.train.data[torch.arange(settings["batch_size"])]
    with torch.autograd.graph.saved_tensors_hooks(note, lambda leaf: leaf):
        loss = torch.nn.functional.cross_entropy(made(rows.inputs), rows.targets)
    kept_alive = sum(saved.values())
    loss.backward()
    per_row = {row.layer: row.macs for row in costs(made, rows.inputs[:1])}
    macs = sum(per_row.get(name, 0) for name in adapters(made))
    whole = sum(per_row.values())
    return {
        "trained": trained,
        "moments": 2.0 * trained,
        "saved": kept_alive,
        "macs": macs,
        "whole_macs": whole,
    }

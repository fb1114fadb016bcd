"""The runs of `uncertainty.py`: rows of clients, trained networks, what is read off them, and its
scores, kept on disk.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from parts.shared.kept import kept
from parts.uncertainty.scores import Sets, scored
from torch import Tensor, nn

import bayesfed as bf
from bayesfed.algorithms.after_training.feature_density import FeatureDensity
from bayesfed.data import concatenated
from bayesfed.inference.evaluation.predictive import Predictive
from bayesfed.inference.laplace.posterior import LaplacePosterior

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Problem:
    """Rows of every client to train on and held out, and rows to score."""

    train: Mapping[str, bf.Dataset]
    held: Mapping[str, bf.Dataset]
    sets: Sets

    @property
    def rows(self) -> int:
        """Number of rows that are trained on."""
        return sum(map(len, self.train.values()))


@dataclass(frozen=True)
class Reading:
    """What a trained network predicts.

    Probabilities ``(S, B, C)`` by S draws of a posterior or passes with dropout; logits ``(B, C)``
    and distances of features ``(B,)`` of one network.
    """

    probabilities: Callable[[Tensor, int], Tensor]
    logits: Callable[[Tensor], Tensor] | None = None
    distance: Callable[[Tensor], Tensor] | None = None


@cache
def data(folder: Path) -> tuple[bf.Dataset, bf.Dataset]:
    """Return Fashion-MNIST."""
    return bf.fashion_mnist(folder)


def problem(settings: Settings, seed: int, folder: Path) -> Problem:
    """Return the rows of a seed: a tenth of every client's rows is held out, and every client has
    test rows of its own classes.
    """
    train, test = data(folder)
    key = bf.Key(seed, "uncertainty")
    order = torch.randperm(len(train), generator=key.child("rows").generator())
    chosen = train[order[: round(settings["rows"] / 0.9)]]
    parts = bf.dirichlet(
        chosen.targets, settings["clients"], settings["concentration"], key.child("partition")
    )
    kept_rows, held = bf.data.split_rows(bf.federate(chosen, parts), 0.1, key=key.child("held out"))
    test = test[torch.randperm(len(test), generator=bf.Key(0, "test").generator())]
    # Sets promise coverage of rows like those held out. Those of the test file are a little harder:
    # they are scored apart.
    others = train[order[round(settings["rows"] / 0.9) :][: len(test)]]
    own = _like(kept_rows, others if len(others) == len(test) else test, key.child("test"))
    return Problem(
        kept_rows,
        held,
        Sets(
            test[: settings["scored"]],
            test[: settings["corrupted"]],
            own,
            _like(kept_rows, test, key.child("test")),
        ),
    )


def _like(
    clients: Mapping[str, bf.Dataset], test: bf.Dataset, key: bf.Key
) -> dict[str, bf.Dataset]:
    """Deal test rows to clients in the shares of their own classes."""
    counts = torch.stack(
        [torch.bincount(part.targets, minlength=10).double() for part in clients.values()]
    )
    places: list[list[Tensor]] = [[] for _ in clients]
    for label in range(10):
        rows = (test.targets == label).nonzero()[:, 0]
        rows = rows[torch.randperm(len(rows), generator=key.child(label).generator())]
        ends = (
            (counts[:, label].cumsum(0) / counts[:, label].sum().clamp_min(1) * len(rows))
            .round()
            .long()
            .tolist()
        )
        for number, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
            places[number].append(rows[start:end])
    return {name: test[torch.cat(own)] for name, own in zip(clients, places, strict=True)}


def network(settings: Settings, key: bf.Key) -> nn.Module:
    """Return the network MLP 784-256-256-10, with dropout after both hidden layers if it is asked
    for.
    """
    return bf.mlp([784, 256, 256, 10], key, dropout=settings.get("dropout", 0.0))


def result(settings: Settings, seed: int, given: Problem, member: int = 0) -> bf.Result:
    """Train a network."""
    net, rounds = network(settings, bf.Key(seed, "net", member)), settings["rounds"]
    prior = (
        {"prior_precision": settings["prior_precision"], "observations": given.rows}
        if "prior_precision" in settings
        else {}
    )
    adam, schedule = (
        bf.Adam(settings["learning_rate"]),
        bf.federated.cosine(0.05, settings["rounds"]),
    )
    clients = (
        {"all": concatenated(list(given.train.values()))}
        if settings.get("central")
        else given.train
    )
    steps = settings["steps"] * (settings["clients"] if settings.get("central") else 1)
    work = bf.Training(steps, settings["batch_size"], adam, schedule, **prior)
    if settings["method"] == "d_turbo_vbi":
        algorithm = bf.d_turbo_vbi(bf.declare(net), observations=given.rows, training=work)
    elif settings["method"] == "swag":
        algorithm = bf.swag(bf.fed_avg(net, training=work), begin=settings["begin"])
    elif settings["method"] == "fed_be":
        algorithm = bf.fed_be(net, training=work)
    elif settings["method"] == "fed_pa":
        algorithm = bf.fed_pa(net, begin=settings["begin"], training=work)
    elif settings["method"] == "beta_pred_bayes":
        alone = bf.Training(steps * rounds, settings["batch_size"], bf.Sgd(settings["sgd_rate"]))
        algorithm, rounds = (
            bf.beta_pred_bayes(net, temperature=settings["temperature"], training=alone),
            1,
        )
    else:
        algorithm = bf.fed_avg(net, training=work)
    return bf.run(algorithm, clients, rounds=rounds, seed=seed, progress=False)


def readings(
    settings: Settings, trained: list[bf.Result], given: Problem
) -> tuple[dict[str, Reading], dict[str, float], Any]:
    """Return the readings of a case, figures of it, and the calibrated model for prediction
    sets.
    """
    first = trained[0]
    if first.algorithm.posterior is not None:
        posterior = first.posterior
        return (
            {
                "": Reading(
                    lambda rows, count: (
                        Predictive(posterior, rows, bf.Key(0, "draws"), count).probabilities
                    ),
                    first.model,
                )
            },
            {},
            None,
        )
    models = [one.model for one in trained]

    def points(rows: Tensor, count: int) -> Tensor:
        return torch.stack([model(rows).softmax(1) for model in models])

    if len(models) > 1:
        return {"": Reading(points)}, {}, None
    if settings.get("dropout"):
        dropping = bf.mc_dropout(first.algorithm).posterior
        assert dropping is not None
        passes = dropping(first.snapshot.state)
        return (
            {
                "": Reading(
                    lambda rows, count: (
                        Predictive(passes, rows, bf.Key(0, "draws"), count).probabilities
                    ),
                    first.model,
                )
            },
            {},
            None,
        )
    calibrated = bf.run(bf.calibrated(first.model), given.held, rounds=1, progress=False)
    clients = (
        {"all": concatenated(list(given.train.values()))}
        if settings.get("central")
        else given.train
    )
    gaussian = bf.run(bf.laplace(first.model), clients, rounds=1, progress=False)
    density = bf.run(bf.feature_density(first.model), clients, rounds=1, progress=False).model
    fitted = gaussian.posterior
    assert isinstance(fitted, LaplacePosterior)
    assert isinstance(density, FeatureDensity)
    figures = {
        "temperature": calibrated.final("temperature"),
        "precision": gaussian.final("prior_precision"),
        "laplace_kb": max(row.cost.bits for row in gaussian.ledger if row.direction == "up") / 8e3,
    }
    return (
        {
            "": Reading(points, first.model, density.distance),
            "temperature": Reading(
                lambda rows, count: calibrated.model(rows).softmax(1)[None], calibrated.model
            ),
            "Laplace": Reading(
                lambda rows, count: (
                    Predictive(fitted, rows, bf.Key(0, "draws"), count).probabilities
                ),
                first.model,
            ),
        },
        figures,
        calibrated,
    )


@dataclass(frozen=True)
class Place:
    """Where data are and runs are kept."""

    folder: Path
    out: Path

    def run(self, settings: Settings, seed: int) -> dict[str, Any]:
        """Return the scores of a case, from its file if it was run before with the same
        settings.
        """
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]
        return kept(self.out / "runs" / f"{digest}_{seed}.json", lambda: self._made(settings, seed))

    def _made(self, settings: Settings, seed: int) -> dict[str, Any]:
        torch.set_num_threads(1)
        given = problem(settings, seed, self.folder)
        trained = [
            result(settings, seed, given, member) for member in range(settings.get("members", 1))
        ]
        read, figures, calibrated = readings(settings, trained, given)
        sent = sum(one.bits() for one in trained) / 8e6
        scores = {
            name: scored(one, given.sets, concatenated(list(given.held.values())), settings)
            for name, one in read.items()
        }
        covered = (
            given.sets.covered(calibrated, concatenated(list(given.held.values())))
            if calibrated is not None
            else {}
        )
        return {
            "settings": dict(settings),
            "seed": seed,
            "megabytes": sent,
            **figures,
            "readings": scores,
            "conformal": covered,
        }

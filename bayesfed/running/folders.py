"""A folder of results: written once, never written over.

::

    experiment.toml         as it was given, if a file was run
    settings.json           its settings, and their digest
    versions.json           Python and packages, an entry each time they have changed
    seed-0/rounds.jsonl     a line for each round: metrics, server figures, and the ledger's rows of
                            every client
    seed-0/ledger.csv       the ledger alone: bits, joules, seconds, channel uses of every message
    seed-0/method.json      name of the method, its settings, and the BibTeX entries to cite
    seed-0/metrics.json     the last round's figures and the sums of the ledger; written last
    seed-0/clients.csv      scores of clients on their own rows, where a run has any
    seed-0/model.safetensors, posterior.nc, checkpoints/
    card.md                 a model card of all seeds
    pictures/
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesfed.data.files import write_whole
from bayesfed.errors import ArgumentError, BayesfedError
from bayesfed.federated import (
    Record,
    Row,
    bits,
    channel_uses,
    energy_j,
    latency_s,
)
from bayesfed.federated.engine.files.records import from_line, lines
from bayesfed.inspect import PersonalScores
from bayesfed.inspect.at_clients import Rows
from bayesfed.inspect.tables import csv_of
from bayesfed.running.networks import write_tensors
from bayesfed.running.settings import read_json, settings_of, write_json

if TYPE_CHECKING:
    from bayesfed.federated import Algorithm
    from bayesfed.running.experiments.experiment import ExperimentFile
    from bayesfed.running.result import Result

# Largest number of values in posterior.nc.
POSTERIOR_NUMBERS = 2_000_000
# Folder of a seed's checkpoints.
CHECKPOINTS = "checkpoints"


@dataclass(frozen=True)
class Folder:
    """Results of one experiment, for all its seeds."""

    path: Path

    @cached_property
    def file(self) -> ExperimentFile | None:
        """The experiment; None of results that `Result.save` wrote.

        Raises
        ------
        ArgumentError
            If this is not a folder of results.
        """
        from bayesfed.running.experiments.experiment import parse

        kept = self.path / "experiment.toml"
        if kept.is_file():
            # Paths in the experiment begin at the folder that it came from.
            settings = read_json(self.path / "settings.json")
            return parse(
                kept.read_text(encoding="utf-8"),
                Path(settings["folder"]) / f"{settings['name']}.toml",
            )
        if not (self.path / "versions.json").is_file():
            raise ArgumentError(
                str(self.path),
                "a folder of results",
                "no experiment.toml in it",
                "a folder that `bayesfed run` or `Result.save` made",
            )
        return None

    def seed(self, seed: int) -> Path:
        """Return the folder of one seed."""
        return self.path / f"seed-{seed}"

    @property
    def finished(self) -> list[int]:
        """Seeds whose runs have ended, in the order of the experiment, or of their size."""
        from bayesfed.running.experiments.build import seeds

        there = sorted(
            int(name)
            for path in self.path.glob("seed-*/metrics.json")
            if (name := path.parent.name.removeprefix("seed-")).isdigit()
        )
        return there if self.file is None else [seed for seed in seeds(self.file) if seed in there]

    def history(self, seed: int) -> list[Record]:
        """Return the records of a seed's rounds.

        Raises
        ------
        ArgumentError
            If they are not there or cannot be read.
        """
        path = self.seed(seed) / "rounds.jsonl"
        try:
            return [from_line(line) for line in path.read_bytes().splitlines()]
        except (OSError, ValueError, TypeError, KeyError) as problem:
            hint = "running it again, with another folder"
            raise ArgumentError(str(path), "records of rounds", problem, hint) from problem

    def histories(self) -> list[list[Record]]:
        """Return the records of every finished seed."""
        return [self.history(seed) for seed in self.finished]

    def metrics(self, seed: int) -> dict[str, float]:
        """Return the final figures of a seed."""
        metrics: dict[str, float] = read_json(self.seed(seed) / "metrics.json")
        return metrics

    def method(self, seed: int) -> dict[str, Any]:
        """Return name, settings and citation of a seed's method; nothing of folders that an earlier
        version wrote.
        """
        path = self.seed(seed) / "method.json"
        method: dict[str, Any] = read_json(path) if path.is_file() else {}
        return method


def named_folders(where: str, folders: Sequence[Folder]) -> dict[str, Folder]:
    """Return folders of results by their names.

    Raises
    ------
    ArgumentError
        If there is none, two have the same name, or one has no finished seed.
    """
    named = {folder.path.resolve().name: folder for folder in folders}
    if len(named) != len(folders) or not named:
        raise ArgumentError(
            where,
            "folders of different names",
            [str(folder.path) for folder in folders],
            f"bayesfed {where} results/NAME",
        )
    if missing := [name for name, folder in named.items() if not folder.finished]:
        raise ArgumentError(
            where, "a finished seed of each", f"none of {missing}", "bayesfed run FILE"
        )
    return named


def save(
    path: Path, result: Result, test: Rows, seed: int, own: PersonalScores | None = None
) -> str:
    """Write a finished run to the folder of its seed; return why there is no ``posterior.nc``, or
    nothing.
    """
    path.mkdir(parents=True, exist_ok=True)
    write_whole(path / "rounds.jsonl", lines(result.history))
    write_whole(path / "ledger.csv", _ledger(result.history).encode())
    write_tensors(path / "model.safetensors", result.model.parameters)
    method = {
        "name": result.algorithm.name,
        "settings": settings_of(result.algorithm),
        "citation": _citation(result.algorithm),
        "health": str(result.health),
    }
    write_json(path / "method.json", method)
    missing = ""
    if result.algorithm.posterior is not None:
        numbers = sum(leaf.numel() for leaf in result.model.parameters.values())
        draws = max(2, min(50, POSTERIOR_NUMBERS // max(1, numbers)))
        try:
            result.to_arviz(test, draws=draws, seed=seed).to_netcdf(str(path / "posterior.nc"))
        except (ImportError, OSError, BayesfedError) as problem:
            missing = str(problem)
    figures = summary(result.history) | result.health.figures()
    if own is not None:
        write_whole(path / "clients.csv", _clients(own).encode())
        figures |= own.figures()
    write_json(path / "metrics.json", figures)
    return missing


def summary(history: Sequence[Record]) -> dict[str, float]:
    """Return the last value of each metric and the sums of the ledger: bits, joules and seconds of
    devices, seconds of the clock.
    """
    return {
        "rounds": len(history),
        **{name: value for record in history for name, value in record.metrics.items()},
        **spent([row for record in history for row in record.rows]),
        "seconds": sum(record.seconds for record in history),
        "left_out": sum(len(record.refused) for record in history),
    }


def spent(rows: Sequence[Row]) -> dict[str, float]:
    """Return the sums of a ledger: bits each way, channel uses, joules and seconds of devices.

    Without a channel or devices these are not 0 but absent.
    """
    physical = {
        "channel_uses": channel_uses(rows),
        "energy_j": energy_j(rows),
        "latency_s": latency_s(rows),
    }
    sent = {"bits_down": bits(rows, "down"), "bits_up": bits(rows, "up")}
    return sent | {name: value for name, value in physical.items() if value}


def _citation(algorithm: Algorithm) -> str:
    """Return the entries to cite for an algorithm; nothing if its recipe is not registered."""
    from bayesfed.algorithms import citation

    try:
        return citation(algorithm)
    except ArgumentError:
        return ""


def _clients(scores: PersonalScores) -> str:
    names = list(next(iter(scores.clients.values())))
    rows = scores.clients.items()
    return csv_of(
        ["client", *names],
        [[client, *(f"{own[name]:.8g}" for name in names)] for client, own in rows],
    )


def _ledger(history: Sequence[Record]) -> str:
    columns = (
        *("round", "client", "phase", "direction"),
        *(f"cost.{name}" for name in ("bits", "channel_uses", "energy_j", "latency_s", "macs")),
        *("seconds", "accepted", "field", "reason"),
    )
    read = attrgetter(*columns)
    rows = [
        [int(cell) if isinstance(cell, bool) else cell for cell in read(row)]
        for record in history
        for row in record.rows
    ]
    return csv_of([name.removeprefix("cost.") for name in columns], rows)

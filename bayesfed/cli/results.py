"""A folder of results: written once, never written over, and gone on with where it stopped.

::

    experiment.toml         as it was given
    settings.json           what it says, and its digest
    versions.json           Python and packages, one entry each time they were others
    seed-0/rounds.jsonl     a round a line: metrics, server figures, and the ledger's rows of every client
    seed-0/ledger.csv       the ledger alone: bits, joules, seconds, channel uses of every message
    seed-0/metrics.json     the last round's figures and the sums of the ledger; written last of all
    seed-0/model.safetensors, posterior.nc, checkpoints/
    pictures/
"""

from __future__ import annotations

import csv
import io
import json
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bayesfed.cli.build import Built, build, seeds
from bayesfed.cli.experiment import ExperimentFile, parse
from bayesfed.cli.scores import scoring
from bayesfed.data.files import write_whole
from bayesfed.errors import ArgumentError, BayesfedError, complain
from bayesfed.federated.clients.turn import one_thread
from bayesfed.federated.engine.callbacks import Callback
from bayesfed.federated.engine.checkpoint import checkpoint, newest
from bayesfed.federated.engine.ledger import bits, channel_uses, energy_j, latency_s
from bayesfed.federated.engine.records import from_line, to_line
from bayesfed.federated.engine.reports import Record, RoundReport
from bayesfed.running import Result, run

PACKAGES = ("bayesfed", "torch", "pyro-ppl", "numpy", "scipy", "networkx", "arviz", "safetensors")
# Draws that posterior.nc holds at most, in numbers.
POSTERIOR_NUMBERS = 2_000_000


@dataclass(frozen=True)
class Folder:
    """Results of one experiment, of all its seeds."""

    path: Path

    @cached_property
    def file(self) -> ExperimentFile:
        """The experiment.

        Raises
        ------
        ArgumentError
            If this is no folder of results.
        """
        kept = self.path / "experiment.toml"
        if not kept.is_file():
            hint = "a folder that `bayesfed run` made, or an experiment's .toml file"
            raise ArgumentError(complain(str(self.path), expected="a folder of results", actual="no experiment.toml in it", hint=hint))
        # Paths in it begin where it came from.
        settings = json.loads((self.path / "settings.json").read_text())
        return parse(kept.read_text(encoding="utf-8"), Path(settings["folder"]) / f"{settings['name']}.toml")

    def seed(self, seed: int) -> Path:
        """Return the folder of one seed."""
        return self.path / f"seed-{seed}"

    @property
    def finished(self) -> list[int]:
        """The seeds whose runs have ended."""
        return [seed for seed in seeds(self.file) if (self.seed(seed) / "metrics.json").is_file()]

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
            raise ArgumentError(complain(str(path), expected="records of rounds", actual=problem, hint="bayesfed run, which goes on")) from problem

    def metrics(self, seed: int) -> dict[str, float]:
        """Return the figures of a seed's end."""
        found: dict[str, float] = json.loads((self.seed(seed) / "metrics.json").read_text())
        return found


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that results depend on."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def folder_of(file: ExperimentFile, out: Path) -> Folder:
    """Return the folder of an experiment under `out`: its own if it has one, else the next that is free: NAME, NAME-2, NAME-3."""
    number = 1
    while True:
        path = out / (file.name if number == 1 else f"{file.name}-{number}")
        if not path.exists():
            return Folder(path)
        settings = path / "settings.json"
        if settings.is_file() and json.loads(settings.read_text()).get("digest") == file.digest:
            return Folder(path)
        number += 1


def run_file(file: ExperimentFile, out: Path, *, say: Callable[[str], None], progress: bool = True) -> Folder:
    """Run all seeds of an experiment that have not run; go on with one that was interrupted.

    On one intra-op thread, server steps included: what is reported does not hang on how many cores a machine has.

    Raises
    ------
    BayesfedError
        What `build` and `bayesfed.run` raise.
    """
    with one_thread():
        return _run_seeds(file, out, say, progress=progress)


def _run_seeds(file: ExperimentFile, out: Path, say: Callable[[str], None], *, progress: bool) -> Folder:
    wanted = seeds(file)
    # What is wrong with a file is said before anything is written.
    first = build(file, wanted[0])
    folder = folder_of(file, out)
    _prepare(folder, file)
    for seed in wanted:
        if (folder.seed(seed) / "metrics.json").is_file():
            say(f"{folder.seed(seed)}: finished before")
            continue
        _run(folder, first if seed == wanted[0] else build(file, seed), say, progress=progress)
    return folder


def _prepare(folder: Folder, file: ExperimentFile) -> None:
    folder.path.mkdir(parents=True, exist_ok=True)
    if not (folder.path / "settings.json").is_file():
        write_whole(folder.path / "experiment.toml", file.text.encode())
        settings = {"name": file.name, "folder": str(file.path.parent.resolve()), "digest": file.digest, "settings": file.tree}
        write_whole(folder.path / "settings.json", json.dumps(settings, indent=1, default=str).encode())
    kept = folder.path / "versions.json"
    found: list[dict[str, str]] = json.loads(kept.read_text()) if kept.is_file() else []
    if not found or found[-1] != versions():
        write_whole(kept, json.dumps([*found, versions()], indent=1).encode())


def _run(folder: Folder, built: Built, say: Callable[[str], None], *, progress: bool) -> None:
    path = folder.seed(built.seed)
    path.mkdir(exist_ok=True)
    resume = newest(path / "checkpoints")
    if resume is not None:
        say(f"{path}: going on after round {resume.round - 1}")
    write_whole(path / "rounds.jsonl", b"".join(to_line(record) for record in resume.history) if resume else b"")
    classes = not built.test.targets.is_floating_point()
    callbacks: list[Callback] = [
        scoring(built.test, built.likelihood, draws=built.draws, seed=built.seed),
        _log(path / "rounds.jsonl"),
        checkpoint(path / "checkpoints", every=built.save_every),
    ]
    result = run(
        built.algorithm,
        built.pool,
        test=built.test if classes else None,
        seed=built.seed,
        callbacks=callbacks,
        progress=progress,
        resume=resume,
        **built.options,
    )
    _finish(path, built, result, say)


def _log(path: Path) -> Callable[[RoundReport], None]:
    def callback(report: RoundReport) -> None:
        with path.open("ab") as file:
            file.write(to_line(report.record))

    return callback


def _finish(path: Path, built: Built, result: Result, say: Callable[[str], None]) -> None:
    write_whole(path / "rounds.jsonl", b"".join(map(to_line, result.history)))
    write_whole(path / "ledger.csv", _ledger(result.history).encode())
    result.save_model(path / "model.safetensors")
    if built.algorithm.posterior is not None:
        try:
            draws = max(2, min(50, POSTERIOR_NUMBERS // max(1, sum(leaf.numel() for leaf in result.model.parameters.values()))))
            result.to_arviz(built.test, draws=draws, seed=built.seed).to_netcdf(str(path / "posterior.nc"))
        except (ImportError, OSError, BayesfedError) as problem:
            say(f"{path}: no posterior.nc: {problem}")
    write_whole(path / "metrics.json", json.dumps(summary(result.history), indent=1).encode())


def summary(history: Sequence[Record]) -> dict[str, float]:
    """Return the metrics of the last scored round and the sums of the ledger: bits, joules and seconds of devices, seconds of the clock."""
    rows = [row for record in history for row in record.rows]
    last: dict[str, float] = {}
    for record in history:
        last |= record.metrics
    return {
        "rounds": len(history),
        **last,
        "bits_down": bits(rows, "down"),
        "bits_up": bits(rows, "up"),
        "channel_uses": channel_uses(rows),
        "energy_j": energy_j(rows),
        "latency_s": latency_s(rows),
        "seconds": sum(record.seconds for record in history),
        "left_out": sum(len(record.refused) for record in history),
    }


def _ledger(history: Sequence[Record]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    costs = ("bits", "channel_uses", "energy_j", "latency_s", "macs")
    writer.writerow(["round", "client", "phase", "direction", *costs, "seconds", "accepted", "field", "reason"])
    for record in history:
        for row in record.rows:
            figures: list[Any] = [getattr(row.cost, name) for name in costs]
            writer.writerow([row.round, row.client, row.phase, row.direction, *figures, row.seconds, int(row.accepted), row.field, row.reason])
    return out.getvalue()

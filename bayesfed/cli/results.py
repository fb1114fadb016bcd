"""A folder of results: written once, never written over, continued where it stopped.

::

    experiment.toml         as it was given
    settings.json           its settings, and their digest
    versions.json           Python and packages, an entry each time they have changed
    seed-0/rounds.jsonl     a line for each round: metrics, server figures, and the ledger's rows of every client
    seed-0/ledger.csv       the ledger alone: bits, joules, seconds, channel uses of every message
    seed-0/clients.csv      scores of each client on its own rows, where the file has `own_rows`
    seed-0/metrics.json     the last round's figures and the sums of the ledger; written last
    seed-0/model.safetensors, posterior.nc, checkpoints/
    pictures/
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bayesfed.cli.files.build import Built, build, seeds
from bayesfed.cli.files.experiment import ExperimentFile, parse
from bayesfed.cli.scores import scoring
from bayesfed.data.files import write_whole
from bayesfed.errors import ArgumentError, BayesfedError, complain
from bayesfed.federated.clients.turn import one_thread
from bayesfed.federated.engine.callbacks import Callback
from bayesfed.federated.engine.checkpoint import checkpoint, newest
from bayesfed.federated.engine.ledger import bits, channel_uses, energy_j, latency_s
from bayesfed.federated.engine.records import from_line, to_line
from bayesfed.federated.engine.reports import Record, RoundReport
from bayesfed.inspect.personal import PersonalScores
from bayesfed.running import Result, run

PACKAGES = ("bayesfed", "torch", "pyro-ppl", "numpy", "scipy", "networkx", "arviz", "safetensors")
# Largest number of values in posterior.nc.
POSTERIOR_NUMBERS = 2_000_000


@dataclass(frozen=True)
class Folder:
    """Results of one experiment, for all its seeds."""

    path: Path

    @cached_property
    def file(self) -> ExperimentFile:
        """The experiment.

        Raises
        ------
        ArgumentError
            If this is not a folder of results.
        """
        kept = self.path / "experiment.toml"
        if not kept.is_file():
            hint = "a folder that `bayesfed run` made, or an experiment's .toml file"
            raise ArgumentError(complain(str(self.path), expected="a folder of results", actual="no experiment.toml in it", hint=hint))
        # Paths in the experiment begin at the folder that it came from.
        settings = json.loads((self.path / "settings.json").read_text())
        return parse(kept.read_text(encoding="utf-8"), Path(settings["folder"]) / f"{settings['name']}.toml")

    def seed(self, seed: int) -> Path:
        """Return the folder of one seed."""
        return self.path / f"seed-{seed}"

    @property
    def finished(self) -> list[int]:
        """Seeds whose runs have ended."""
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
        """Return the final figures of a seed."""
        metrics: dict[str, float] = json.loads((self.seed(seed) / "metrics.json").read_text())
        return metrics


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that results depend on."""
    return {"python": platform.python_version(), "platform": platform.platform()} | {name: installed(name) or "not installed" for name in PACKAGES}


def installed(package: str) -> str:
    """Return the version of a package, or nothing if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def folder_of(file: ExperimentFile, out: Path) -> Folder:
    """Return the folder of an experiment under `out`: its own if there is one, else the first free one of NAME, NAME-2, NAME-3."""
    for number in itertools.count(1):
        path = out / (file.name if number == 1 else f"{file.name}-{number}")
        settings = path / "settings.json"
        if not path.exists() or (settings.is_file() and json.loads(settings.read_text()).get("digest") == file.digest):
            break
    return Folder(path)


def run_file(file: ExperimentFile, out: Path, *, say: Callable[[str], None], progress: bool = True) -> Folder:
    """Run all seeds of an experiment that have not run; continue one that was interrupted.

    Everything runs on one intra-op thread, server steps included: results do not depend on the number of cores.

    Raises
    ------
    BayesfedError
        As `build` and `bayesfed.run`.
    """
    with one_thread():
        wanted = seeds(file)
        # A wrong file is refused before anything is written.
        first = build(file, wanted[0])
        folder = folder_of(file, out)
        _prepare(folder, file)
        for seed in wanted:
            if (folder.seed(seed) / "metrics.json").is_file():
                say(f"{folder.seed(seed)}: finished before")
            else:
                _run(folder, first if seed == wanted[0] else build(file, seed), say, progress=progress)
    return folder


def _prepare(folder: Folder, file: ExperimentFile) -> None:
    folder.path.mkdir(parents=True, exist_ok=True)
    if not (folder.path / "settings.json").is_file():
        write_whole(folder.path / "experiment.toml", file.text.encode())
        settings = {"name": file.name, "folder": str(file.path.parent.resolve()), "digest": file.digest, "settings": file.tree}
        write_whole(folder.path / "settings.json", json.dumps(settings, indent=1, default=str).encode())
    kept = folder.path / "versions.json"
    earlier: list[dict[str, str]] = json.loads(kept.read_text()) if kept.is_file() else []
    if earlier[-1:] != [versions()]:
        write_whole(kept, json.dumps([*earlier, versions()], indent=1).encode())


def _run(folder: Folder, built: Built, say: Callable[[str], None], *, progress: bool) -> None:
    path = folder.seed(built.seed)
    path.mkdir(exist_ok=True)
    resume = newest(path / "checkpoints")
    if resume is not None:
        say(f"{path}: going on after round {resume.round - 1}")
    write_whole(path / "rounds.jsonl", b"".join(to_line(record) for record in resume.history) if resume else b"")

    def log(report: RoundReport) -> None:
        with (path / "rounds.jsonl").open("ab") as file:
            file.write(to_line(report.record))

    scores = scoring(built.test, built.likelihood, draws=built.draws, seed=built.seed)
    callbacks: list[Callback] = [scores, log, checkpoint(path / "checkpoints", every=built.save_every)]
    test = None if built.test.targets.is_floating_point() else built.test
    more = {"seed": built.seed, "callbacks": callbacks, "progress": progress, "resume": resume, **built.options}
    _finish(path, built, run(built.algorithm, built.pool, test=test, **more), say)


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
    figures = summary(result.history)
    if built.own:
        own = result.personal_scores(built.own, likelihood=built.likelihood, draws=built.draws, seed=built.seed)
        write_whole(path / "clients.csv", _clients(own).encode())
        figures |= own.figures()
    write_whole(path / "metrics.json", json.dumps(figures, indent=1).encode())


def summary(history: Sequence[Record]) -> dict[str, float]:
    """Return the last value of each metric and the sums of the ledger: bits, joules and seconds of devices, seconds of the clock."""
    rows = [row for record in history for row in record.rows]
    return {
        "rounds": len(history),
        **{name: value for record in history for name, value in record.metrics.items()},
        "bits_down": bits(rows, "down"),
        "bits_up": bits(rows, "up"),
        "channel_uses": channel_uses(rows),
        "energy_j": energy_j(rows),
        "latency_s": latency_s(rows),
        "seconds": sum(record.seconds for record in history),
        "left_out": sum(len(record.refused) for record in history),
    }


def _clients(scores: PersonalScores) -> str:
    out = io.StringIO()
    names = list(next(iter(scores.clients.values())))
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["client", *names])
    writer.writerows([client, *(f"{own[name]:.8g}" for name in names)] for client, own in scores.clients.items())
    return out.getvalue()


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

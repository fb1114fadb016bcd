"""`Tracker`: a callback that records every round once, on whatever `Sink` it is given."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol

from bayesfed.federated import Record, RoundReport, bits, energy_j
from bayesfed.running.folders import installed, spent
from bayesfed.running.settings import Setting, settings_of


class Sink(Protocol):
    """Where a tracker writes: the door to one library."""

    def open(self, report: RoundReport, settings: Mapping[str, Setting]) -> tuple[str, int]:
        """Begin a run or go on with one; return its id, and the number of rounds that it has
        already.
        """
        ...

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """Write the figures after `step` rounds."""
        ...

    def close(self, error: BaseException | None) -> None:
        """End the run: finished, or failed with an error."""
        ...


class Tracker(AbstractContextManager["Tracker"]):
    """A callback that records every round, made by `tensorboard`, `mlflow` or `wandb`.

    `run` calls it after the callbacks that enter metrics, and closes it at the end, also after an
    error. In a loop over `rounds`, use ``with``.

    Parameters
    ----------
    sink
        Where it writes.
    config
        Further settings to record.
    """

    def __init__(self, sink: Sink, config: Mapping[str, Setting] | None = None) -> None:
        self._sink, self._config = sink, dict(config or {})
        self._next: int | None = None
        self._megabytes = self._joules = 0.0
        self.run_id = ""
        """Id of the run that was last written to, with which a later run can go on."""

    def __call__(self, report: RoundReport) -> None:
        """Record a round; before the first one, the settings and the earlier rounds that are not
        there yet.
        """
        if self._next != report.round:
            self._open(report)
        self._record(report)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the run."""
        if self._next is not None:
            self._next = None
            self._sink.close(error)

    def _open(self, report: RoundReport) -> None:
        self.__exit__(None, None, None)
        own: dict[str, Setting] = {
            "seed": report.snapshot.seed,
            "bayesfed": installed("bayesfed"),
            "torch": installed("torch"),
        }
        self.run_id, self._there = self._sink.open(
            report, settings_of(report.algorithm) | own | self._config
        )
        self._megabytes = self._joules = 0.0
        for record in report.snapshot.history:
            self._record(record)

    def _record(self, record: Record) -> None:
        self._next = record.round + 1
        self._megabytes += bits(record.rows) / 8e6
        self._joules += energy_j(record.rows)
        if record.round >= self._there:
            totals = {"total/megabytes": self._megabytes} | (
                {"total/joules": self._joules} if self._joules else {}
            )
            self._sink.write(record.round + 1, figures_of(record) | totals)


def figures_of(record: Record) -> dict[str, float]:
    """Return the figures of a round by name: ``metrics/...``, ``server/...``, and what it took as
    ``round/...``.

    Channel uses, joules and seconds of devices are there only if the run has a channel or devices.
    """
    costs = spent(record.rows)
    always = ("bits_down", "bits_up")
    taken = {
        **{name: value for name, value in costs.items() if value or name in always},
        "seconds": record.seconds,
        "clients": len(record.clients),
        "left_out": len(record.refused),
    }
    groups = {"metrics": record.metrics, "server": record.server, "round": taken}
    return {
        f"{group}/{name}": float(value)
        for group, figures in groups.items()
        for name, value in figures.items()
    }

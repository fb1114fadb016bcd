"""`Tracker`: a callback that records every round once, on whatever `Sink` it is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType

from bayesfed.federated import Record, RoundReport, bits, energy_j
from bayesfed.federated.engine.reports import Watch
from bayesfed.running.folders import spent
from bayesfed.running.settings import Setting, installed, settings_of

Settings = Mapping[str, Setting]
Opened = tuple[str, int, Callable[[int, Mapping[str, float]], None]]
"""A run's id, the number of rounds that it has already, and what writes the figures after so many
rounds."""
Sink = Callable[[RoundReport, Settings], AbstractContextManager[Opened]]
"""Where a tracker writes, the door to one library: begins a run or goes on with one. The run ends
when it is left, as failed if that is with an error."""


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
        self._sink, self._config, self._entered = sink, dict(config or {}), ExitStack()
        self._watch = Watch()
        self.run_id = ""
        """Id of the run that was last written to, with which a later run can go on."""

    def __call__(self, report: RoundReport) -> None:
        """Record a round; before the first one, the settings and the earlier rounds that are not
        there yet.
        """
        if self._watch.begins(report):
            self._open(report)
        self._record(report)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the run."""
        self._watch = Watch()
        self._entered.__exit__(kind, error, traceback)

    def _open(self, report: RoundReport) -> None:
        self._entered.close()
        own: dict[str, Setting] = {
            "seed": report.snapshot.seed,
            "bayesfed": installed("bayesfed"),
            "torch": installed("torch"),
        }
        settings = settings_of(report.algorithm) | own | self._config
        self.run_id, self._there, self._write = self._entered.enter_context(
            self._sink(report, settings)
        )
        self._megabytes = self._joules = 0.0
        for record in report.snapshot.history:
            self._record(record)

    def _record(self, record: Record) -> None:
        self._megabytes += bits(record.rows) / 8e6
        self._joules += energy_j(record.rows)
        if record.round >= self._there:
            totals = {"total/megabytes": self._megabytes} | (
                {"total/joules": self._joules} if self._joules else {}
            )
            self._write(record.round + 1, figures_of(record) | totals)


def figures_of(record: Record) -> dict[str, float]:
    """Return the figures of a round by name: ``metrics/...``, ``server/...``, and what it took as
    ``round/...``.

    Channel uses, joules and seconds of devices are there only if the run has a channel or devices.
    """
    taken = {
        **spent(record.rows),
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

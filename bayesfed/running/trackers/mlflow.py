"""Figures of every round for MLflow, through its client, so that an active run of the caller is
left alone.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from bayesfed.errors import ArgumentError, needs
from bayesfed.federated import RoundReport
from bayesfed.running.settings import Setting
from bayesfed.running.trackers.tracker import Tracker

if TYPE_CHECKING:
    from mlflow import MlflowClient

# The most that MLflow takes in one call.
METRICS, PARAMETERS = 1000, 100
# A figure that every round has.
ALWAYS = "round/seconds"


def mlflow(
    experiment: str = "bayesfed",
    *,
    run_name: str | None = None,
    run_id: str | None = None,
    tracking_uri: str | None = None,
    config: Mapping[str, Setting] | None = None,
) -> Tracker:
    """Return a callback that writes the figures of every round to a run of MLflow.

    The settings are the run's parameters. A run that ends with an error is marked as failed, or as
    killed if it was interrupted. A resumed run goes on in the MLflow run that `run_id` names, in
    which no round is written twice. Without `run_id` a new one is made, and the earlier rounds are
    taken from the history.

    Parameters
    ----------
    experiment
        Name of the experiment; made if it does not exist.
    run_name
        Name of the run. Default: one that MLflow makes up.
    run_id
        Id of an MLflow run to go on with: ``Tracker.run_id`` of the earlier callback.
    tracking_uri
        Store or server, such as ``"sqlite:///mlflow.db"``. Default: what `mlflow.get_tracking_uri`
        says.
    config
        Further settings to record.

    Raises
    ------
    MissingExtraError
        If MLflow is not installed.
    ArgumentError
        At the first round, if there is no run `run_id`.
    """
    client = needs("mlflow", "mlflow").MlflowClient(tracking_uri=tracking_uri)
    return Tracker(_Run(client, experiment, run_name, run_id), config)


class _Run:
    """One run of MLflow."""

    def __init__(
        self, client: MlflowClient, experiment: str, run_name: str | None, run_id: str | None
    ) -> None:
        self._client, self._experiment, self._name, self._given = (
            client,
            experiment,
            run_name,
            run_id,
        )
        self._id = ""

    def open(self, report: RoundReport, settings: Mapping[str, Setting]) -> tuple[str, int]:
        from mlflow.entities import Param
        from mlflow.exceptions import MlflowException

        if self._given is not None:
            try:
                self._client.update_run(self._given, status="RUNNING")
            except MlflowException as problem:
                raise ArgumentError(
                    "mlflow", "an MLflow run to go on with", problem, "run_id=None"
                ) from problem
            self._id = self._given
            return self._id, max(
                (metric.step for metric in self._client.get_metric_history(self._id, ALWAYS)),
                default=0,
            )
        known = self._client.get_experiment_by_name(self._experiment)
        home = (
            self._client.create_experiment(self._experiment)
            if known is None
            else known.experiment_id
        )
        self._id = self._client.create_run(home, run_name=self._name).info.run_id
        parameters = [Param(_allowed(name), str(value)) for name, value in settings.items()]
        for start in range(0, len(parameters), PARAMETERS):
            self._client.log_batch(self._id, params=parameters[start : start + PARAMETERS])
        return self._id, 0

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(_allowed(name), value, now, step) for name, value in figures.items()]
        for start in range(0, len(metrics), METRICS):
            self._client.log_batch(self._id, metrics=metrics[start : start + METRICS])

    def close(self, error: BaseException | None) -> None:
        status = (
            "FINISHED"
            if error is None
            else "KILLED"
            if isinstance(error, KeyboardInterrupt)
            else "FAILED"
        )
        self._client.set_terminated(self._id, status)


def _allowed(name: str) -> str:
    """Return a name in the characters that MLflow allows."""
    return re.sub(r"[^\w\-./ :]", "_", name)

"""Figures of every round for MLflow (through its client, so that a run of the caller is left
alone), TensorBoard and Weights & Biases; each library is imported where it is used.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesfed.errors import ArgumentError, needs
from bayesfed.federated import RoundReport
from bayesfed.running.settings import Setting
from bayesfed.running.trackers.tracker import Tracker

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from torch.utils.tensorboard import SummaryWriter
    from wandb import Run


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
    return Tracker(_MlflowRun(client, experiment, run_name, run_id), config)


class _MlflowRun:
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


EVENTS = "events.out.tfevents.*"


def tensorboard(folder: str | Path, *, config: Mapping[str, Setting] | None = None) -> Tracker:
    """Return a callback that writes the figures of every round to a folder that
    ``tensorboard --logdir`` shows.

    The settings are a table under "Text". A resumed run goes on in the folder: what it has of later
    rounds is replaced, and what it lacks of earlier ones is added from the history.

    Parameters
    ----------
    folder
        Folder of one run; made if it does not exist. Its name is the run's in TensorBoard.
    config
        Further settings to record.

    Raises
    ------
    MissingExtraError
        If TensorBoard is not installed.
    ArgumentError
        At the first round of a run that was not resumed, if the folder has events already.
    """
    needs("tensorboard", "tensorboard")
    return Tracker(_Events(Path(folder)), config)


class _Events:
    """A folder of event files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: SummaryWriter | None = None

    def open(self, report: RoundReport, settings: Mapping[str, Setting]) -> tuple[str, int]:
        from torch.utils.tensorboard import SummaryWriter

        begun = any(self._folder.glob(EVENTS))
        if begun and report.round == 0:
            expected, hint = "a folder without events, or a run that is resumed", "another folder"
            raise ArgumentError("tensorboard", expected, f"events in {self._folder}", hint)
        there = min(_last_step(self._folder), report.round) if begun else 0
        # TensorBoard hides what an interrupted run wrote at this step and later.
        self._writer = SummaryWriter(
            str(self._folder), purge_step=report.round + 1 if begun else None
        )
        if not begun:
            self._writer.add_text("settings", _markdown(settings), 0)
        return str(self._folder), there

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        if self._writer is not None:
            for name, value in figures.items():
                self._writer.add_scalar(name, value, step)
            self._writer.flush()

    def close(self, error: BaseException | None) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _last_step(folder: Path) -> int:
    """Return the number of rounds that a folder has, 0 if none."""
    from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator

    # All of them: what an interrupted run wrote is taken away while reading, and of a sample
    # nothing might be left.
    events = EventAccumulator(str(folder), size_guidance={SCALARS: 0})
    events.Reload()
    return max(
        (event.step for tag in events.Tags()[SCALARS] for event in events.Scalars(tag)), default=0
    )


def _markdown(settings: Mapping[str, Setting]) -> str:
    rows = [
        f"| {name} | {value} |"
        for name, value in (
            (name, str(value).replace("|", "\\|")) for name, value in settings.items()
        )
    ]
    return "\n".join(["| setting | value |", "|---|---|", *rows])


def wandb(
    project: str | None = None,
    *,
    run_id: str | None = None,
    config: Mapping[str, Setting] | None = None,
    **options: Any,
) -> Tracker:
    """Return a callback that writes the figures of every round to a run of Weights & Biases.

    The settings are the run's config. A run that ends with an error is marked as failed. A resumed
    run goes on in the run that `run_id` names, which must have the rounds up to there. Without
    `run_id` a new one is made, and the earlier rounds are taken from the history.

    Parameters
    ----------
    project
        Name of the project. Default: what `wandb.init` takes.
    run_id
        Id of the run: one of your own, or ``Tracker.run_id`` of the earlier callback.
    config
        Further settings to record.
    options
        Further arguments of `wandb.init`: ``mode="offline"``, ``name``, ``group``, ``dir``.

    Raises
    ------
    MissingExtraError
        If wandb is not installed.
    """
    needs("wandb", "wandb")
    return Tracker(
        _WandbRun(
            {
                "project": project,
                "id": run_id,
                "resume": None if run_id is None else "allow",
                **options,
            }
        ),
        config,
    )


class _WandbRun:
    """One run of Weights & Biases."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options
        self._run: Run | None = None

    def open(self, report: RoundReport, settings: Mapping[str, Setting]) -> tuple[str, int]:
        import wandb

        # A run that the caller has begun goes on beside this one.
        run = self._run = wandb.init(
            **{"reinit": "create_new", **self._options}, config=dict(settings)
        )
        # `run.step` is the step after the last one that the service has; an offline run does not
        # know it.
        return run.id, max(run.step - 1, 0 if self._options["id"] is None else report.round)

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        if self._run is not None:
            self._run.log(dict(figures), step=step, commit=True)

    def close(self, error: BaseException | None) -> None:
        if self._run is not None:
            self._run.finish(exit_code=0 if error is None else 1)
            self._run = None

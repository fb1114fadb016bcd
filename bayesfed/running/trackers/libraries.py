"""Figures of every round for MLflow (through its client, so that a run of the caller is left
alone), TensorBoard and Weights & Biases; each library is imported where it is used.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesfed.errors import ArgumentError, needs
from bayesfed.errors.checks import checked
from bayesfed.federated import RoundReport
from bayesfed.running.settings import Setting
from bayesfed.running.trackers.tracker import Opened, Settings, Tracker

if TYPE_CHECKING:
    from mlflow import MlflowClient

# The most that MLflow takes in one call.
METRICS, PARAMETERS = 1000, 100
# A figure that every round has.
ALWAYS = "round/seconds"


@checked()
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

    @contextmanager
    def opened(report: RoundReport, settings: Settings) -> Iterator[Opened]:
        from mlflow.entities import Metric, Param

        if run_id is None:
            known = client.get_experiment_by_name(experiment)
            home = known.experiment_id if known else client.create_experiment(experiment)
            run = client.create_run(home, run_name=run_name).info.run_id
            there = 0
            parameters = [Param(_allowed(name), str(value)) for name, value in settings.items()]
            for start in range(0, len(parameters), PARAMETERS):
                client.log_batch(run, params=parameters[start : start + PARAMETERS])
        else:
            run, there = run_id, _gone_on_with(client, run_id)

        def write(step: int, figures: Mapping[str, float]) -> None:
            now = int(time.time() * 1000)
            metrics = [Metric(_allowed(name), value, now, step) for name, value in figures.items()]
            for start in range(0, len(metrics), METRICS):
                client.log_batch(run, metrics=metrics[start : start + METRICS])

        status = "FINISHED"
        try:
            yield run, there, write
        except BaseException as error:
            status = "KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED"
            raise
        finally:
            client.set_terminated(run, status)

    return Tracker(opened, config)


def _gone_on_with(client: MlflowClient, run_id: str) -> int:
    """Open an earlier run again, and return the number of rounds that it has."""
    from mlflow.exceptions import MlflowException

    try:
        client.update_run(run_id, status="RUNNING")
    except MlflowException as problem:
        raise ArgumentError(
            "mlflow", "an MLflow run to go on with", problem, "run_id=None"
        ) from problem
    return max((metric.step for metric in client.get_metric_history(run_id, ALWAYS)), default=0)


def _allowed(name: str) -> str:
    """Return a name in the characters that MLflow allows."""
    return re.sub(r"[^\w\-./ :]", "_", name)


@checked()
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
    folder = Path(folder)

    @contextmanager
    def opened(report: RoundReport, settings: Settings) -> Iterator[Opened]:
        from torch.utils.tensorboard import SummaryWriter

        begun = any(folder.glob("events.out.tfevents.*"))
        if begun and report.round == 0:
            raise ArgumentError(
                "tensorboard",
                "a folder without events, or a run that is resumed",
                f"events in {folder}",
                "another folder",
            )
        there = min(_last_step(folder), report.round) if begun else 0
        # TensorBoard hides what an interrupted run wrote at this step and later.
        purged = report.round + 1 if begun else None
        with SummaryWriter(str(folder), purge_step=purged) as writer:
            if not begun:
                writer.add_text("settings", _markdown(settings), 0)

            def write(step: int, figures: Mapping[str, float]) -> None:
                for name, value in figures.items():
                    writer.add_scalar(name, value, step)
                writer.flush()

            yield str(folder), there, write

    return Tracker(opened, config)


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


def _markdown(settings: Settings) -> str:
    bare = {name: str(value).replace("|", "\\|") for name, value in settings.items()}
    rows = [f"| {name} | {value} |" for name, value in bare.items()]
    return "\n".join(["| setting | value |", "|---|---|", *rows])


@checked()
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
    init = needs("wandb", "wandb").init
    go_on = None if run_id is None else "allow"
    # A run that the caller has begun goes on beside this one.
    options = {"reinit": "create_new", "project": project, "id": run_id, "resume": go_on} | options

    @contextmanager
    def opened(report: RoundReport, settings: Settings) -> Iterator[Opened]:
        run = init(**options, config=dict(settings))
        # `run.step` is the step after the last one that the service has; an offline run does not
        # know it.
        there = max(run.step - 1, 0 if options["id"] is None else report.round)

        def write(step: int, figures: Mapping[str, float]) -> None:
            run.log(dict(figures), step=step, commit=True)

        failed = 1
        try:
            yield run.id, there, write
            failed = 0
        finally:
            run.finish(exit_code=failed)

    return Tracker(opened, config)

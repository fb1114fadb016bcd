"""Figures of every round for Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bayesfed.errors import needs
from bayesfed.federated import RoundReport
from bayesfed.running.settings import Setting
from bayesfed.running.trackers.tracker import Tracker

if TYPE_CHECKING:
    from wandb import Run


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
        _Run(
            {
                "project": project,
                "id": run_id,
                "resume": None if run_id is None else "allow",
                **options,
            }
        ),
        config,
    )


class _Run:
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

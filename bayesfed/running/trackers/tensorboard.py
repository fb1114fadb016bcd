"""Figures of every round for TensorBoard, written by ``torch.utils.tensorboard``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from bayesfed.errors import ArgumentError, needs
from bayesfed.federated import RoundReport
from bayesfed.running.settings import Setting
from bayesfed.running.trackers.tracker import Tracker

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

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

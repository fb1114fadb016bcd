"""One scale of the experiments on text: settings, data, and runs by case."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parts.fslora.runs import Finished, Settings, finished
from parts.fslora.sentiment_task import Task, task
from parts.shared.settings import resolved


@dataclass(frozen=True)
class Bench:
    """The settings, the scale, and where data and results are."""

    document: Settings
    scale: str
    data: Path
    out: Path
    seeds: Sequence[int]
    workers: int
    held_out: bool = False
    tasks: dict[str, Task] = field(default_factory=dict)
    make: Callable[..., Task] = task

    def settings(self, case: str, own: Settings) -> dict[str, Any]:
        """Return all settings of a case."""
        found = resolved(self.document["cases"], case, self.base)
        # One alpha / r for all ranks: a learning rate belongs to it.
        if "rank" in own:
            own = {**own, "alpha": found["alpha"] * own["rank"] / found["rank"]}
        return {
            name: value
            for name, value in {**found, **own}.items()
            if name not in ("seeds", "alike")
        }

    @property
    def base(self) -> dict[str, Any]:
        """Return what all cases share."""
        return {**self.document["task"], **self.document["scales"][self.scale]}

    @property
    def task(self) -> Task:
        """Texts and network, made when first asked for."""
        if not self.tasks:
            self.tasks["only"] = self.make(
                self.base, self.data, self.out / "cache", held_out=self.held_out
            )
        return self.tasks["only"]

    def runs(self, case: str, **own: Any) -> list[Finished]:
        """Return a case's runs, one a seed."""
        return [self.run(case, seed, **own) for seed in self.seeds]

    def run(self, case: str, seed: int, **own: Any) -> Finished:
        """Return a case's run of a seed."""
        settings = self.settings(case, own)
        return finished(case, settings, seed, self.task, self.out / self.scale, self.workers)

    def mean(self, case: str, **own: Any) -> float:
        """Return accuracy in per cent, over domains, last scores and seeds."""
        return 100 * statistics.mean(run.last() for run in self.runs(case, **own))

    def sent(self, k: int) -> float:
        """Return the megabytes that a client of k slices sends in a round."""
        return self.runs("FSLoRA", ratios=[k / self.base["rank"]], rounds=1, every=1)[0].rows[-1][1]

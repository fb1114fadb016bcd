"""`Promise`: the check, before every round of a `private` method that reports epsilon, that this
epsilon holds for the run.

Most of what would break it is refused earlier: `private` takes one phase whose server sums, and
`BoundedSum` takes nothing but one clipped update of each client. What remains is known only when
rounds start: who samples from which pool, what clients remember, and what the run continues from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from bayesfed.algorithms.wrappers.noising import Private
from bayesfed.errors import ArgumentError
from bayesfed.federated import Layer, everyone
from bayesfed.federated.core import Conditions
from bayesfed.federated.engine.samplers import Uniform


@dataclass(frozen=True)
class Promise:
    """A check of `Algorithm.checks`.

    Parameters
    ----------
    layer
        The layer that `private` made.
    """

    layer: Private

    def __call__(self, run: Conditions) -> None:
        """Check one round.

        Raises
        ------
        ArgumentError
            If the reported epsilon would not hold.
        """
        phases = run.algorithm.phases
        if len(phases) != 1 or not self._counts(phases[0].layers):
            around = [layer.owner for phase in phases for layer in phase.layers]
            actual = f"phases {[phase.name for phase in phases]} with the layers {around}"
            expected = (
                "one phase with the layer that `private` made, and none around it that changes "
                "updates or takes steps"
            )
            raise _broken(run, expected, actual, "`private` as the last step")
        if run.changed:
            expected = (
                "a snapshot of a run with the same settings: epsilon counts its rounds as if "
                "they had these"
            )
            raise _broken(run, expected, f"other {', '.join(run.changed)}", "a new run")
        if self.layer.population is not None:
            self._check_sampling(run, self.layer.participants, self.layer.population)

    def _counts(self, layers: Sequence[Layer]) -> bool:
        """Return whether the layer is among a phase's, and no layer around it changes what it is
        given.
        """
        outer = list(takewhile(lambda layer: layer is not self.layer, layers))
        hooks = ("admit", "combine", "step")
        return len(outer) < len(layers) and not any(
            getattr(type(layer), hook) is not getattr(Layer, hook)
            for layer in outer
            for hook in hooks
        )

    def _check_sampling(self, run: Conditions, participants: int, population: int) -> None:
        if len(run.profiles) != population:
            raise _broken(
                run,
                f"a pool of {population} clients, the population",
                len(run.profiles),
                f"population={len(run.profiles)}",
            )
        drawn = (
            run.sampler.count(population)
            if isinstance(run.sampler, Uniform)
            else population
            if run.sampler is everyone
            else None
        )
        if drawn != participants:
            actual = (
                f"{drawn} a round"
                if drawn
                else (
                    f"{getattr(run.sampler, '__name__', type(run.sampler).__name__)}, of which "
                    "that is not known"
                )
            )
            hint = f"sampler=fraction({participants} / {population})"
            raise _broken(
                run,
                f"a uniform sample of {participants} of {population} clients",
                actual,
                hint,
            )
        if run.remembering:
            some = f"{len(run.remembering)} with a memory, {run.remembering[0]!r} among them"
            hint = "private(...) without population, or a method and codec without memory"
            raise _broken(
                run, "clients without memory, since it tells who took part before", some, hint
            )


def _broken(run: Conditions, expected: str, actual: object, hint: str) -> ArgumentError:
    return ArgumentError(
        f"private, {run.algorithm.name!r}: epsilon would not hold", expected, actual, hint
    )

"""Likelihoods of times to an event, of which some are censored: known to be later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from bayesfed.errors.checks import SCALE, checked_class
from bayesfed.errors.roles import Role
from bayesfed.models.likelihoods.rows import RowLikelihood

SEEN = "time, then 1 where the event was seen and 0 where it was not yet"


class _Pairs(constraints.Constraint):
    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        time, seen = value.unbind(-1)
        return (time > 0) & time.isfinite() & ((seen == 0) | (seen == 1))


class WeibullTimes(dist.Weibull):  # type: ignore[misc]
    """Times with Weibull's distribution."""

    def log_survival(self, value: Tensor) -> Tensor:
        """Return the logarithm of the probability that the event is later."""
        later: Tensor = -((value / self.scale) ** self.concentration)
        return later

    def log_hazard(self, value: Tensor) -> Tensor:
        """Return the logarithm of the rate of events."""
        powers = (self.concentration - 1) * (value / self.scale).log()
        rate: Tensor = (self.concentration / self.scale).log() + powers
        return rate


class Hazards(dist.TorchDistribution):
    """Times of events whose rate is constant between breaks.

    Parameters
    ----------
    logs
        Logarithms of the rates in each interval, ``(..., J)``.
    starts
        Where intervals start, ``(J,)``: 0, and the breaks.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}
    support = constraints.positive

    def __init__(self, logs: Tensor, starts: Tensor) -> None:
        self.logs, self.starts = logs, starts
        self.widths = torch.cat([starts.diff(), starts.new_full((1,), torch.inf)])
        super().__init__(logs.shape[:-1], validate_args=False)

    def log_survival(self, value: Tensor) -> Tensor:
        """Return the logarithm of the probability that the event is later."""
        spent = (value[..., None] - self.starts).clamp_min(0.0).minimum(self.widths)
        return -(self.logs.exp() * spent).sum(-1)

    def log_hazard(self, value: Tensor) -> Tensor:
        """Return the logarithm of the rate of events."""
        return _taken(self.logs, self._place(value, self.starts))

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density of times."""
        return self.log_hazard(value) + self.log_survival(value)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draw times, where the sum of rates reaches a standard exponential."""
        shape = torch.Size(sample_shape) + self.batch_shape
        reached = torch.empty(shape, dtype=self.logs.dtype, device=self.logs.device).exponential_()
        before = -self.log_survival_at_starts
        place = self._place(reached, before)
        return self.starts[place] + (reached - _taken(before, place)) / _taken(
            self.logs.exp(), place
        )

    @property
    def mean(self) -> Tensor:
        """Means of the times."""
        rates = self.logs.exp()
        left = self.log_survival_at_starts.exp()
        return (left * -torch.expm1(-rates * self.widths) / rates).sum(-1)

    @property
    def log_survival_at_starts(self) -> Tensor:
        """What `log_survival` is where intervals start, ``(..., J)``."""
        spent = self.logs[..., :-1].exp() * self.widths[:-1]
        return -torch.nn.functional.pad(spent.cumsum(-1), (1, 0))

    @staticmethod
    def _place(value: Tensor, starts: Tensor) -> Tensor:
        return (value[..., None] >= starts).sum(-1).sub(1).clamp_min(0)


def _taken(values: Tensor, place: Tensor) -> Tensor:
    values = values.expand(*place.shape, values.shape[-1])
    return values.gather(-1, place[..., None])[..., 0]


class Censored(dist.TorchDistribution):
    """Times of which some are censored: targets are ``(time, 1)`` where the event was seen, and
    ``(time, 0)`` where it is later. Draws are seen.

    Parameters
    ----------
    times
        The distribution of times, of batch shape ``(..., 1)``: `WeibullTimes` or `Hazards`.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}
    support = _Pairs()

    def __init__(self, times: Any) -> None:
        self.times = times
        super().__init__(times.batch_shape[:-1], torch.Size([2]), validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density of times that were seen, the log probability of later ones."""
        time, seen = value[..., :1], value[..., 1:]
        density: Tensor = seen * self.times.log_hazard(time) + self.times.log_survival(time)
        return density[..., 0]

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draw times, all seen."""
        return _seen(self.times.sample(torch.Size(sample_shape)))

    @property
    def mean(self) -> Tensor:
        """Mean of the time, and 1."""
        return _seen(self.times.mean)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Censored:
        """Return itself: a row has one distribution."""
        return self


def _seen(time: Tensor) -> Tensor:
    return torch.cat([time, torch.ones_like(time)], -1)


@checked_class({}, shape=SCALE, temperature=SCALE)
@dataclass(frozen=True)
class Weibull(RowLikelihood):
    """Times and their events, ``(B, 2)``, from logarithms of Weibull's scale, ``(B, 1)``.

    Parameters
    ----------
    shape
        1 is a constant rate of events; a larger shape has rates that rise. None: outputs ``(B, 2)``
        are the logarithms of scale and shape.
    temperature
        As in `Categorical`.

    Raises
    ------
    ArgumentError
        If the shape or the temperature is not positive.
    DataError
        From `check`, if targets are not positive times with events of 0 and 1.
    """

    shape: float | None = None
    temperature: float | None = None
    words: ClassVar[str] = SEEN

    @property
    def further(self) -> Mapping[str, float | None]:
        """The shape."""
        return {"shape": self.shape}

    @property
    def width(self) -> int | None:
        """One time a row."""
        return 1

    @staticmethod
    def made(eta: Tensor, more: Mapping[str, Any], known: Any) -> Any:
        """Return the distribution of times."""
        return WeibullTimes(eta.exp(), more["shape"])

    def given(self, output: Tensor, known: Tensor | float = 1.0) -> Any:
        """Return the distribution of each row's time and event."""
        return Censored(super().given(output).base_dist)


def _rising(breaks: Any) -> bool:
    ends = [0.0, *breaks]
    return len(ends) > 1 and all(one < two for one, two in pairwise(ends))


BREAKS = Role(_rising, "positive times that rise", "(1.0, 2.0)")


@checked_class({}, breaks=BREAKS, temperature=SCALE)
@dataclass(frozen=True)
class PiecewiseExponential(RowLikelihood):
    """Times and their events, ``(B, 2)``, from logarithms of rates in J intervals, ``(B, J)``.

    Parameters
    ----------
    breaks
        The J - 1 times at which the next interval starts, in units of the targets.
    temperature
        As in `Categorical`.

    Raises
    ------
    ArgumentError
        If breaks do not rise from above 0, or the temperature is not positive.
    DataError
        From `check`, if targets are not positive times with events of 0 and 1, or outputs are not
        one for each interval.
    """

    breaks: tuple[float, ...]
    temperature: float | None = None
    words: ClassVar[str] = SEEN

    @property
    def width(self) -> int | None:
        """The number of intervals."""
        return len(self.breaks) + 1

    def given(self, output: Tensor, known: Tensor | float = 1.0) -> Any:
        """Return the distribution of each row's time and event."""
        return Censored(Hazards(output[:, None], output.new_tensor([0.0, *self.breaks])))

"""Likelihoods p(y | network output), with their temperature stated."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from torch import Tensor
from torch.nn import functional

from bayesfed.errors import ArgumentError, DataError, complain


class Likelihood(Protocol):
    """The seam: score targets under outputs, and say the same to Pyro."""

    @property
    def temperature(self) -> float:
        """Power 1/T on the likelihood: below 1 trusts the data more than the model does."""
        ...

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        """Return the mean negative log likelihood over the batch, at temperature 1."""
        ...

    def pointwise(self, output: Tensor, targets: Tensor) -> Tensor:
        """Return the log likelihood of each row, ``(B,)``, at temperature 1."""
        ...

    def distribution(self, output: Tensor) -> dist.TorchDistribution:
        """Return the distribution of each row's target, batch ``(B,)``, at temperature 1."""
        ...

    def observe(self, output: Tensor, targets: Tensor | None, scale: float) -> Tensor:
        """Sample or observe the Pyro site ``y``, its log density times ``scale / temperature``."""
        ...

    def check(self, output: Tensor, targets: Tensor) -> None:
        """Raise `DataError` if these targets cannot come from such outputs."""
        ...


def _positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ArgumentError(complain(name, expected="a positive number", actual=value, hint="1.0"))


@dataclass(frozen=True)
class Categorical:
    """Classes ``0 .. C-1`` from logits ``(B, C)``.

    Parameters
    ----------
    temperature
        What the log likelihood is divided by: 1 is Bayes' rule, less trusts the data more than it does (a cold posterior; Wenzel et al., 2020).

    Raises
    ------
    ArgumentError
        If the temperature is not positive.
    DataError
        From `check`, if targets are not integers ``(B,)`` below C.
    """

    temperature: float = 1.0

    def __post_init__(self) -> None:
        _positive("Categorical.temperature", self.temperature)

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy."""
        return functional.cross_entropy(output, targets)

    def pointwise(self, output: Tensor, targets: Tensor) -> Tensor:
        """Return the log probability of each row's class."""
        return -functional.cross_entropy(output, targets, reduction="none")

    def distribution(self, output: Tensor) -> dist.TorchDistribution:
        """Return the categorical distribution of each row's class."""
        return dist.Categorical(logits=output)

    def observe(self, output: Tensor, targets: Tensor | None, scale: float) -> Tensor:
        """Sample or observe the site ``y``."""
        with pyro.plate("data", len(output)), poutine.scale(scale=scale / self.temperature):
            value: Tensor = pyro.sample("y", self.distribution(output), obs=targets)
        return value

    def check(self, output: Tensor, targets: Tensor) -> None:
        """Raise `DataError` unless outputs are ``(B, C)`` and labels integers below C."""
        if output.ndim != 2 or targets.shape != output.shape[:1] or targets.is_floating_point():
            raise DataError(
                complain(
                    "Categorical",
                    expected="logits (B, C) and integer labels (B,)",
                    actual=f"{tuple(output.shape)} and {tuple(targets.shape)} of {targets.dtype}",
                    hint="targets.long()",
                )
            )
        if targets.numel() and not 0 <= int(targets.min()) <= int(targets.max()) < output.shape[1]:
            raise DataError(
                complain(
                    "Categorical labels",
                    expected=f"0 to {output.shape[1] - 1}, the network's outputs",
                    actual=f"{int(targets.min())} to {int(targets.max())}",
                    hint=f"a last layer with {int(targets.max()) + 1} outputs",
                )
            )


@dataclass(frozen=True)
class Normal:
    """Real targets of the output's shape with independent noise of standard deviation `sd`.

    Parameters
    ----------
    sd
        In units of the targets.
    temperature
        As of `Categorical`.

    Raises
    ------
    ArgumentError
        If the sd or the temperature is not positive.
    DataError
        From `check`, if targets are not real numbers in the shape of the outputs.
    """

    sd: float = 1.0
    temperature: float = 1.0

    def __post_init__(self) -> None:
        _positive("Normal.sd", self.sd)
        _positive("Normal.temperature", self.temperature)

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        """Return the mean over rows of the negative log density."""
        return -self.pointwise(output, targets).mean()

    def pointwise(self, output: Tensor, targets: Tensor) -> Tensor:
        """Return the log density of each row."""
        density: Tensor = torch.distributions.Normal(output, self.sd).log_prob(targets)
        return density.reshape(len(output), -1).sum(dim=1)

    def distribution(self, output: Tensor) -> dist.TorchDistribution:
        """Return the Gaussian of each row's target."""
        found: dist.TorchDistribution = dist.Normal(output, self.sd).to_event(output.ndim - 1)
        return found

    def observe(self, output: Tensor, targets: Tensor | None, scale: float) -> Tensor:
        """Sample or observe the site ``y``."""
        with pyro.plate("data", len(output)), poutine.scale(scale=scale / self.temperature):
            value: Tensor = pyro.sample("y", self.distribution(output), obs=targets)
        return value

    def check(self, output: Tensor, targets: Tensor) -> None:
        """Raise `DataError` unless targets have the output's shape and are floating point."""
        if output.shape != targets.shape or not targets.is_floating_point():
            raise DataError(
                complain(
                    "Normal",
                    expected=f"float targets of shape {tuple(output.shape)}",
                    actual=f"{tuple(targets.shape)} of {targets.dtype}",
                    hint="reshaping the targets",
                )
            )


@dataclass(frozen=True)
class PresentClasses:
    """A classes' likelihood of which a client knows some alone: the logits of the others are zero in its loss (HeteroFL, 3.3)."""

    whole: Likelihood
    classes: tuple[int, ...]

    @property
    def temperature(self) -> float:
        """That of the whole."""
        return self.whole.temperature

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of masked logits."""
        return self.whole.loss(self._masked(output), targets)

    def pointwise(self, output: Tensor, targets: Tensor) -> Tensor:
        """Return each row's log likelihood at masked logits."""
        return self.whole.pointwise(self._masked(output), targets)

    def distribution(self, output: Tensor) -> dist.TorchDistribution:
        """Return the whole's distribution: the mask is for training."""
        return self.whole.distribution(output)

    def observe(self, output: Tensor, targets: Tensor | None, scale: float) -> Tensor:
        """Sample or observe at masked logits."""
        return self.whole.observe(self._masked(output), targets, scale)

    def check(self, output: Tensor, targets: Tensor) -> None:
        """Check as the whole does."""
        self.whole.check(output, targets)

    def _masked(self, output: Tensor) -> Tensor:
        present = torch.zeros(output.shape[1], dtype=torch.bool, device=output.device)
        present[list(self.classes)] = True
        return output.masked_fill(~present, 0.0)

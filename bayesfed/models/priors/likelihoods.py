"""Likelihoods p(y | network output), each with its temperature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from torch import Tensor
from torch.nn import functional

from bayesfed.errors import DataError
from bayesfed.errors.checks import checked_class
from bayesfed.models.priors.precisions import SCALE


@runtime_checkable
class Likelihood(Protocol):
    """The interface of a likelihood: it scores targets given outputs, in torch and as a
    Pyro site.
    """

    @property
    def temperature(self) -> float | None:
        """T: the likelihood is raised to the power 1/T. Below 1 the data count more than in Bayes'
        rule. None leaves T to the method, or is 1.
        """

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        """Return the mean negative log likelihood over the batch, at temperature 1."""

    def pointwise(self, output: Tensor, targets: Tensor) -> Tensor:
        """Return the log likelihood of each row, ``(B,)``, at temperature 1."""

    def distribution(self, output: Tensor) -> dist.TorchDistribution:
        """Return the distribution of each row's target, of batch shape ``(B,)``, at
        temperature 1.
        """

    def observe(self, output: Tensor, targets: Tensor | None, scale: float) -> Tensor:
        """Sample or observe the Pyro site ``y``, whose log density is multiplied by
        ``scale / temperature``.
        """

    def check(self, output: Tensor, targets: Tensor) -> None:
        """Raise `DataError` if the targets do not fit the outputs."""


def temperature_of(likelihood: Likelihood) -> float:
    """Return the temperature of a likelihood, 1 where it is left open."""
    return 1.0 if likelihood.temperature is None else likelihood.temperature


def _observed(
    likelihood: Likelihood, output: Tensor, targets: Tensor | None, scale: float
) -> Tensor:
    scale = scale / temperature_of(likelihood)
    with pyro.plate("data", len(output)), poutine.scale(scale=scale):
        value: Tensor = pyro.sample("y", likelihood.distribution(output), obs=targets)
    return value


@checked_class({}, temperature=SCALE)
@dataclass(frozen=True)
class Categorical:
    """Classes ``0 .. C-1`` from logits ``(B, C)``.

    Parameters
    ----------
    temperature
        Divisor of the log likelihood. 1 is Bayes' rule; below 1 the data count more (a cold
        posterior; Wenzel et al., 2020). Default None: 1, unless the method chooses one, as
        `d_turbo_vbi` does.

    Raises
    ------
    ArgumentError
        If the temperature is not positive.
    DataError
        From `check`, if targets are not integers ``(B,)`` below C.
    """

    temperature: float | None = None

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
        return _observed(self, output, targets, scale)

    def check(self, output: Tensor, targets: Tensor) -> None:
        """Raise `DataError` unless outputs are ``(B, C)`` and labels integers below C."""
        if are_probabilities(output[:2]):
            actual = "probabilities: rows without negatives, each with a sum of 1"
            hint = "the network without its last softmax"
            raise DataError("Categorical", "logits (B, C)", actual, hint)
        if output.ndim != 2 or targets.shape != output.shape[:1] or targets.is_floating_point():
            raise DataError(
                "Categorical",
                "logits (B, C) and integer labels (B,)",
                f"{tuple(output.shape)} and {tuple(targets.shape)} of {targets.dtype}",
                _labels_instead(output, targets),
            )
        least, most = map(int, targets.aminmax()) if targets.numel() else (0, 0)
        if not 0 <= least <= most < output.shape[1]:
            outputs = f"a last layer with {most + 1} outputs"
            raise DataError(
                "Categorical labels",
                f"0 to {output.shape[1] - 1}, the network's outputs",
                f"{least} to {most}",
                "labels.unique(return_inverse=True)[1]" if least < 0 else outputs,
            )


@checked_class({}, sd=SCALE, temperature=SCALE)
@dataclass(frozen=True)
class Normal:
    """Real targets of the output's shape with independent noise of standard deviation `sd`.

    Parameters
    ----------
    sd
        Standard deviation of the noise, in units of the targets.
    temperature
        As in `Categorical`.

    Raises
    ------
    ArgumentError
        If the sd or the temperature is not positive.
    DataError
        From `check`, if targets are not real numbers in the shape of the outputs.
    """

    sd: float = 1.0
    temperature: float | None = None

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        """Return the mean negative log density of the rows."""
        return -self.pointwise(output, targets).mean()

    def pointwise(self, output: Tensor, targets: Tensor) -> Tensor:
        """Return the log density of each row."""
        # Unchecked: outputs that are not finite end a training in words.
        density: Tensor = torch.distributions.Normal(output, self.sd, validate_args=False).log_prob(
            targets
        )
        return density.reshape(len(output), -1).sum(dim=1)

    def distribution(self, output: Tensor) -> dist.TorchDistribution:
        """Return the Gaussian of each row's target."""
        gaussian: dist.TorchDistribution = dist.Normal(output, self.sd).to_event(output.ndim - 1)
        return gaussian

    def observe(self, output: Tensor, targets: Tensor | None, scale: float) -> Tensor:
        """Sample or observe the site ``y``."""
        return _observed(self, output, targets, scale)

    def check(self, output: Tensor, targets: Tensor) -> None:
        """Raise `DataError` unless targets have the output's shape and are floating point."""
        if output.shape != targets.shape or not targets.is_floating_point():
            raise DataError(
                "Normal",
                f"float targets of shape {tuple(output.shape)}",
                f"{tuple(targets.shape)} of {targets.dtype}",
                _numbers_instead(output, targets),
            )


def are_probabilities(output: Tensor) -> bool:
    """Return whether outputs ``(B, C)`` are the probabilities of several classes."""
    if output.ndim != 2 or not len(output) or output.shape[1] < 2:
        return False
    off = (output.double().sum(1) - 1).abs().max() + output.clamp(max=0).abs().max()
    # Rounding of a softmax in half precision, too.
    return float(off) < (1e-2 if output.element_size() < 4 else 1e-5)


def _labels_instead(output: Tensor, targets: Tensor) -> str:
    """Return what to make of targets that are no labels ``(B,)``."""
    if output.ndim != 2:
        return "a network with one row of outputs for each row of inputs"
    if targets.ndim == 2 and targets.shape[1] == 1:
        return "targets[:, 0]" if not targets.is_floating_point() else "targets[:, 0].long()"
    if (
        targets.ndim == 2
        and targets.shape[1] > 1
        and (((targets == 0) | (targets == 1)).all() and (targets.sum(1) == 1).all())
    ):
        return "targets.argmax(1), since they are one-hot"
    if targets.is_floating_point() and not (targets == targets.round()).all():
        return "likelihood=Normal() for numbers"
    return "targets.long()" if targets.shape == output.shape[:1] else "one label a row, (B,)"


def _numbers_instead(output: Tensor, targets: Tensor) -> str:
    """Return what to make of targets that are no numbers in the shape of the outputs."""
    if output.shape == targets.shape:
        return "targets.float(), or Categorical() for labels"
    if output.numel() == targets.numel() and targets.is_floating_point():
        return f"targets.reshape(-1, {', '.join(map(str, output.shape[1:]))})"
    if not targets.is_floating_point():
        return "Categorical() for labels"
    return "a network with as many outputs as there are targets"

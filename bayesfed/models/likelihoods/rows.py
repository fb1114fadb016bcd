"""Likelihoods p(y | network output), each with its temperature; and what those of numbers share:
columns of outputs and targets, of which the last may be known beside the outcome.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, runtime_checkable

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from torch import Tensor
from torch.distributions import constraints

from bayesfed.errors import ArgumentError, DataError
from bayesfed.errors.plurals import plural


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


class RowLikelihood:
    """What a likelihood needs beside its distribution: a dataclass with a field `temperature` and
    `given`, or `made`, is a likelihood.

    Outputs are ``(B, K)`` predictors, then ``(B, K)`` logarithms of each further unknown that is
    None. Targets are ``(B, K)``; in a last column is what is known of the row beside the outcomes.
    """

    temperature: float | None
    # What targets are, in words, and what the known column can be.
    words: ClassVar[str] = ""
    knowable: ClassVar[constraints.Constraint] = constraints.positive

    @property
    def further(self) -> Mapping[str, float | None]:
        """Unknowns beside the predictor, by name: a number, or None if the network gives it."""
        return {}

    @property
    def known(self) -> bool:
        """Whether the last column of the targets is known beside the outcomes."""
        return False

    @property
    def width(self) -> int | None:
        """K, where only one number of predictors is right."""
        return None

    @staticmethod
    def made(eta: Tensor, more: Mapping[str, Any], known: Any) -> Any:
        """Return the distribution of outcomes, of the shape of their predictors.

        Parameters
        ----------
        eta
            Predictors, of any shape.
        more
            The further unknowns.
        known
            What is known beside the outcomes, or 1.

        Raises
        ------
        ArgumentError
            If a likelihood has neither this nor `given` of its own.
        """
        hint = "made = staticmethod(lambda eta, more, known: dist.Normal(eta, 1.0))"
        raise ArgumentError("likelihood", "a method `made`, or `given`", "neither", hint)

    def given(self, output: Tensor, known: Tensor | float = 1.0) -> Any:
        """Return the distribution of each row's outcomes, of batch shape ``(B,)``.

        Parameters
        ----------
        output
            ``(B, ...)``.
        known
            The known column of the targets, ``(B, 1)``.
        """
        free = [name for name, value in self.further.items() if value is None]
        eta, *logs = output.chunk(1 + len(free), -1)
        of_network = {name: log.exp() for name, log in zip(free, logs, strict=True)}
        return self.made(eta, {**self.further, **of_network}, known).to_event(output.ndim - 1)

    def at(self, output: Tensor, targets: Tensor) -> tuple[Any, Tensor]:
        """Return the distribution of the outcomes at what is known beside them, and the
        outcomes.
        """
        targets = targets.to(output.dtype)
        if not self.known:
            return self.given(output), targets
        return self.given(output, targets[:, -1:]), targets[:, :-1]

    def information(self, output: Tensor) -> Tensor | None:
        """Return Fisher's information of each output, ``(B, C)``, where it is diagonal and without
        targets; None where it is not.
        """
        return None

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        """Return the mean negative log density of the rows."""
        return -self.pointwise(output, targets).mean()

    def pointwise(self, output: Tensor, targets: Tensor) -> Tensor:
        """Return the log density of each row."""
        # Unchecked: outputs that are not finite end a training in words.
        with dist.validation_enabled(False):
            made, outcome = self.at(output, targets)
            density: Tensor = made.log_prob(outcome)
        return density

    def distribution(self, output: Tensor) -> dist.TorchDistribution:
        """Return the distribution of each row's targets."""
        given: dist.TorchDistribution = self.given(output)
        return Scored(self, output, given) if self.known else given

    def observe(self, output: Tensor, targets: Tensor | None, scale: float) -> Tensor:
        """Sample or observe the site ``y``."""
        return observed(self, self.distribution(output), targets, scale)

    def check(self, output: Tensor, targets: Tensor) -> None:
        """Raise `DataError` unless outputs have a block for each unknown, and targets the shape and
        range of the likelihood.
        """
        where, width = type(self).__name__, self.width
        free = [name for name, value in self.further.items() if value is None]
        size, most = output.shape[-1], 1 + len(free)
        if output.ndim < 2 or size % most or width not in (None, size // most):
            expected = f"outputs (B, {f'{most} K' if width is None else most * width})"
            expected += f": predictors, and logarithms of {', '.join(free)}" if free else ""
            hint = f"a last layer with {plural(most * (width or 1), 'output')}"
            raise DataError(where, expected, tuple(output.shape), hint)
        with dist.validation_enabled(False):
            first = self.given(output[:1])
            event, real = tuple(first.event_shape), first.support
            shape = (len(output), *event[:-1], *(size + self.known for size in event[-1:]))
            real = getattr(real, "base_constraint", real) is constraints.real
        words = f": {self.words}" if self.words else ""
        if targets.shape != shape or (real and not targets.is_floating_point()):
            expected = f"{'float ' * real}targets of shape {shape}{words}"
            actual = f"{tuple(targets.shape)} of {targets.dtype}"
            raise DataError(where, expected, actual, _instead(shape, targets, real, self.known))
        with dist.validation_enabled(False):
            made, outcome = self.at(output, targets)
            fits = made.support.check(outcome)
        if self.known:
            fits &= self.knowable.check(targets[:, -1])
        if not fits.all():
            others = plural(int((~fits).sum()), "row")
            actual = f"{others} of others, such as {targets[~fits][0].tolist()}"
            hint = "rows[rows that fit], or another likelihood"
            raise DataError(where, f"targets in the range of the likelihood{words}", actual, hint)


def expected(distribution: Any) -> Tensor:
    """Return the probabilities ``(B, C)`` of a categorical or Bernoulli distribution, the mean of
    any other.
    """
    base = distribution.base_dist if isinstance(distribution, dist.Independent) else distribution
    if isinstance(base, dist.Bernoulli):
        return torch.stack([1 - base.probs, base.probs], -1)
    found: Tensor = base.probs if isinstance(base, dist.Categorical) else distribution.mean
    return found


class Scored(dist.TorchDistribution):
    """The distribution of targets that are scored by a likelihood's `pointwise`: with what is known
    beside outcomes in a last column, which is 1 in draws, or with weights.

    Parameters
    ----------
    likelihood, output
        What scores, and the outputs ``(B, ...)``.
    plain
        The distribution of the outcomes, where all that is known is 1.
    known
        Whether there is a last column.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}
    has_rsample = False

    def __init__(self, likelihood: Any, output: Tensor, plain: Any, *, known: bool = True) -> None:
        self.likelihood, self.output, self.plain, self.known = likelihood, output, plain, known
        event = tuple(plain.event_shape)
        if known:
            event = ((event or (1,))[0] + 1,)
        super().__init__(plain.batch_shape, torch.Size(event), validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        """That of the outcomes."""
        return constraints.independent(constraints.real, 1) if self.known else self.plain.support

    @property
    def mean(self) -> Tensor:
        """The mean of outcomes, of classes their probabilities; with ones where more is known."""
        if self.known:
            found = expected(self.plain)
            return _known(found if found.ndim > 1 else found[:, None])
        shares: Tensor = self.output.softmax(self.likelihood.axis)
        return shares

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the likelihood's score of each row."""
        if dist.is_validation_enabled():
            self.likelihood.check(self.output.detach(), value)
        scored: Tensor = self.likelihood.pointwise(self.output, value)
        return scored

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draw outcomes."""
        drawn: Tensor = self.plain.sample(torch.Size(sample_shape))
        found = drawn if self.plain.event_shape else drawn[..., None]
        return _known(found) if self.known else drawn

    def expand(self, batch_shape: Any, _instance: Any = None) -> Scored:
        """Return itself: a row has one distribution."""
        return self


def _known(outcomes: Tensor) -> Tensor:
    """Return outcomes with a column of ones: what is known in draws."""
    return torch.cat([outcomes, torch.ones_like(outcomes[..., :1])], -1)


def outcomes(made: Any, targets: Tensor) -> tuple[Any, Tensor]:
    """Return the distribution of outcomes at what targets say beside them, and the outcomes."""
    if not isinstance(made, Scored):
        return made, targets
    found: tuple[Any, Tensor] = made.likelihood.at(made.output, targets)
    return found


def redrawn(given: Any, targets: Tensor) -> Tensor:
    """Return draws of targets; labels that do not count stay as they are."""
    drawn: Tensor = given.sample()
    ignored = isinstance(given, Scored) and not given.known
    return drawn.where(given.likelihood.counts(targets), targets) if ignored else drawn


def observed(likelihood: Likelihood, given: Any, targets: Tensor | None, scale: float) -> Tensor:
    """Sample or observe the site ``y`` of such a distribution."""
    if len(given.batch_shape) != 1:
        actual, hint = f"a batch {tuple(given.batch_shape)}", "likelihood=bayesfed.models.Labels()"
        raise DataError(type(likelihood).__name__, "one distribution a row (B,)", actual, hint)
    scale = scale / temperature_of(likelihood)
    with pyro.plate("data", *given.batch_shape), poutine.scale(scale=scale):
        value: Tensor = pyro.sample("y", given, obs=targets)
    return value


def _instead(shape: tuple[int, ...], targets: Tensor, real: bool, known: bool) -> str:
    """Return what to make of targets of another shape or type."""
    if targets.shape == shape:
        return "targets.float(), or Categorical() for labels"
    if known and targets.numel() == len(targets) * (shape[-1] - 1):
        return "torch.cat([targets.reshape(len(targets), -1), torch.ones(len(targets), 1)], 1)"
    if targets.numel() == torch.Size(shape).numel() and (targets.is_floating_point() or not real):
        return f"targets.reshape(-1{''.join(f', {size}' for size in shape[1:])})"
    if real and not targets.is_floating_point():
        return "Categorical() for labels"
    return "a network with as many outputs as there are targets"

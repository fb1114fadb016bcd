"""`Training`: the local work of a round as one value, so that a comparison can give the same to
every method.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from torch import nn

from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import OF_TRAINING, checked_class, number, shown, whole
from bayesfed.errors.roles import Role
from bayesfed.federated.core import Kind, Local, LocalOptions
from bayesfed.federated.training.batch_norm import Buffers, buffered
from bayesfed.federated.training.batches import Augment
from bayesfed.federated.training.descent import Descent, LocalClasses
from bayesfed.federated.training.optimisers import Optimiser, Schedule, Sgd, constant
from bayesfed.inference import MaximumLikelihood, Objective
from bayesfed.inference.objectives.weight_decay import with_open_prior, with_prior
from bayesfed.models import Categorical, Likelihood
from bayesfed.models.live import check_modes

Record = TypeVar("Record", bound=LocalOptions)


# Steps of a round unless told otherwise.
STEPS = 50
PRECISION = number("[0, inf)", "0.3")


@checked_class(
    OF_TRAINING,
    steps=whole(1, "50"),
    batch_size=whole(1, "64"),
    epochs=number("(0, inf)", "1.0"),
    prior_precision=Role(
        lambda value: value == "auto" or PRECISION.fits(value), "a number >= 0 or 'auto'", "0.3"
    ),
    observations=whole(1, "len(train)"),
    accumulate=whole(1, "2"),
)
@dataclass(frozen=True)
class Training:
    """What a client does in a round: how many steps, of how many rows, by which optimiser.

    Parameters
    ----------
    steps
        Number of local steps of a round.
    batch_size
        Number of rows of a step. None takes all rows of the client.
    optimiser
        Optimiser of the steps: ``Sgd(0.05)``, ``Adam(1e-3)``. Default: the method's own, named in
        its docstring.
    schedule
        ``round -> factor`` on the learning rate: `constant`, ``cosine(0.1, rounds)``,
        ``inverse(20)``.
    epochs
        Number of passes over the client's own rows, used instead of `steps`. May be fractional; a
        client takes at least one step.
    prior_precision
        delta of a prior N(0, 1 / delta) on every weight, for methods with point estimates: weight
        decay of ``delta / observations`` on the mean loss, which makes MAP estimates of them. With
        `Adam` it empties weights that the rows leave open, those of pixels that never vary, and
        networks lose less under corruptions. "auto": 80 rounds come first, in which precisions from
        0.1 to 3 are tried and scored on rows that clients hold out; then training begins anew, on
        all rows (`bayesfed.algorithms.wrappers.chosen_prior`). Default: none.
    observations
        Number of rows of all clients, for `prior_precision`.
    accumulate
        Number of parts of a batch that go through the network one after another, for batches that
        do not fit into memory. Their gradients are added, each by its share of the rows.
    bfloat16
        Whether the network runs under `torch.autocast` of bfloat16. Weights, losses, priors and
        messages stay in 32 bits.
    augment
        ``inputs -> inputs``, of every batch anew: a function such as torchvision's transforms. Rows
        that are a dict or tuple it gets as such. What it draws from the global generators is named
        by client and round. Default: rows are as they are.

    Raises
    ------
    ArgumentError
        If a number is not positive, both steps and epochs are given, one of `prior_precision` and
        `observations` is given without the other, the optimiser is not one of this package's
        (``0.1``, ``torch.optim.SGD``), or the schedule cannot be called.

    Examples
    --------
    >>> from dataclasses import replace
    >>> work = Training(steps=20, batch_size=32, optimiser=Sgd(0.1))
    >>> replace(work, steps=5).steps
    5
    """

    steps: int = STEPS
    batch_size: int | None = 64
    optimiser: Optimiser | None = None
    schedule: Schedule = constant
    epochs: float | None = None
    prior_precision: float | Literal["auto"] | None = field(default=None, kw_only=True)
    observations: int | None = field(default=None, kw_only=True)
    accumulate: int = field(default=1, kw_only=True)
    bfloat16: bool = field(default=False, kw_only=True)
    augment: Augment | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.epochs is not None and self.steps != STEPS:
            actual = f"steps {self.steps}, epochs {self.epochs}"
            raise ArgumentError("Training", "steps or epochs", actual, "Training(epochs=1.0)")
        if (self.prior_precision is None) != (self.observations is None):
            actual = f"prior_precision {self.prior_precision}, observations {self.observations}"
            hint = "Training(prior_precision=0.3, observations=len(train))"
            raise ArgumentError("Training", "both or neither", actual, hint)

    def steps_for(self, samples: int) -> int:
        """Return the number of steps of a client with `samples` rows."""
        if self.epochs is None:
            return self.steps
        return max(
            1, round(self.epochs * samples / min(self.batch_size or samples or 1, samples or 1))
        )

    def options(self, round: int, samples: int, **own: Any) -> LocalOptions:
        """Return the options of a client for a round.

        Parameters
        ----------
        round
            Number of the round, from 0.
        samples
            Number of the client's rows.
        **own
            Further fields of `LocalOptions`, set by the method.
        """
        return self.options_as(LocalOptions, round, samples, **own)

    def options_as(self, record: type[Record], round: int, samples: int, **own: Any) -> Record:
        """Return the options as a record that extends `LocalOptions`; further parameters as for
        `options`.
        """
        steps = {} if self.epochs is None else {"steps": self.steps_for(samples)}
        return record(**{"rate_factor": self.schedule(round), **steps, **own})

    def descent(
        self,
        objective: Objective,
        net: nn.Module,
        kind: Kind = "value",
        default: Optimiser | None = None,
    ) -> Descent:
        """Return gradient steps on an objective.

        Parameters
        ----------
        objective
            Objective of the network.
        net
            Network; a warning names parts of it that are in evaluation mode.
        kind
            Whether clients send the model ("value") or its change ("delta").
        default
            Optimiser if this value has none. Default: ``Sgd(0.05)``.
        """
        check_modes(net, "Training")
        return Descent(
            self.under_prior(objective),
            self.optimiser or default or Sgd(),
            self.steps,
            self.batch_size,
            kind,
            self.accumulate,
            self.bfloat16,
            self.augment,
        )

    def under_prior(self, objective: Objective) -> Objective:
        """Return an objective under the prior of `prior_precision`: the objective itself if there
        is none.

        Raises
        ------
        ArgumentError
            If the objective is not that of a point estimate.
        """
        if self.prior_precision is None or self.observations is None:
            return objective
        if isinstance(self.prior_precision, str):
            return with_open_prior(objective, self.observations)
        return with_prior(objective, self.prior_precision, self.observations)

    def fitting(
        self,
        net: nn.Module,
        likelihood: Likelihood | None = None,
        kind: Kind = "value",
        *,
        masked: bool = False,
        buffers: Buffers = "static",
    ) -> Local:
        """Return the local step that fits a network by maximum likelihood.

        Parameters
        ----------
        net
            Network to fit.
        likelihood
            Likelihood of the targets. Default: `Categorical()`.
        kind
            Whether clients send the model ("value") or its change ("delta").
        masked
            Whether to set the logits of classes that a client has no rows of to zero in training.
        buffers
            Policy for running statistics, see `bayesfed.federated.training.batch_norm`.
        """
        scored = likelihood or Categorical()
        descent = self.likelihood_descent(net, scored, kind)
        return buffered(LocalClasses(descent, net, scored) if masked else descent, net, buffers)

    def likelihood_descent(
        self, net: nn.Module, likelihood: Likelihood | None = None, kind: Kind = "value"
    ) -> Descent:
        """Return gradient steps on the mean negative log likelihood; parameters as for
        `fitting`.
        """
        objective = MaximumLikelihood(net, likelihood or Categorical())
        return self.descent(objective, net, kind)


def check_own_steps(work: Training, where: str) -> None:
    """Raise `ArgumentError` if it asks for more than rates, steps and rows, of a method that takes
    steps of its own.
    """
    plain = Training()
    for name in ("prior_precision", "accumulate", "bfloat16", "augment"):
        if (value := getattr(work, name)) != getattr(plain, name):
            hint = f"Training without {name}, or fed_avg, d_turbo_vbi"
            raise ArgumentError(f"{where}, training.{name}", "none", shown(value), hint)

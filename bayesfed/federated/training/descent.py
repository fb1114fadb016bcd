"""`Descent`: gradient steps on any objective. This is the only training loop on a client."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bayesfed.data import Dataset
from bayesfed.errors import ArgumentError, DataError
from bayesfed.errors.checks import checked_class, whole
from bayesfed.federated.core import Around, Fit, Kind, LocalOptions
from bayesfed.federated.training.batches import Augment, augmented, batches
from bayesfed.federated.training.optimisers import Optimiser
from bayesfed.inference import Objective
from bayesfed.inference.objectives.likelihood import OwnSteps, Terms
from bayesfed.inference.objectives.weight_decay import OpenPrior
from bayesfed.keys import Key, forked
from bayesfed.models import Categorical, Likelihood
from bayesfed.models.calling import bfloat16, taken
from bayesfed.trees import Tree

AfterStep = Callable[[Tree, float, int], None]
"""``(trained leaves, rate of the step just taken, steps left)``; may change the leaves in place."""


@checked_class({}, steps=whole(1, "50"), batch_size=whole(1, "64"))
@dataclass(frozen=True)
class Descent:
    """Gradient steps on minibatches.

    From its `LocalOptions` it reads `rate_factor`, `scale` and `steps`, and `prior` where the
    objective leaves it open.

    Parameters
    ----------
    objective
        Loss, and which leaves of the message are trained.
    optimiser
        Optimiser of the steps; built anew in every round.
    steps
        Number of steps of a round.
    batch_size
        Number of rows of a step. Batches are cut from reshuffled passes over the data. With None,
        or if the client has fewer rows, each step uses all rows.
    kind
        What the payload's numbers mean: "value" sends the trained leaves, "delta" their difference
        from the message.
    accumulate, bfloat16, augment
        As in `Training`.

    Raises
    ------
    ArgumentError
        If steps or batch size are below 1.
    """

    objective: Objective
    optimiser: Optimiser
    steps: int
    batch_size: int | None
    kind: Kind = "value"
    accumulate: int = 1
    bfloat16: bool = False
    augment: Augment | None = None

    @property
    def plain(self) -> bool:
        """Whether a step takes its rows as they are, at once."""
        return self.accumulate == 1 and self.augment is None

    @property
    def descent(self) -> Descent | None:
        """The step itself, which does nothing but gradient steps; None for a subclass, which may do
        more.
        """
        return self if type(self) is Descent else None

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Train from the message, with an empty memory.

        Raises
        ------
        DataError
            If the data cannot be scored, or training diverged.
        """
        return self.train(message, data, key, options)

    def train(
        self,
        message: Tree,
        data: Dataset,
        key: Key,
        options: LocalOptions,
        after_step: AfterStep | None = None,
    ) -> Fit:
        """Train from the message as `fit` does, for local steps that do something between gradient
        steps.

        Parameters
        ----------
        message
            What the client received.
        data
            The client's rows.
        key
            Source of batches and noise.
        options
            Options that came with the message.
        after_step
            ``(trained leaves, learning rate, steps left)``, called without gradients after every
            step. May change the leaves in place.

        Raises
        ------
        DataError
            If the data cannot be scored, or training diverged.
        """
        trained, fixed = self.objective.start(message)
        if not len(data):
            return self.ended(trained, fixed, message, data, 0.0, 0.0)
        own = self.objective if isinstance(self.objective, OwnSteps) else None
        apart = own.moved_apart(trained) if own else frozenset()
        leaves = {name: leaf.requires_grad_() for name, leaf in trained.items()}
        (rate, steps), losses = self.asked(options), []
        optimiser = self.optimiser.build(
            [leaf for name, leaf in leaves.items() if name not in apart], rate
        )
        observations, noise = (
            options.scale * len(data),
            key.child("noise").generator(data.inputs.device),
        )
        scored = (
            self.objective.at(options.prior)
            if isinstance(self.objective, OpenPrior)
            else self.objective
        )
        # A network may draw from the global generators: dropout does.
        halved = bfloat16(self.bfloat16)
        with forked(key.child("global")), self.objective.held(trained), halved:
            self.objective.check(trained, fixed, data)

            def score(rows: Dataset) -> Terms:
                return scored.loss(trained, fixed, rows, observations, noise)

            for done, batch in enumerate(
                batches(data, self.batch_size, steps, key.child("batches").generator()), 1
            ):
                # As `zero_grad`, whose bookkeeping takes longer than a small layer.
                for leaf in leaves.values():
                    leaf.grad = None
                if self.plain:
                    terms = scored.loss(trained, fixed, batch, observations, noise)
                    terms.loss.backward()
                    losses.append([term.detach() for term in terms])
                else:
                    losses.append(self._backward(score, batch))
                optimiser.step()
                if own or after_step:
                    with torch.no_grad():
                        if own:
                            own.move(trained, fixed, observations)
                        if after_step:
                            now = float(optimiser.param_groups[0]["lr"])
                            after_step(trained, now, steps - done)
        total, nll_total = (torch.stack(values).mean() for values in zip(*losses, strict=True))
        return self.ended(
            {name: leaf.detach() for name, leaf in trained.items()},
            fixed,
            message,
            data,
            float(total),
            float(nll_total),
        )

    def _backward(self, score: Callable[[Dataset], Terms], batch: Dataset) -> list[Tensor]:
        """Add up the gradients of a batch, whose parts weigh by their rows; return its terms."""
        if self.augment:
            batch = augmented(batch, self.augment)
        found = list[list[Tensor]]()
        for rows in torch.arange(len(batch)).chunk(self.accumulate):
            terms = score(batch[rows.to(batch.inputs.device)])
            weighted = [term * (len(rows) / len(batch)) for term in terms]
            weighted[0].backward()
            found.append([term.detach() for term in weighted])
        return [torch.stack(values).sum() for values in zip(*found, strict=True)]

    def asked(self, options: LocalOptions) -> tuple[float, int]:
        """Return the learning rate and the number of steps under these options."""
        return self.optimiser.learning_rate * options.rate_factor, options.steps or self.steps

    def ended(
        self, trained: Tree, fixed: Tree, message: Tree, data: Dataset, loss: float, nll: float
    ) -> Fit:
        """Return the result of a training.

        Parameters
        ----------
        trained, fixed
            Leaves after the last step, and those that are not trained, as `Objective.finish` takes
            them.
        message
            What the client received.
        data
            The client's rows.
        loss, nll
            Means over the steps of the loss and of its likelihood term.

        Raises
        ------
        DataError
            If the loss is not finite: training diverged.
        """
        if not loss - loss == 0:
            raise DataError("local training", "a finite loss", loss, "a smaller learning rate")
        payload = self.objective.finish(trained, fixed)
        if self.kind == "delta":
            payload = {name: leaf - message[name] for name, leaf in payload.items()}
        return Fit(payload, {}, {"samples": float(len(data)), "loss": loss, "nll": nll})


@dataclass(frozen=True)
class LocalClasses(Around):
    """A local step with the logits of classes that a client has no rows of set to zero (masked
    cross-entropy, HeteroFL 3.3). They get no gradient, and are not left out of the softmax's sum:
    each counts as a logit of 0.

    Parameters
    ----------
    local
        The step that trains the network.
    net
        The network.
    likelihood
        Likelihood over all classes.

    Raises
    ------
    ArgumentError
        If the likelihood is not `Categorical`: others have no logits of classes.
    """

    net: nn.Module
    likelihood: Likelihood

    def __post_init__(self) -> None:
        if not isinstance(self.likelihood, Categorical):
            raise ArgumentError(
                "masked",
                "a likelihood of classes",
                type(self.likelihood).__name__,
                "masked=False, or Categorical()",
            )

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Run the step with the logits of the client's own classes."""
        with of_classes(self.net, data.targets.unique()) if len(data) else nullcontext():
            return self.local.fit(message, memory, data, key, options)


@contextmanager
def of_classes(net: nn.Module, classes: Tensor) -> Iterator[None]:
    """Set the outputs of a network for all other classes to zero inside the block."""

    def masked(net: nn.Module, inputs: tuple[Tensor, ...], found: object) -> Tensor:
        output: Tensor = taken(found)
        if output.ndim != 2:
            return output
        absent = ~torch.isin(torch.arange(output.shape[1], device=output.device), classes)
        return output.masked_fill(absent, 0.0)

    handle = net.register_forward_hook(masked)
    try:
        yield
    finally:
        handle.remove()


def holding(leaves: Tree) -> AfterStep:
    """Return what puts some trained leaves back after every step, so that they stay as they are."""

    def held(trained: Tree, rate: float, left: int) -> None:
        for name, leaf in leaves.items():
            trained[name].copy_(leaf)

    return held

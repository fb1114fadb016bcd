"""Locals: `Descent`, gradient steps on any objective; the only training loop on a client."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor, nn

from bayesfed.data.dataset import Dataset
from bayesfed.errors import ArgumentError, DataError, complain
from bayesfed.federated.core.protocols import Fit, Scalar
from bayesfed.federated.core.update import Kind
from bayesfed.federated.training.optimisers import Optimiser
from bayesfed.inference.objectives.likelihood import Objective
from bayesfed.keys import Key, forked
from bayesfed.models.priors.likelihoods import Likelihood, PresentClasses
from bayesfed.trees import Tree

# Told the trained leaves, the rate of the step just taken and how many steps are left; may change the leaves in place.
AfterStep = Callable[[Tree, float, int], None]


@dataclass(frozen=True)
class Descent:
    """Take `steps` gradient steps on minibatches.

    Options read from the message: ``learning_rate`` (a factor, default 1), ``scale`` (the likelihood scale: how
    many rows each row stands for, N / N_t or 1; default 1) and ``steps`` (in place of its own).

    Parameters
    ----------
    steps, batch_size
        Batches are cut from reshuffled passes over the data; a client with fewer rows uses them all each step.
    kind
        What the payload's numbers are; "delta" sends the change of what was received.

    Raises
    ------
    ArgumentError
        If steps or batch size are below 1.
    """

    objective: Objective
    optimiser: Optimiser
    steps: int
    batch_size: int
    kind: Kind = "value"
    uses_global_randomness: bool = False

    def __post_init__(self) -> None:
        if self.steps < 1 or self.batch_size < 1:
            raise ArgumentError(complain("Descent", expected="steps and batch_size >= 1", actual=(self.steps, self.batch_size), hint="50, 64"))

    def fit(self, message: Tree, memory: Tree, data: Dataset, key: Key, options: Mapping[str, Scalar]) -> Fit:
        """Train from the message; remember nothing.

        Raises
        ------
        DataError
            If the data cannot be scored, or training diverged.
        """
        return self.train(message, data, key, options)

    def train(self, message: Tree, data: Dataset, key: Key, options: Mapping[str, Scalar], after_step: AfterStep | None = None) -> Fit:
        """Train from the message, as `fit` does, for locals that do something between steps.

        Parameters
        ----------
        after_step
            ``(trained leaves, learning rate, steps left)``, called without gradients after every step; changes the leaves in place.

        Raises
        ------
        DataError
            If the data cannot be scored, or training diverged.
        """
        trained, fixed = self.objective.start(message)
        if not len(data):
            return Fit(self._payload(self.objective.finish(trained, fixed), message), {}, {"samples": 0.0, "loss": 0.0, "nll": 0.0})
        leaves = [leaf.requires_grad_() for leaf in trained.values()]
        (rate, steps), losses = self.asked(options), []
        optimiser = self.optimiser.build(leaves, rate)
        observations, noise = float(options.get("scale", 1.0)) * len(data), key.child("noise").generator(data.inputs.device)
        # Dropout and its like draw from torch's global generator.
        with forked(key.child("global")) if self.uses_global_randomness else nullcontext(), self.objective.held(trained):
            self.objective.check(trained, fixed, data)
            for done, batch in enumerate(batches(data, self.batch_size, steps, key.child("batches").generator()), 1):
                optimiser.zero_grad()
                loss, nll = self.objective.loss(trained, fixed, batch, observations, noise)
                loss.backward()
                optimiser.step()
                if after_step:
                    with torch.no_grad():
                        after_step(trained, float(optimiser.param_groups[0]["lr"]), steps - done)
                losses.append((loss.detach(), nll.detach()))
        total, nll_total = (torch.stack(values).mean() for values in zip(*losses, strict=True))
        return self.ended({name: leaf.detach() for name, leaf in trained.items()}, fixed, message, data, float(total), float(nll_total))

    def asked(self, options: Mapping[str, Scalar]) -> tuple[float, int]:
        """Return the learning rate and the number of steps that a message asks for."""
        return self.optimiser.learning_rate * float(options.get("learning_rate", 1.0)), max(1, int(options.get("steps", self.steps)))

    def ended(self, trained: Tree, fixed: Tree, message: Tree, data: Dataset, loss: float, nll: float) -> Fit:
        """Return what comes of a training with these mean losses.

        Raises
        ------
        DataError
            If it diverged.
        """
        if not loss - loss == 0:
            raise DataError(complain("local training", expected="a finite loss", actual=loss, hint="a smaller learning rate"))
        payload = self._payload(self.objective.finish(trained, fixed), message)
        return Fit(payload, {}, {"samples": float(len(data)), "loss": loss, "nll": nll})

    def _payload(self, finished: Tree, message: Tree) -> Tree:
        if self.kind != "delta":
            return finished
        return {name: leaf - message[name] for name, leaf in finished.items()}


@dataclass(frozen=True)
class LocalClasses:
    """A descent whose loss leaves out the classes a client has no rows of (masked cross-entropy, HeteroFL 3.3).

    Parameters
    ----------
    descent
        The steps; its own objective serves clients without rows.
    objective
        The objective of a likelihood.
    likelihood
        Of all classes.
    """

    descent: Descent
    objective: Callable[[Likelihood], Objective]
    likelihood: Likelihood

    @property
    def kind(self) -> Kind:
        """That of the descent."""
        return self.descent.kind

    @property
    def uses_global_randomness(self) -> bool:
        """That of the descent."""
        return self.descent.uses_global_randomness

    def fit(self, message: Tree, memory: Tree, data: Dataset, key: Key, options: Mapping[str, Scalar]) -> Fit:
        """Fit with the likelihood of the client's own classes."""
        classes = tuple(data.targets.unique().tolist())
        if not classes:
            return self.descent.fit(message, memory, data, key, options)
        return replace(self.descent, objective=self.objective(PresentClasses(self.likelihood, classes))).fit(message, memory, data, key, options)


def batches(data: Dataset, size: int, steps: int, generator: Generator) -> Iterator[Dataset]:
    """Yield `steps` batches of `size` rows from reshuffled passes; a pass's incomplete last batch is dropped."""
    for rows in row_numbers(len(data), size, steps, generator).to(data.inputs.device):
        yield data[rows]


def row_numbers(count: int, size: int, steps: int, generator: Generator) -> Tensor:
    """Return the row numbers of `batches` of `count` rows, ``(steps, min(size, count))``."""
    size = min(size, count)
    whole = count // size
    passes = [torch.randperm(count, generator=generator)[: whole * size].view(whole, size) for _ in range(-(-steps // whole))]
    return torch.cat(passes)[:steps]


def draws_globally(net: nn.Module) -> bool:
    """Say whether a forward pass draws from torch's global generator: dropout, unless its probability is 0."""
    kinds = ("Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "RReLU")
    return any(type(module).__name__.endswith(kinds) and getattr(module, "p", None) != 0 for module in net.modules())

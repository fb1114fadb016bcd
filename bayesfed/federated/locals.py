"""Locals: `Descent`, gradient steps on any objective; the only training loop on a client."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Generator, Tensor, nn

from bayesfed.data.dataset import Dataset
from bayesfed.errors import ArgumentError, DataError, complain
from bayesfed.federated.protocols import Fit, Scalar
from bayesfed.federated.update import Kind
from bayesfed.inference.objectives import Objective
from bayesfed.keys import Key, forked
from bayesfed.models.likelihoods import Likelihood, PresentClasses
from bayesfed.trees import Tree

Schedule = Callable[[int], float]
# Told the trained leaves, the rate of the step just taken and how many steps are left; may change the leaves in place.
AfterStep = Callable[[Tree, float, int], None]


class Optimiser(Protocol):
    """A torch optimiser as a value."""

    @property
    def learning_rate(self) -> float:
        """Step size before any schedule."""
        ...

    def build(self, leaves: list[Tensor], learning_rate: float) -> torch.optim.Optimizer:
        """Return the optimiser over these leaves."""
        ...


def _rate(name: str, value: float) -> None:
    if not 0 < value < float("inf"):
        raise ArgumentError(complain(f"{name}.learning_rate", expected="a positive number", actual=value, hint="1e-3"))


@dataclass(frozen=True)
class Sgd:
    """Stochastic gradient descent with optional momentum and weight decay, as `torch.optim.SGD`; momentum begins anew every round.

    Parameters
    ----------
    learning_rate
        Of a step, before the method's schedule.
    momentum
        Share of the last step that the next one keeps, in [0, 1).
    weight_decay
        What is added to the gradient, times the weight.

    Raises
    ------
    ArgumentError
        If the rate is not positive.
    """

    learning_rate: float = 0.05
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _rate("Sgd", self.learning_rate)

    def build(self, leaves: list[Tensor], learning_rate: float) -> torch.optim.Optimizer:
        """Return `torch.optim.SGD`."""
        return torch.optim.SGD(leaves, learning_rate, momentum=self.momentum, weight_decay=self.weight_decay)


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba, 2015), its moments fresh every round.

    Parameters
    ----------
    learning_rate
        Of a step, before the method's schedule.

    Raises
    ------
    ArgumentError
        If the rate is not positive.
    """

    learning_rate: float = 1e-3

    def __post_init__(self) -> None:
        _rate("Adam", self.learning_rate)

    def build(self, leaves: list[Tensor], learning_rate: float) -> torch.optim.Optimizer:
        """Return torch's fused `Adam`."""
        return torch.optim.Adam(leaves, learning_rate, fused=True)


@dataclass(frozen=True)
class NaturalGradient:
    """Natural-gradient steps for independent Gaussians (`bayesfed.inference.variational.natural`), another optimiser for the rest.

    Parameters
    ----------
    learning_rate
        How far a step goes to where the gradient points, at most 1: 0.1 forgets what was there in ten steps.
    others
        For parameters that are not of independent Gaussians.

    Raises
    ------
    ArgumentError
        If the rate is not above 0 and at most 1.
    """

    learning_rate: float = 0.1
    others: Optimiser = Adam(1e-2)

    def __post_init__(self) -> None:
        if not 0 < self.learning_rate <= 1:
            raise ArgumentError(
                complain("NaturalGradient.learning_rate", expected="a number in (0, 1]", actual=self.learning_rate, hint="NaturalGradient(0.1)")
            )

    def build(self, leaves: list[Tensor], learning_rate: float) -> torch.optim.Optimizer:
        """Return the optimiser of the rest, its rate shrunk by the same schedule."""
        return self.others.build(leaves, self.others.learning_rate * learning_rate / self.learning_rate)


def constant(round: int) -> float:
    """Keep the learning rate."""
    return 1.0


def cosine(floor: float, rounds: int) -> Schedule:
    """Shrink the learning rate along half a cosine from 1 to `floor` at the last of `rounds` (Loshchilov and Hutter, 2017, without restarts).

    Raises
    ------
    ArgumentError
        If the floor is not above 0 and at most 1, or there are no rounds.
    """
    if not (0 < floor <= 1 and rounds >= 1):
        raise ArgumentError(complain("cosine", expected="floor in (0, 1] and rounds >= 1", actual=(floor, rounds), hint="cosine(0.1, 40)"))
    last = max(1, rounds - 1)
    return lambda round: floor + (1 - floor) * (1 + math.cos(math.pi * min(round, last) / last)) / 2


def inverse(scale: float) -> Schedule:
    """Shrink it as ``1 / (1 + round / scale)``: sums diverge, squares converge (D-Turbo-VBI (25))."""
    if not scale > 0:
        raise ArgumentError(complain("inverse", expected="scale > 0", actual=scale, hint="inverse(20)"))
    return lambda round: 1 / (1 + round / scale)


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

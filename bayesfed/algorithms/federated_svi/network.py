"""`NetworkLocal`: a client's IVON steps on a network with Gaussian priors, without Pyro."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor
from torch.func import grad, vmap

from bayesfed.algorithms.federated_svi.fitting import GuideLocal
from bayesfed.data import Dataset
from bayesfed.errors import ArgumentError, PosteriorError
from bayesfed.federated import Ivon, LocalOptions, Training
from bayesfed.federated.training.batches import batches
from bayesfed.inference.objectives.likelihood import check_data
from bayesfed.inference.variational import Fused, Fusion, IvonSteps, NormalFamily, Start
from bayesfed.keys import Key, forked
from bayesfed.models import BayesianNet, Gaussian
from bayesfed.models.calling import called
from bayesfed.models.likelihoods.rows import redrawn, temperature_of
from bayesfed.models.modules import evaluating
from bayesfed.trees import Tree

TEMPERATURE = "run/temperature"
# Precision of an automatic prior times the temperature, in units of rows: weight decay of 0.3 on a
# summed loss.
STRENGTH = 0.3
# Rows whose squared gradients are the curvature at the end of a round without noise, and how many
# at once.
MOST_ROWS, CHUNK = 256, 32


@dataclass(frozen=True)
class NetworkLocal(GuideLocal):
    """Take `steps` steps of IVON on a client's rows.

    Parameters
    ----------
    model
        The network with its priors and likelihood.
    optimiser
        Rates of the steps.
    """

    model: BayesianNet
    optimiser: Ivon
    smaller: ClassVar[str] = "Ivon of a smaller learning rate"

    def run(
        self,
        start: Start,
        given: Tree,
        memory: Tree,
        data: Dataset,
        key: Key,
        options: LocalOptions,
    ) -> tuple[Tree, float]:
        """Return the parameters after the steps, and the mean loss of all rows."""
        temperature = self.temperature(given)
        mean, sd = self.moments(start.parameters, data.inputs.device)
        check_data(self.model.net, self.model.likelihood, {**self.model.values, **mean}, data)
        rows = options.scale * start.power * len(data) / temperature
        prior = {name: self._prior(name, leaf, start, temperature) for name, leaf in mean.items()}
        steps, how = options.steps or self.steps, self.optimiser
        stepping = IvonSteps(
            mean,
            {name: leaf.square().reciprocal() for name, leaf in sd.items()},
            prior,
            rows=rows,
            rate=how.learning_rate * options.rate_factor,
            curvature_rate=how.curvature_rate,
            momentum=how.momentum,
            clip=how.clip,
            noise=how.noise,
            generator=key.child("draws").generator(data.inputs.device),
        )
        losses = list[Tensor]()
        with forked(key.child("global")):
            for batch in batches(data, self.batch_size, steps, key.child("batches").generator()):
                halves = _halves(batch)

                def gradient(
                    weights: Sequence[Tensor], half: int, halves: tuple[Dataset, Dataset] = halves
                ) -> Sequence[Tensor]:
                    leaves = [leaf.detach().requires_grad_() for leaf in weights]
                    loss = self.loss(dict(zip(mean, leaves, strict=True)), halves[half])
                    losses.append(loss.detach())
                    return torch.autograd.grad(loss, leaves)

                stepping.step(gradient)
        after, precision = stepping.result()
        if not how.noise:
            squared = self.curvature(after, data, key.child("curvature"))
            precision = {name: rows * squared[name] + prior[name][1] for name in after}
        parameters = {
            name: leaf
            for block in self.fused.layout.blocks
            for name, leaf in block.write(
                self.fused.pair,
                {"loc": after[block.name], "scale": precision[block.name].rsqrt()},
            ).items()
        }
        return parameters, float(torch.stack(losses).mean()) * len(data)

    def temperature(self, message: Tree) -> float:
        """Return the temperature that holds."""
        return (
            float(message[TEMPERATURE])
            if TEMPERATURE in message
            else temperature_of(self.model.likelihood)
        )

    def moments(self, parameters: Tree, device: torch.device) -> tuple[Tree, Tree]:
        """Return means and sds of the weights by name."""
        usual = {
            block.name: block.read(self.fused.pair, parameters)
            for block in self.fused.layout.blocks
        }
        means, sds = (
            {name: usual[name][what].to(device) for name in self.model.priors}
            for what in ("loc", "scale")
        )
        return means, sds

    def loss(self, weights: Tree, batch: Dataset) -> Tensor:
        """Return the mean loss of a row at these weights."""
        return self.model.likelihood.loss(self.output(weights, batch.inputs), batch.targets)

    def curvature(self, weights: Tree, data: Dataset, key: Key) -> Tree:
        """Return the mean squared gradients of single rows, labels drawn: the diagonal of the
        generalised Gauss-Newton matrix.
        """
        generator = key.generator()
        rows = data[
            torch.randperm(len(data), generator=generator)[:MOST_ROWS].to(data.inputs.device)
        ]

        def single(leaves: Tree, inputs: Tensor, target: Tensor) -> Tensor:
            return self.model.likelihood.loss(self.output(leaves, inputs[None]), target[None])

        total = {name: torch.zeros_like(leaf) for name, leaf in weights.items()}
        with evaluating(self.model.net), forked(key.child("labels")):
            for first in range(0, len(rows), CHUNK):
                part = rows[slice(first, first + CHUNK)]
                with torch.no_grad():
                    given = self.model.likelihood.distribution(self.output(weights, part.inputs))
                    drawn = redrawn(given, part.targets)
                for name, leaf in vmap(grad(single), (None, 0, 0))(
                    weights, part.inputs, drawn
                ).items():
                    total[name] += leaf.square().sum(0)
        return {name: leaf / len(rows) for name, leaf in total.items()}

    def output(self, weights: Tree, inputs: Tensor) -> Tensor:
        """Return what the network makes of inputs at these weights."""
        values = {name: leaf.to(inputs.device) for name, leaf in self.model.values.items()}
        return called(self.model.net, {**values, **weights}, inputs)

    def _prior(
        self, name: str, like: Tensor, start: Start, temperature: float
    ) -> tuple[Tensor, Tensor]:
        # The recipe has refused others.
        prior = cast(Gaussian, self.model.priors[name])
        precision = start.share * (STRENGTH / temperature if self.model.automatic else prior.sd**-2)
        centre = torch.as_tensor(prior.centre, dtype=like.dtype, device=like.device)
        linear, quadratic = precision * centre, torch.full_like(like, precision)
        if start.cavity:
            linear, quadratic = (
                linear + start.cavity[f"h/{name}"].to(like.device),
                quadratic + start.cavity[f"precision/{name}"].to(like.device),
            )
        return linear.expand_as(like), quadratic


def network_local(
    model: object, fused: Fused, fusion: Fusion, optimiser: Ivon, work: Training
) -> NetworkLocal:
    """Return the local step of a model that IVON can fit.

    Raises
    ------
    ArgumentError
        If the rule's clients take no steps.
    PosteriorError
        If the model is not `bayesian(net)` with Gaussian priors, or the guide not of independent
        Gaussians in its weights.
    """
    if fusion.kind == "gradient":
        hint = "Adam(1e-2), which is not used: clients take no steps of their own"
        raise ArgumentError("Ivon", "a rule whose clients take steps", type(fusion).__name__, hint)
    hint = "bayesian(net, Gaussian(0.1)) with AutoNormal, or NaturalGradient(0.1)"
    if not isinstance(model, BayesianNet) or not all(
        isinstance(prior, Gaussian) for prior in model.priors.values()
    ):
        raise PosteriorError("Ivon", "a network with Gaussian priors", type(model).__name__, hint)
    names = {block.name for block in fused.layout.blocks if isinstance(block.family, NormalFamily)}
    if names != set(model.priors) or len(fused.layout.blocks) != len(names):
        raise PosteriorError("Ivon", "independent Gaussians over the weights", sorted(names), hint)
    return NetworkLocal(fused, fusion, work.steps, work.batch_size, model, optimiser)


def _halves(batch: Dataset) -> tuple[Dataset, Dataset]:
    middle = len(batch) // 2
    return (batch[slice(0, middle)], batch[slice(middle, None)]) if middle else (batch, batch)

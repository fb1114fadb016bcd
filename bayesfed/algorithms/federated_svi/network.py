"""`NetworkLocal`: a client's IVON steps on a network with Gaussian priors, without Pyro; and the
temperature that is chosen on rows held out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import cast

import torch
from torch import Generator, Tensor
from torch.func import functional_call, grad, vmap

from bayesfed.algorithms.federated_svi.moves import moves
from bayesfed.data import Dataset
from bayesfed.errors import ArgumentError, DataError, PosteriorError
from bayesfed.federated import Fit, Ivon, Kind, LocalOptions, Training
from bayesfed.federated.training.descent import batches, draws_globally
from bayesfed.federated.training.held_out_scores import HeldOutScores
from bayesfed.inference.objectives.likelihood import check_data
from bayesfed.inference.variational.families import NormalFamily
from bayesfed.inference.variational.fusion import Fused, Fusion, Start
from bayesfed.inference.variational.ivon import IvonSteps
from bayesfed.keys import Key, forked
from bayesfed.models import BayesianNet, Gaussian
from bayesfed.models.modules import evaluating
from bayesfed.models.priors.likelihoods import temperature_of
from bayesfed.trees import Tree

TEMPERATURE = "run/temperature"
# Precision of an automatic prior times the temperature, in units of rows: weight decay of 0.3 on a
# summed loss.
STRENGTH = 0.3
# Rows whose squared gradients are the curvature at the end of a round without noise, and how many
# at once.
MOST_ROWS, CHUNK = 256, 32


@dataclass(frozen=True)
class NetworkLocal:
    """Take `steps` steps of IVON on a client's rows.

    Parameters
    ----------
    model
        The network with its priors and likelihood.
    fused, fusion
        As for `SviLocal`.
    optimiser
        Rates of the steps.
    steps, batch_size
        Local work of a round.
    uses_global_randomness
        Whether the network, or the labels that are drawn without noise on the weights, draw from
        torch's global generator.
    """

    model: BayesianNet
    fused: Fused
    fusion: Fusion
    optimiser: Ivon
    steps: int
    batch_size: int | None
    uses_global_randomness: bool = False

    @property
    def kind(self) -> Kind:
        """What the payload's numbers mean."""
        return self.fusion.kind

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Run the steps. A client without rows changes nothing and keeps its memory.

        Raises
        ------
        DataError
            If the rows do not fit the network, or the loss is not finite.
        """
        temperature, message = self.tempered(message)
        published = self.fusion.publish(self.fusion.initial(self.fused))
        message = {name: message[name].to(leaf.dtype) for name, leaf in published.items()}
        start = self.fusion.start(message, memory, self.fused, options.share)
        if not len(data):
            unchanged = (
                {name: torch.zeros_like(leaf) for name, leaf in published.items()}
                if self.fusion.adds
                else message
            )
            return Fit(unchanged, dict(memory), {"samples": 0.0, "loss": 0.0})
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
        with forked(key.child("global")) if self.uses_global_randomness else nullcontext():
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
        loss = float(torch.stack(losses).mean())
        if not math.isfinite(loss) or not all(
            bool(torch.isfinite(leaf).all()) for leaf in after.values()
        ):
            raise DataError(
                "local IVON",
                "a finite loss and parameters",
                loss,
                "Ivon of a smaller learning rate",
            )
        usual = {
            name: {"loc": leaf, "scale": precision[name].rsqrt()} for name, leaf in after.items()
        }
        parameters = {
            name: leaf
            for block in self.fused.layout.blocks
            for name, leaf in block.write(self.fused.pair, usual[block.name]).items()
        }
        payload, kept = self.fusion.finish(parameters, start, message, memory, self.fused)
        apart = moves(self.fused, start.parameters, parameters)["moved"]
        return Fit(
            payload, kept, {"samples": float(len(data)), "loss": loss * len(data), "apart": apart}
        )

    def tempered(self, message: Tree) -> tuple[float, Tree]:
        """Return the temperature that holds, and the message without it."""
        own = {name: leaf for name, leaf in message.items() if name != TEMPERATURE}
        return (
            float(message[TEMPERATURE])
            if TEMPERATURE in message
            else temperature_of(self.model.likelihood)
        ), own

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
                    drawn = self.model.likelihood.distribution(
                        self.output(weights, part.inputs)
                    ).sample()
                for name, leaf in vmap(grad(single), (None, 0, 0))(
                    weights, part.inputs, drawn
                ).items():
                    total[name] += leaf.square().sum(0)
        return {name: leaf / len(rows) for name, leaf in total.items()}

    def output(self, weights: Tree, inputs: Tensor) -> Tensor:
        """Return what the network makes of inputs at these weights."""
        values = {name: leaf.to(inputs.device) for name, leaf in self.model.values.items()}
        output: Tensor = functional_call(self.model.net, {**values, **weights}, (inputs,))
        return output

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


@dataclass(frozen=True)
class HeldOutNetwork(HeldOutScores):
    """`NetworkLocal` that trains without every tenth row, and scores the posterior that it received
    on those.
    """

    network: NetworkLocal

    def likely(self, message: Tree, factor: float, rows: Dataset, key: Key) -> Iterator[Tensor]:
        """Yield the log likelihood of each row at draws of the posterior, its variances times
        `factor`.
        """
        network = self.network
        _, own = network.tempered(message)
        mean, sd = network.moments(
            network.fusion.parameters(own, network.fused), rows.inputs.device
        )
        generator = key.generator(rows.inputs.device)
        with evaluating(network.model.net):
            for _ in range(self.draws):
                drawn = {
                    name: leaf + math.sqrt(factor) * sd[name] * _noise(leaf, generator)
                    for name, leaf in mean.items()
                }
                yield network.model.likelihood.pointwise(
                    network.output(drawn, rows.inputs), rows.targets
                )


def network_local(
    model: object, fused: Fused, fusion: Fusion, optimiser: Ivon, work: Training
) -> NetworkLocal:
    """Return the local step of a model that IVON can fit.

    Raises
    ------
    ArgumentError
        If the rule's clients take no steps.
    PosteriorError
        If the model is none that IVON can fit (`check_network`).
    """
    if fusion.kind == "gradient":
        hint = "Adam(1e-2), which is not used: clients take no steps of their own"
        raise ArgumentError("Ivon", "a rule whose clients take steps", type(fusion).__name__, hint)
    checked = check_network(model, fused)
    draws = draws_globally(checked.net) or not optimiser.noise
    return NetworkLocal(checked, fused, fusion, optimiser, work.steps, work.batch_size, draws)


def check_network(model: object, fused: Fused) -> BayesianNet:
    """Return the network of a model that IVON can fit.

    Raises
    ------
    PosteriorError
        If the model is not `bayesian(net)` with Gaussian priors, or the guide not of independent
        Gaussians in its weights.
    """
    hint = "bayesian(net, Gaussian(0.1)) with AutoNormal, or NaturalGradient(0.1)"
    if not isinstance(model, BayesianNet) or not all(
        isinstance(prior, Gaussian) for prior in model.priors.values()
    ):
        raise PosteriorError("Ivon", "a network with Gaussian priors", type(model).__name__, hint)
    names = {block.name for block in fused.layout.blocks if isinstance(block.family, NormalFamily)}
    if names != set(model.priors) or len(fused.layout.blocks) != len(names):
        raise PosteriorError("Ivon", "independent Gaussians over the weights", sorted(names), hint)
    return model


def _noise(like: Tensor, generator: Generator) -> Tensor:
    return torch.randn(like.shape, dtype=like.dtype, device=like.device, generator=generator)


def _halves(batch: Dataset) -> tuple[Dataset, Dataset]:
    middle = len(batch) // 2
    return (batch[slice(0, middle)], batch[slice(middle, None)]) if middle else (batch, batch)

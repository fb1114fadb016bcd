"""Federated SVI: `SviLocal`, a client's steps on its tilted objective, and `Fuse`, what the sum of their answers does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from pyro.infer import Trace_ELBO, TraceEnum_ELBO, TraceMeanField_ELBO
from torch import nn

from bayesfed.algorithms.federated_svi.steps import Steps
from bayesfed.data.dataset import Dataset
from bayesfed.errors import DataError, complain
from bayesfed.federated.core.options import LocalOptions
from bayesfed.federated.core.protocols import Fit
from bayesfed.federated.core.update import Kind
from bayesfed.federated.training.descent import batches
from bayesfed.federated.training.optimisers import Optimiser
from bayesfed.inference.variational.antithetic import mirrored
from bayesfed.inference.variational.fusion import PVI, Fused, Fusion, ProductOfExperts, ReverseKL, SummedGradients, Wasserstein
from bayesfed.inference.variational.program import Program, Runs
from bayesfed.inference.variational.tilted import Tilt, tilted
from bayesfed.keys import Key, forked
from bayesfed.trees import Tree

LOCAL = "local/"


class Elbo(Protocol):
    """Pyro's evidence lower bounds."""

    def loss_and_grads(self, model: Runs, guide: Runs, *args: Any, **kwargs: Any) -> float:
        """Return the negative bound and add its gradients to the parameters."""
        ...


def kind_of(fusion: Fusion) -> Kind:
    """Return what the numbers of a rule's payloads mean."""
    match fusion:
        case SummedGradients():
            return "gradient"
        case PVI() | ProductOfExperts() | ReverseKL():
            return "natural"
        case Wasserstein():
            return "moments"
        case _:
            return "value"


@dataclass(frozen=True)
class SviLocal:
    """Take `steps` steps on a client's rows, its share of the prior and its cavity; local latents stay in its memory.

    Options read from the message: ``learning_rate`` (a factor), ``share`` (N_t / N) and ``scale`` (copies each row stands for).

    Parameters
    ----------
    program, fused, fusion
        The model and guide, what their parameters mean, and the rule.
    elbo
        Any of Pyro's that can be run by `loss_and_grads`.
    batch_size
        Rows of a step, drawn without replacement; None for all.
    averaging
        The share of the steps, the last ones, whose parameters are averaged.
    antithetic
        Whether every second step mirrors the Gaussian draws of the one before.
    sites
        Factors on the prior and the entropy of some sites (`Tilt.sites`).
    """

    program: Program
    fused: Fused
    fusion: Fusion
    elbo: Elbo
    optimiser: Optimiser
    steps: int
    batch_size: int | None
    averaging: float
    antithetic: bool
    uses_global_randomness: bool = True
    sites: Mapping[str, float] = field(default_factory=dict)

    @property
    def kind(self) -> Kind:
        """What the payload's numbers mean."""
        return kind_of(self.fusion)

    def fit(self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions) -> Fit:
        """Run the steps; a client without rows says nothing and keeps what it has."""
        share, layout = options.share, self.fused.layout
        kinds = self.fusion.initial(self.fused)
        message = {name: leaf.to(kinds[name].dtype) for name, leaf in message.items()}
        start = self.fusion.start(message, memory, self.fused, share)
        if not len(data):
            return Fit(self._nothing(start.parameters, message, memory), dict(memory), {"samples": 0.0, "loss": 0.0})
        pair = self.program.at(data, key.child("guide")) if self.program.builds and layout.local else self.fused.pair
        own = {name: memory.get(f"{LOCAL}{name}", pair.first[name]) for name in layout.local}
        leaves = {name: nn.Parameter(leaf.to(data.inputs.device).clone()) for name, leaf in (start.parameters | own).items()}
        adding = self.kind == "gradient"
        held = layout.shared if adding else ()
        steps = Steps(pair, layout, leaves, held, self.optimiser, options.rate_factor, self.steps, self.averaging)
        scale, losses = options.scale, list[float]()
        tilt = Tilt(1.0 if adding else start.share, start.cavity, scale, scale, start.share if adding else 1.0, self.sites)
        elbo, analytic = _for(tilt, self.elbo)
        with forked(key.child("draws")), pair.held(leaves):
            wrap = mirrored(data.inputs.device, self.antithetic)
            for batch, weight in self._batches(data, key):
                guide = wrap(len(losses), pair.guide)
                model, guide = tilted(pair.model, guide, layout, _heavier(tilt, weight), analytic=analytic)
                losses.append(elbo.loss_and_grads(model, guide, batch.inputs, batch.targets))
                steps.step()
        loss, found = float(torch.as_tensor(losses, dtype=torch.float64).mean()), steps.found()
        if not loss - loss == 0 or not all(bool(torch.isfinite(leaf).all()) for leaf in found.values()):
            raise DataError(complain("local SVI", expected="a finite ELBO and parameters", actual=loss, hint="a smaller learning rate"))
        payload, kept = self.fusion.finish({name: found[name] for name in layout.shared}, start, message, memory, self.fused)
        kept = kept | {f"{LOCAL}{name}": found[name] for name in own}
        return Fit(payload, kept, {"samples": float(len(data)), "loss": loss})

    def _batches(self, data: Dataset, key: Key) -> Iterator[tuple[Dataset, float]]:
        if self.batch_size is None or self.batch_size >= len(data):
            yield from ((data, 1.0) for _ in range(self.steps))
            return
        for batch in batches(data, self.batch_size, self.steps, key.child("batches").generator()):
            yield batch, len(data) / len(batch)

    def _nothing(self, parameters: Tree, message: Tree, memory: Tree) -> Tree:
        if self.fusion.adds:
            shapes = self.fused.first if self.kind == "gradient" else self.fusion.initial(self.fused)
            return {name: torch.zeros_like(leaf) for name, leaf in shapes.items()}
        return message


def _for(tilt: Tilt, elbo: Elbo) -> tuple[Elbo, bool]:
    """Return the ELBO of a tilted objective, and whether its expectations may be taken exactly."""
    if isinstance(elbo, TraceMeanField_ELBO) and not tilt.is_plain:
        # It compares a guide's sites with the prior as if that were whole; with entropies exact, this is the same bound.
        elbo = Trace_ELBO(num_particles=elbo.num_particles)
    return elbo, isinstance(elbo, Trace_ELBO | TraceEnum_ELBO)


def _heavier(tilt: Tilt, weight: float) -> Tilt:
    return tilt if weight == 1 else replace(tilt, rows=tilt.rows * weight)

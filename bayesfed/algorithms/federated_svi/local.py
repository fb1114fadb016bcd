"""`SviLocal`: a client's steps of stochastic variational inference on its tilted objective."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

import torch
from pyro.infer import ELBO, Trace_ELBO, TraceEnum_ELBO, TraceMeanField_ELBO
from torch import nn

from bayesfed.algorithms.federated_svi.fitting import GuideLocal
from bayesfed.algorithms.federated_svi.steps import Steps
from bayesfed.data import Dataset
from bayesfed.errors import ArgumentError
from bayesfed.federated import LocalOptions, Optimiser
from bayesfed.federated.training.batches import batches
from bayesfed.inference.variational import LOCAL, Mirror, Pair, Program, Runs, Start, Tilt, tilted
from bayesfed.inference.variational.terms import as_raised
from bayesfed.keys import Key, forked
from bayesfed.trees import Tree, is_finite, under


class Elbo(Protocol):
    """Pyro's evidence lower bounds."""

    def loss_and_grads(self, model: Runs, guide: Runs, *args: Any, **kwargs: Any) -> float:
        """Return the negative bound and add its gradients to the parameters."""
        ...


@dataclass(frozen=True)
class SviLocal(GuideLocal):
    """Take `steps` steps on a client's rows, its share of the prior and its cavity.

    Options read from the message: ``learning_rate`` (a factor), ``share`` (N_t / N) and ``scale``
    (how often each row counts). Pyro draws from torch's global generator.

    Parameters
    ----------
    program
        The model and the guide.
    elbo
        Any of Pyro's bounds that has `loss_and_grads`.
    optimiser
        How parameters move.
    averaging
        Share of the steps, the last ones, whose parameters are averaged.
    antithetic
        Whether every second step mirrors the Gaussian draws of the one before.
    sites
        Factors on the prior and the entropy of some sites (`Tilt.sites`).
    """

    program: Program
    elbo: Elbo
    optimiser: Optimiser
    averaging: float
    antithetic: bool
    sites: Mapping[str, float] = field(default_factory=dict)
    smaller: ClassVar[str] = "a smaller learning rate"

    def run(
        self,
        start: Start,
        given: Tree,
        memory: Tree,
        data: Dataset,
        key: Key,
        options: LocalOptions,
    ) -> tuple[Tree, float]:
        """Return averaged parameters, or mean gradients, and the mean negative bound."""
        layout, count = self.fused.layout, options.steps or self.steps
        pair = (
            self.program.at(data, key.child("guide"))
            if self.program.builds and layout.local
            else self.fused.pair
        )
        kept = under(memory, LOCAL)
        own = {name: kept.get(name, pair.first[name]) for name in layout.local}
        leaves = {
            name: nn.Parameter(leaf.to(data.inputs.device).clone())
            for name, leaf in (start.parameters | own).items()
        }
        adding = self.kind == "gradient"
        steps = Steps(
            pair,
            layout,
            leaves,
            layout.shared if adding else (),
            self.optimiser,
            options.rate_factor,
            count,
            self.averaging,
        )
        scale, losses = options.scale * start.power, list[float]()
        tilt = Tilt(
            1.0 if adding else start.share,
            start.cavity,
            scale,
            scale,
            start.share if adding else 1.0,
            self.sites,
        )
        elbo, analytic = _for(tilt, self.elbo)
        with forked(key.child("draws")), pair.held(leaves):
            mirror = Mirror(data.inputs.device)
            for batch, weight in self._batches(data, count, key):
                guide = mirror.at(len(losses), pair.guide) if self.antithetic else pair.guide
                model, guide = tilted(
                    pair.model,
                    guide,
                    layout,
                    replace(tilt, rows=tilt.rows * weight),
                    analytic=analytic,
                )
                try:
                    with as_raised():
                        found = elbo.loss_and_grads(model, guide, batch.inputs, batch.targets)
                    losses.append(found)
                    steps.step()
                except ValueError:
                    # Distributions refuse parameters that diverged, of which `fit` tells.
                    if all(map(is_finite, leaves.values())):
                        raise
                    losses.append(math.nan)
                    break
        return steps.result(), float(torch.as_tensor(losses, dtype=torch.float64).mean())

    def _batches(self, data: Dataset, steps: int, key: Key) -> Iterator[tuple[Dataset, float]]:
        if self.batch_size is None or self.batch_size >= len(data):
            yield from ((data, 1.0) for _ in range(steps))
            return
        for batch in batches(data, self.batch_size, steps, key.child("batches").generator()):
            yield batch, len(data) / len(batch)


def check_particles(elbo: Elbo | None, pair: Pair, data: Dataset, key: Key) -> None:
    """Raise `ArgumentError` if the model runs under a bound with its particles one by one alone."""

    def problem_of(bound: Any) -> Exception | None:
        leaves = {name: nn.Parameter(leaf.clone()) for name, leaf in pair.first.items()}
        try:
            with forked(key), pair.held(leaves), as_raised():
                bound.loss_and_grads(pair.model, pair.guide, data.inputs, data.targets)
        except Exception as problem:
            return problem
        return None

    if not (isinstance(elbo, ELBO) and elbo.vectorize_particles):
        return
    apart = copy(elbo)
    apart.vectorize_particles = False
    if (problem := problem_of(elbo)) and not problem_of(apart):
        expected = "a model that takes all particles at once, with dimensions of theirs on the left"
        actual = f"{type(problem).__name__}: {str(problem).splitlines()[0]}"
        hint = f"{type(elbo).__name__}(num_particles={elbo.num_particles})"
        raise ArgumentError("federated_svi, elbo", expected, actual, hint) from problem


def _for(tilt: Tilt, elbo: Elbo) -> tuple[Elbo, bool]:
    """Return the bound for a tilted objective, and whether its expectations may be taken
    exactly.
    """
    if isinstance(elbo, TraceMeanField_ELBO) and not tilt.is_plain:
        # TraceMeanField_ELBO takes the KL to the whole prior. With exact entropies, Trace_ELBO is
        # the same bound.
        elbo = Trace_ELBO(num_particles=elbo.num_particles)
    return elbo, isinstance(elbo, Trace_ELBO | TraceEnum_ELBO)

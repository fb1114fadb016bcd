"""`SviLocal`: a client's steps of stochastic variational inference on its tilted objective."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from pyro.infer import Trace_ELBO, TraceEnum_ELBO, TraceMeanField_ELBO
from torch import nn

from bayesfed.algorithms.federated_svi.moves import moves
from bayesfed.algorithms.federated_svi.steps import Steps
from bayesfed.data import Dataset
from bayesfed.errors import DataError
from bayesfed.federated import Fit, Kind, LocalOptions, Optimiser
from bayesfed.federated.training.descent import batches
from bayesfed.inference.variational.antithetic import mirrored
from bayesfed.inference.variational.fusion import Fused, Fusion
from bayesfed.inference.variational.program import Program, Runs
from bayesfed.inference.variational.tilted import Tilt, tilted
from bayesfed.inference.variational.traced import LOCAL
from bayesfed.keys import Key, forked
from bayesfed.trees import Tree, under


class Elbo(Protocol):
    """Pyro's evidence lower bounds."""

    def loss_and_grads(self, model: Runs, guide: Runs, *args: Any, **kwargs: Any) -> float:
        """Return the negative bound and add its gradients to the parameters."""
        ...


@dataclass(frozen=True)
class SviLocal:
    """Take `steps` steps on a client's rows, its share of the prior and its cavity.

    Parameters of local latents stay in the client's memory, as ``local/NAME``. Options read from
    the message: ``learning_rate`` (a factor), ``share`` (N_t / N) and ``scale`` (how often each row
    counts).

    Parameters
    ----------
    program
        The model and the guide.
    fused
        Both after their first run, and what the guide's parameters mean.
    fusion
        The fusion rule.
    elbo
        Any of Pyro's bounds that has `loss_and_grads`.
    optimiser, steps
        Local work of a round.
    batch_size
        Rows of a step, drawn without replacement; None for all.
    averaging
        Share of the steps, the last ones, whose parameters are averaged.
    antithetic
        Whether every second step mirrors the Gaussian draws of the one before.
    uses_global_randomness
        True: Pyro draws from torch's global generator.
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
        return self.fusion.kind

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Run the steps. A client without rows changes nothing and keeps its memory.

        Raises
        ------
        DataError
            If the bound or a parameter is not finite after the steps.
        """
        share, layout, steps_asked = options.share, self.fused.layout, options.steps or self.steps
        published = self.fusion.publish(self.fusion.initial(self.fused))
        message = {name: leaf.to(published[name].dtype) for name, leaf in message.items()}
        start = self.fusion.start(message, memory, self.fused, share)
        if not len(data):
            unchanged = (
                {name: torch.zeros_like(leaf) for name, leaf in published.items()}
                if self.fusion.adds
                else message
            )
            return Fit(unchanged, dict(memory), {"samples": 0.0, "loss": 0.0})
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
        held = layout.shared if adding else ()
        steps = Steps(
            pair,
            layout,
            leaves,
            held,
            self.optimiser,
            options.rate_factor,
            steps_asked,
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
            wrap = mirrored(data.inputs.device, self.antithetic)
            for batch, weight in self._batches(data, steps_asked, key):
                guide = wrap(len(losses), pair.guide)
                model, guide = tilted(
                    pair.model, guide, layout, _heavier(tilt, weight), analytic=analytic
                )
                losses.append(elbo.loss_and_grads(model, guide, batch.inputs, batch.targets))
                steps.step()
        loss, result = float(torch.as_tensor(losses, dtype=torch.float64).mean()), steps.result()
        if not math.isfinite(loss) or not all(
            bool(torch.isfinite(leaf).all()) for leaf in result.values()
        ):
            raise DataError(
                "local SVI", "a finite ELBO and parameters", loss, "a smaller learning rate"
            )
        payload, after = self.fusion.finish(
            {name: result[name] for name in layout.shared}, start, message, memory, self.fused
        )
        info = {"samples": float(len(data)), "loss": loss}
        if not adding:
            apart = moves(self.fused, start.parameters, result)
            info |= {"apart": apart["moved"]} if apart else {}
        return Fit(payload, after | {f"{LOCAL}{name}": result[name] for name in own}, info)

    def _batches(self, data: Dataset, steps: int, key: Key) -> Iterator[tuple[Dataset, float]]:
        if self.batch_size is None or self.batch_size >= len(data):
            yield from ((data, 1.0) for _ in range(steps))
            return
        for batch in batches(data, self.batch_size, steps, key.child("batches").generator()):
            yield batch, len(data) / len(batch)


def _for(tilt: Tilt, elbo: Elbo) -> tuple[Elbo, bool]:
    """Return the bound for a tilted objective, and whether its expectations may be taken
    exactly.
    """
    if isinstance(elbo, TraceMeanField_ELBO) and not tilt.is_plain:
        # TraceMeanField_ELBO takes the KL to the whole prior. With exact entropies, Trace_ELBO is
        # the same bound.
        elbo = Trace_ELBO(num_particles=elbo.num_particles)
    return elbo, isinstance(elbo, Trace_ELBO | TraceEnum_ELBO)


def _heavier(tilt: Tilt, weight: float) -> Tilt:
    return tilt if weight == 1 else replace(tilt, rows=tilt.rows * weight)

"""`SketchedSvi`: a client that has the posterior of k of r slices of every adapter.

Neither the rows of a client nor its share of the prior affect the slices that it does not have in a
round. The slices that it has count more, so that the mean over draws is the whole: the adapter's
product is multiplied by ``r / k``, as in FSLoRA, and so are the prior and the entropy of the
slices, ``E[sum over drawn j of (r / k) KL_j] = KL``.

Anchored, a client is sent the posterior of all slices and merges the mean product of those that it
does not have into the base, as `bayesfed.algorithms.lora.sketched` does. It then fits a block of
the server's own posterior, and nothing is multiplied.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from bayesfed.algorithms.federated_svi.local import SviLocal
from bayesfed.algorithms.lora.sketch_view import read_sketch
from bayesfed.algorithms.lora.sketched import merged_slices
from bayesfed.algorithms.lora.slices import cut_slices, others, put_slices
from bayesfed.data import Dataset
from bayesfed.federated import Fit, LocalOptions
from bayesfed.federated.core import Around
from bayesfed.inference.variational.fusion import PVI, SITE
from bayesfed.inference.variational.posterior import FittedGuide
from bayesfed.keys import Key
from bayesfed.models import BayesianNet, Gaussian, adapters
from bayesfed.trees import Tree, under

# Draws of the slices that a client does not have, whose mean product is merged.
DRAWS = 8


def cut_model(model: BayesianNet, net: nn.Module, indices: Mapping[str, Tensor]) -> BayesianNet:
    """Return the model of some slices, with their centres of Gaussian priors and their fixed
    values.

    Parameters
    ----------
    net
        The network with as many slices (`resized`).
    indices
        Indices of the slices of each layer.
    """
    priors = dict(model.priors)
    for name, prior in model.priors.items():
        if isinstance(prior, Gaussian) and isinstance(prior.centre, Tensor):
            (centre,) = cut_slices({name: prior.centre}, indices).values()
            priors[name] = replace(prior, centre=centre)
    return BayesianNet(
        net,
        priors,
        cut_slices(model.values, indices),
        model.likelihood,
    )


@dataclass(frozen=True)
class SketchedSvi(Around):
    """Let `local` fit the slices that a message names. The factors that `PVI` keeps stay whole, of
    all slices, in the memory.

    Parameters
    ----------
    local
        The local step for a model of k slices.
    model
        The model of all slices.
    net
        The network of k slices.
    initial
        The state of all slices before round 0.
    anchor
        The local step for the model of all slices, whose posterior of the other slices is merged
        into the base. None: they are left out.
    """

    local: SviLocal
    model: BayesianNet
    net: nn.Module
    initial: Tree
    anchor: SviLocal | None = None

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Fit the slices."""
        message, indices = read_sketch(message)
        whole = under(memory, SITE)
        if not whole and isinstance(self.local.fusion, PVI):
            share = options.share
            whole = {
                name: share * leaf.to(data.inputs.device) for name, leaf in self.initial.items()
            }
        fused, model = self.local.fused, cut_model(self.model, self.net, indices)
        if self.anchor:
            base = self._anchors(self.anchor, message, indices, key.child("anchors"))
            model = replace(model, values=model.values | base)
            message = cut_slices(message, indices)
        local = replace(self.local, fused=replace(fused, pair=replace(fused.pair, model=model)))
        held = {f"{SITE}{name}": leaf for name, leaf in cut_slices(whole, indices).items()}
        fit = local.fit(message, held, data, key, options)
        kept = put_slices(under(fit.memory, SITE), indices, whole)
        return Fit(fit.payload, {f"{SITE}{name}": leaf for name, leaf in kept.items()}, fit.info)

    def _anchors(
        self, anchor: SviLocal, message: Tree, indices: Mapping[str, Tensor], key: Key
    ) -> Tree:
        """Return base weights plus the posterior mean of what was not drawn, a mean over draws, by
        their names in the network.
        """
        rest = {
            name: others(chosen, adapters(self.model.net)[name].rank)
            for name, chosen in indices.items()
        }
        parameters = anchor.fusion.parameters(message, anchor.fused)
        posterior = FittedGuide(anchor.fused.pair, anchor.fused.layout, parameters, anchor.program)
        draws = [
            merged_slices(self.net, cut_slices(posterior.draw(key.child(number)), rest), rest)
            for number in range(DRAWS)
        ]
        return {name: torch.stack([draw[name] for draw in draws]).mean(0) for name in draws[0]}

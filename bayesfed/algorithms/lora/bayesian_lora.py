"""Adapters with a posterior: federated SVI on `lora` networks, whole or sketched as in FSLoRA (Fang
et al.).

=========================  ===================================================
notation                   here
=========================  ===================================================
q(B, A, head)              ``guide(model)``; `SliceNormal`
p(B, A, head)              the priors of `model`: `adapter_prior`
S, k of r slices           `Slices` over the guide's leaves; `ranks`
rows' term at B S A        a network of k slices, its scale times ``r / k``
sum over j in S of KL_j    of the slices a client has, times ``r / k``
=========================  ===================================================

As printed, sketching costs more than noise: the terms of the rows are expectations over S, and
``E[(x B S A)^2]`` is above ``(x B A)^2``. The posterior of a slice is narrower than that of whole
adapters, up to ``r / k`` times in precision, and nearer to zero. Anchored, a client fits a block of
the server's posterior at the mean product of the other slices, and has no such price. With k = r
both are `federated_svi`, bit for bit.

Neither the rows of a client nor its share of the prior affect the slices that it does not have in a
round. The slices that it has count more, so that the mean over draws is the whole: the adapter's
product is multiplied by ``r / k``, as in FSLoRA, and so are the prior and the entropy of the
slices, ``E[sum over drawn j of (r / k) KL_j] = KL``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

import torch
from torch import Tensor, nn

from bayesfed.algorithms.federated_svi.local import Elbo, SviLocal
from bayesfed.algorithms.federated_svi.recipe import federated_svi
from bayesfed.algorithms.lora.adapting import by_rank
from bayesfed.algorithms.lora.sketches import Slices, merged_slices, read_sketch
from bayesfed.algorithms.lora.slices import AXES, cut_slices, others, put_slices, sliced
from bayesfed.algorithms.registry import recipe
from bayesfed.compress import Codec
from bayesfed.data import Dataset
from bayesfed.errors import ArgumentError
from bayesfed.federated import (
    Algorithm,
    Assignment,
    Capacity,
    Fit,
    Link,
    Local,
    LocalOptions,
    Profile,
    Sized,
    Training,
    published,
)
from bayesfed.federated.core import Around
from bayesfed.federated.core.settings import with_settings
from bayesfed.inference.variational.fusion import PVI, SITE, Fusion, ProductOfExperts
from bayesfed.inference.variational.posterior import FittedGuide
from bayesfed.inference.variational.program import Runs
from bayesfed.keys import Key
from bayesfed.models import BayesianNet, Gaussian, SliceNormal, adapters, lora_rank, random_sketch
from bayesfed.trees import Tree, leaf_of, shapes, under

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
    return BayesianNet(net, priors, cut_slices(model.values, indices), model.likelihood)


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
            device = data.inputs.device
            whole = {name: options.share * leaf.to(device) for name, leaf in self.initial.items()}
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


@recipe(cites=("fang2025federated", "hu2021lora", "bingham2019pyro"))
def bayesian_lora(
    model: BayesianNet,
    ranks: Sequence[int],
    capacity: Capacity,
    *,
    guide: Callable[[BayesianNet], Runs] = SliceNormal,
    fusion: Fusion,
    scale: Literal["local", "global"],
    observations: int | None = None,
    example: Dataset,
    anchored: bool = False,
    training: Training | None = None,
    averaging: float = 0.5,
    antithetic: bool = True,
    elbo: Elbo | None = None,
    codec: Codec | None = None,
    link: Link | None = None,
    seed: int = 0,
) -> Algorithm:
    """Fit a posterior of adapters on devices of unlike strength. Each client fits that of some
    slices, drawn anew every round.

    Parameters
    ----------
    model
        ``bayesian(net, adapter_prior(net))`` for a `net` from `lora`. Parameters without a prior,
        such as the frozen base, are fixed and shared.
    ranks, capacity
        Numbers of slices k of the sizes, falling, and which size a client trains in a round, as in
        `fs_lora`.
    guide
        ``model -> guide``, whose parameters have the names and shapes of the adapters:
        `SliceNormal` or `AutoNormal`. A guide that draws all
        parameters at once (`AutoLowRankMultivariateNormal`) serves only ``ranks=[r]``.
    fusion, scale, observations, example
        As in `federated_svi`. A client does not affect the slices that it does not have: rules that
        add get zeros for them, rules that average get their present values. `ProductOfExperts`,
        which ends after one round, does not suit sketches.
    anchored
        As in `fs_lora`: merge the mean product of the slices that a client does not train into the
        base, and fit the others as they are. False is FSLoRA's sketch, with rows' terms, prior and
        entropy of the slices multiplied by ``r / k``. Anchored clients are sent all slices.
    training
        Local work of a round. Default: 50 steps of 16 rows with ``Adam(1e-2)``.
    averaging, antithetic, elbo, codec, link, seed
        As in `federated_svi`.

    Raises
    ------
    ArgumentError
        If the network has no adapters of one rank, ranks do not fall from at most that to at least
        1, the guide's parameters cannot be cut into slices, or as in `federated_svi`.

    References
    ----------
    Fang et al., "Federated Sketching LoRA: On-Device Collaborative Fine-Tuning of Large Language
    Models" (2025); Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models" (2021).
    """
    rank, layers = lora_rank(model.net), sorted(adapters(model.net))

    def fitted(part: BayesianNet) -> Algorithm:
        return federated_svi(
            part,
            guide(part),
            fusion=fusion,
            scale=scale,
            observations=observations,
            example=example,
            training=training or Training(batch_size=16),
            averaging=averaging,
            antithetic=antithetic,
            elbo=elbo,
            codec=codec,
            link=link,
            seed=seed,
        )

    nets = by_rank(model.net, ranks, where="bayesian_lora", sketched=not anchored)
    whole = fitted(model)
    (phase,) = whole.phases
    initial, _ = phase.scope.parted(whole.initial)
    full = shapes(published(phase.server, initial, 0, None))
    if min(ranks) < rank:
        named = {layer for layer, _ in sliced(full, layers).values()}
        if missing := sorted(set(layers) - named):
            raise ArgumentError(
                "bayesian_lora, guide",
                "parameters named after every adapter",
                f"none of {missing}",
                "SliceNormal, or ranks=[r]",
            )
        if isinstance(fusion, ProductOfExperts):
            raise ArgumentError(
                "bayesian_lora, fusion", "a rule for many rounds", "ProductOfExperts", "PVI(0.3)"
            )

    def one(k: int, number: int) -> Local:
        if k == rank:
            return phase.local
        part = cut_model(model, nets[number], dict.fromkeys(layers, torch.arange(k)))
        sketched = cast(SviLocal, fitted(part).phases[0].local)
        if anchored:
            return SketchedSvi(sketched, model, nets[number], initial, cast(SviLocal, phase.local))
        weights = {leaf_of(layer, leaf): rank / k for layer in layers for leaf in AXES}
        return SketchedSvi(replace(sketched, sites=weights), model, nets[number], initial)

    @with_settings(
        anchored=anchored,
        capacity=capacity,
        full=full,
        fusion=fusion,
        layers=layers,
        phase=phase,
        rank=rank,
        ranks=ranks,
    )
    def assign(state: Tree, round: int, profile: Profile, key: Key) -> Assignment:
        given = cast(Assignment, phase.assign(state, round, profile, key))
        size = capacity(profile, round, key)
        options = replace(given.options, size=size)
        if ranks[size] == rank:
            return replace(given, options=options)
        drawn = {
            name: random_sketch(rank, ranks[size], key.child("sketch", name)) for name in layers
        }
        rest = None if fusion.adds else published(phase.server, state, round, None)
        view = Slices(drawn, full, named=True, rest=rest, broadcast=anchored)
        return replace(given, view=view, options=options)

    local = Sized(tuple(one(k, number) for number, k in enumerate(ranks)))
    sliced_phase = replace(phase, assign=assign, local=local)
    return replace(whole, name="bayesian_lora", phases=(sliced_phase,))

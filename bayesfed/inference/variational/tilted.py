"""The objective of one client: its rows, its share of the prior, and what the others believe.

``log p~(z) = share * log p(z) + log p(rows | z) + <cavity, T(z)>``, z in the space of the guide's draws, where the prior has the
Jacobian of an automatic guide's transform. With share 1 and no cavity it is the model itself; shares that sum to 1 over the clients count the prior
once whatever it is; a cavity is the product of the other clients' sites in partitioned variational inference (Ashman et al., 2022,
"Partitioned variational inference", eq. 9, there with the prior in the cavity).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.distributions.util import scale_and_mask
from pyro.poutine.messenger import Messenger
from torch import Tensor

from bayesfed.inference.variational.layout import Layout, base_of, is_factor

TILT = "bayesfed.tilt"


@dataclass(frozen=True)
class Tilt:
    """What a client's objective is beside its rows.

    Parameters
    ----------
    share
        Power on the prior of shared sites.
    cavity
        Natural parameters by block; empty for none.
    rows
        Copies each row stands for, in a batch and in the federation: N_t / B times the likelihood scale.
    local
        Copies each local latent stands for: the likelihood scale.
    shared
        Copies each shared latent stands for, in the prior and in the guide: the share, where clients add up one ELBO.
    """

    share: float = 1.0
    cavity: Mapping[str, Tensor] = field(default_factory=dict)
    rows: float = 1.0
    local: float = 1.0
    shared: float = 1.0

    @property
    def is_plain(self) -> bool:
        """Whether the objective is the model's own but for the rows."""
        return self.share == 1 and not self.cavity


def tilted(
    model: Callable[..., Any], guide: Callable[..., Any], layout: Layout, tilt: Tilt, *, analytic: bool = True
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return model and guide with the tilt in them.

    Parameters
    ----------
    analytic
        Take expectations of the cavity and the guide's entropy exactly rather than at the draw: the gradient's noise is then that of the
        client's own rows. For ELBOs whose terms add up; not for Renyi's.
    """
    scaled = _Scaled(layout, tilt)
    if tilt.is_plain:
        return (model, guide) if tilt.rows == tilt.local == tilt.shared == 1 else (scaled(model), scaled(guide))
    drawn, prior = _Drawn(layout), _Prior(layout)

    def run_guide(*args: Any) -> Any:
        drawn.values, drawn.terms = {}, []
        with scaled, drawn:
            return guide(*args)

    def run_model(*args: Any) -> Any:
        prior.terms = []
        with scaled, prior:
            result = model(*args)
        factor = (tilt.share - 1.0) * sum(drawn.terms + prior.terms, torch.zeros(()))
        for block in layout.blocks:
            fn, value = drawn.values[block.node]
            if tilt.cavity:
                cavity, usual = block.own(tilt.cavity), {name: getattr(base_of(fn), name) for name in block.family.usual}
                factor = factor + (block.family.expected(cavity, usual) if analytic else block.family.log_factor(cavity, value))
            if analytic:
                factor = factor + (fn.log_prob(value) + fn.entropy()).sum()
        pyro.factor(TILT, factor)
        return result

    return run_model, run_guide


class _Scaled(Messenger):
    """Scale what rows, local latents and shared latents say."""

    def __init__(self, layout: Layout, tilt: Tilt) -> None:
        super().__init__()
        self.tilt, self.local = tilt, {*layout.local_sites}

    def _pyro_sample(self, msg: Any) -> None:
        if msg["is_observed"] and not is_factor(msg["fn"]):
            msg["scale"] = msg["scale"] * self.tilt.rows
        elif msg["name"].removesuffix("_unconstrained") in self.local:
            msg["scale"] = msg["scale"] * self.tilt.local
        else:
            msg["scale"] = msg["scale"] * self.tilt.shared


class _Drawn(Messenger):
    """Remember the draws of blocks, and log |dx / dz| of every transform x(z) on the way to a shared site."""

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self.sites, self.nodes = {*layout.sites}, {block.node for block in layout.blocks}
        self.values: dict[str, tuple[Any, Tensor]] = {}
        self.terms: list[Tensor] = []

    def _pyro_post_sample(self, msg: Any) -> None:
        if msg["name"] in self.nodes:
            self.values[msg["name"]] = (msg["fn"], msg["value"])
        if msg["name"] in self.sites and isinstance(msg["fn"], dist.Delta):
            self.terms.append(-torch.as_tensor(msg["fn"].log_density).sum())


class _Prior(Messenger):
    """Remember what the prior says of shared sites; factors belong to it."""

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self.sites = {*layout.sites}
        self.terms: list[Tensor] = []

    def _pyro_post_sample(self, msg: Any) -> None:
        if msg["name"] in self.sites or (msg["is_observed"] and is_factor(msg["fn"])):
            self.terms.append(scale_and_mask(msg["fn"].log_prob(msg["value"]), msg["scale"], msg["mask"]).sum())

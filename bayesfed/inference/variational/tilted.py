"""The objective of one client: its rows, its share of the prior, and the other clients' factors.

``log p~(z) = share * log p(z) + log p(rows | z) + <cavity, T(z)>``, z in the space of the guide's
draws, where the prior includes the Jacobian of an automatic guide's transform. With share 1 and no
cavity it is the model itself. Shares that sum to 1 over the clients count any prior once. A cavity
is the product of the other clients' sites in partitioned variational inference (Ashman et al.,
2022, "Partitioned variational inference", eq. 9, there with the prior in the cavity).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.poutine.messenger import Messenger
from torch import Tensor

from bayesfed.inference.variational.layout import Layout, base_of

TILT = "bayesfed.tilt"


@dataclass(frozen=True)
class Tilt:
    """The weights in a client's objective.

    Parameters
    ----------
    share
        Power on the prior of shared sites.
    cavity
        Natural parameters by block; empty for none.
    rows
        Weight of each row: N_t / B for a batch of B of N_t rows, times the likelihood scale.
    local
        Weight of each local latent: the likelihood scale.
    shared
        Weight of each shared latent, in the prior and in the guide: the share, where clients add up
        one ELBO.
    sites
        Further factors by shared site, on its prior, its cavity and the guide's entropy: one over
        the probability that a client has the site.
    """

    share: float = 1.0
    cavity: Mapping[str, Tensor] = field(default_factory=dict)
    rows: float = 1.0
    local: float = 1.0
    shared: float = 1.0
    sites: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_plain(self) -> bool:
        """Whether, apart from weights of rows, the objective is the model's own."""
        return self.share == 1 and not self.cavity


def tilted(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    layout: Layout,
    tilt: Tilt,
    *,
    analytic: bool = True,
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the model and the guide of the tilted objective.

    Parameters
    ----------
    model, guide
        Those of a `Pair`.
    layout
        What the guide's parameters mean.
    tilt
        The weights.
    analytic
        Whether the expectation of the cavity and the guide's entropy are taken exactly instead of
        at the draw. Then only the client's own rows make the gradient noisy. For ELBOs that are
        sums of terms; not for Renyi's.
    """
    if tilt == Tilt():
        return model, guide
    # A plain tilt has nothing to take exactly.
    analytic = analytic and not tilt.is_plain
    drawn, weighed = _Guide(layout, tilt, analytic), _Model(layout, tilt)

    def run_model(*args: Any) -> Any:
        with weighed:
            result = model(*args)
        terms = list[Tensor]()
        for block in layout.blocks if analytic or tilt.cavity else ():
            fn, value = drawn.values[block.node]
            cavity = block.own(tilt.cavity) if tilt.cavity else {}
            term = (
                block.family.bound(base_of(fn), cavity or None)
                if analytic
                else block.family.log_factor(cavity, value)
            )
            terms.append(tilt.sites.get(block.name, 1.0) * term)
        if terms:
            pyro.factor(TILT, terms[0] if len(terms) == 1 else torch.stack(terms).sum())
        return result

    return run_model, drawn(guide)


class _Guide(Messenger):
    """Weight the guide's draws; remember those of blocks, whose entropy may be taken exactly
    instead.
    """

    def __init__(self, layout: Layout, tilt: Tilt, analytic: bool) -> None:
        super().__init__()
        self.tilt, self.analytic = tilt, analytic
        self.sites, self.local, self.nodes = (
            {*layout.sites},
            {*layout.local_sites},
            {block.node for block in layout.blocks},
        )
        self.by_row = {*layout.split.by_row}
        self.values: dict[str, tuple[Any, Tensor]] = {}

    def _pyro_sample(self, msg: Any) -> None:
        name = msg["name"]
        if name.removesuffix("_unconstrained") in self.local:
            weight = self.tilt.local
        elif name.removesuffix("_unconstrained") in self.by_row:
            weight = self.tilt.rows
        elif name in self.nodes:
            weight = self.tilt.shared
            if self.analytic:
                msg["fn"] = msg["fn"].mask(False)
        else:
            # The Delta of a transformed site has the Jacobian, which belongs to the prior.
            weight = self.tilt.shared * (
                self.tilt.share if name in self.sites and isinstance(msg["fn"], dist.Delta) else 1.0
            )
        weight *= self.tilt.sites.get(name.removesuffix("_unconstrained"), 1.0)
        msg["scale"] = msg["scale"] * weight

    def _pyro_post_sample(self, msg: Any) -> None:
        if msg["name"] in self.nodes:
            self.values[msg["name"]] = (msg["fn"], msg["value"])


class _Model(Messenger):
    """Weight rows, local latents and the prior of shared sites; what no rows enter, such as a
    `pyro.factor` of latents, belongs to the prior.
    """

    def __init__(self, layout: Layout, tilt: Tilt) -> None:
        super().__init__()
        self.tilt, self.local = tilt, {*layout.local_sites}
        self.prior = {*layout.sites, *layout.split.prior}

    def _pyro_sample(self, msg: Any) -> None:
        if msg["name"] in self.prior:
            weight = self.tilt.shared * self.tilt.share * self.tilt.sites.get(msg["name"], 1.0)
        elif msg["name"] in self.local:
            weight = self.tilt.local
        else:
            # Of rows, or a discrete latent that is summed out row by row.
            weight = self.tilt.rows
        msg["scale"] = msg["scale"] * weight

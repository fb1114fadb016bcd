"""Figures over all sites for the report of a round."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from bayesfed.federated.core import Info
from bayesfed.inference import Inferred
from bayesfed.inference.turbo.elbo import POINT
from bayesfed.trees import Tree, under

# A layer is reported as near its floor up to this multiple of it.
NEAR = 1.25


class Changed(NamedTuple):
    """What a round made of a site.

    Parameters
    ----------
    before, now
        Supports ``(M, N)``.
    inferred
        Result of message passing.
    divergence
        KL to the prior, in nats.
    least
        Number of its entries that stay active in any case.
    """

    before: Tensor
    now: Tensor
    inferred: Inferred
    divergence: float
    least: int


def density_of(active: int, entries: int, state: Tree) -> float:
    """Return the share of active entries of all matrices of the transmitted model, those without a
    prior among them, given the numbers of those that have one.
    """
    dense = sum(leaf.numel() for leaf in under(state, f"{POINT}/").values() if leaf.ndim > 1)
    return (active + dense) / (entries + dense)


def figures(sites: Mapping[str, Changed], state: Tree) -> Info:
    """Return the figures of the report, over all sites of a state and by site."""
    before = torch.cat([site.before.flatten() for site in sites.values()])
    now = torch.cat([site.now.flatten() for site in sites.values()])
    results = [site.inferred for site in sites.values()]
    layers, multistable = dict[str, float](), 0.0
    for name, (_, support, inferred, _, least) in sites.items():
        active, share = float(support.sum()), inferred.multistable_share
        layers[f"density/{name}"] = float(support.float().mean())
        layers[f"bp_residual/{name}"] = inferred.residual
        if least and active <= NEAR * least:
            layers[f"near_floor/{name}"] = active
        if share is not None:
            layers[f"bp_multistable/{name}"] = share
        multistable += math.nan if share is None else support.numel() * share
    return {
        "density": density_of(int(now.sum()), len(now), state),
        "reactivated": float((now & ~before).sum()),
        "switched_off": float((before & ~now).sum()),
        "bp_residual": max(result.residual for result in results),
        "bp_sweeps": float(max(result.sweeps for result in results)),
        "bp_converged": float(all(result.converged for result in results)),
        **({} if math.isnan(multistable) else {"bp_multistable": multistable / len(now)}),
        "kl": sum(site.divergence for site in sites.values()),
        **layers,
    }

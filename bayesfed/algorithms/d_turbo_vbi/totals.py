"""Figures over all sites for the report of a round."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from bayesfed.algorithms.d_turbo_vbi.density import ToDensity
from bayesfed.federated.core import Info
from bayesfed.inference import Inferred
from bayesfed.inference.turbo.elbo import POINT
from bayesfed.trees import Tree, under

# A layer is reported as near its floor up to this multiple of it.
NEAR = 1.25
# A density is as asked within this share of it.
NEARLY = 0.02


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


def active_in(supports: Tree) -> int:
    """Return the number of active entries of all supports."""
    return sum(int(support.sum()) for support in supports.values())


def density_of(supports: Tree, state: Tree) -> float:
    """Return the share of active entries of all matrices of the transmitted model, those without a
    prior among them, given the supports of those that have one.
    """
    entries = sum(support.numel() for support in supports.values())
    return _with_points(active_in(supports), entries, state)


def asked(policy: ToDensity | None, state: Tree) -> Info:
    """Return the density that is asked for, as a figure that counts the same matrices as
    `density_of`; nothing where a field is.
    """
    if policy is None:
        return {}
    entries = sum(leaf.numel() for leaf in under(state, "before/").values())
    return {"density_asked": _with_points(policy.target * entries, entries, state)}


def missed(policy: ToDensity, supports: Tree) -> str:
    """Return what is wrong with a density that is more than 2 % off, and what to try."""
    entries = sum(support.numel() for support in supports.values())
    got, least = active_in(supports) / entries, policy.wanted(supports, 0.0)[1]
    if abs(got - policy.target) <= NEARLY * policy.target:
        return ""
    floor = sum(least.values()) / entries
    hint = (
        f"density={floor:.3g}, the floors of its layers" if floor > policy.target else "more rounds"
    )
    return f"the density is {got:.3g}, asked {policy.target:.3g}; try {hint}"


def _with_points(active: float, entries: int, state: Tree) -> float:
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
        "density": density_of({name: site.now for name, site in sites.items()}, state),
        "reactivated": float((now & ~before).sum()),
        "switched_off": float((before & ~now).sum()),
        "bp_residual": max(result.residual for result in results),
        "bp_sweeps": float(max(result.sweeps for result in results)),
        "bp_converged": float(all(result.converged for result in results)),
        **({} if math.isnan(multistable) else {"bp_multistable": multistable / len(now)}),
        "kl": sum(site.divergence for site in sites.values()),
        **layers,
    }

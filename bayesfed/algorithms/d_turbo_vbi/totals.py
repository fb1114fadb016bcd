"""Figures over all sites for the report of a round."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from bayesfed.federated.core import Info
from bayesfed.inference import Inferred

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


def figures(sites: Mapping[str, Changed]) -> Info:
    """Return the figures of the report, over all sites and by site."""
    supports = [(site.before, site.now) for site in sites.values()]
    results = [site.inferred for site in sites.values()]
    entries, multistable = sum(now.numel() for _, now in supports), 0.0
    layers = dict[str, float]()
    for name, (_, now, inferred, _, least) in sites.items():
        active, share = int(now.sum()), inferred.multistable_share
        layers[f"density/{name}"] = float(now.float().mean())
        layers[f"bp_residual/{name}"] = inferred.residual
        if least and active <= NEAR * least:
            layers[f"near_floor/{name}"] = float(active)
        if share is not None:
            layers[f"bp_multistable/{name}"] = share
        multistable += math.nan if share is None else now.numel() * share
    return {
        "density": sum(int(now.sum()) for _, now in supports) / entries,
        "reactivated": float(sum(int((now & ~before).sum()) for before, now in supports)),
        "switched_off": float(sum(int((before & ~now).sum()) for before, now in supports)),
        "bp_residual": max(result.residual for result in results),
        "bp_sweeps": float(max(result.sweeps for result in results)),
        "bp_converged": float(all(result.converged for result in results)),
        **({} if math.isnan(multistable) else {"bp_multistable": multistable / entries}),
        "kl": sum(site.divergence for site in sites.values()),
        **layers,
    }

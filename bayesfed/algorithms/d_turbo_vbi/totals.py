"""Figures over all sites for the report of a round."""

from __future__ import annotations

import math

from bayesfed.federated.core import Info
from bayesfed.inference import Inferred
from bayesfed.models import SiteBelief

# A layer is reported as near its floor up to this multiple of it.
NEAR = 1.25


class Totals:
    """Counts over all sites, gathered site by site."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.active = self.entries = self.returned = self.removed = self.sweeps = 0
        self.residual, self.multistable, self.kl, self.converged, self.layers = (
            0.0,
            0.0,
            0.0,
            True,
            dict[str, float](),
        )

    def add(
        self, name: str, old: SiteBelief, new: SiteBelief, inferred: Inferred, least: int
    ) -> None:
        """Add a site's round; `least` is the number of its entries that stay active in any case."""
        entries = new.active.numel()
        self.active += int(new.active.sum())
        self.entries += entries
        self.returned += int((new.active & ~old.active).sum())
        self.removed += int((old.active & ~new.active).sum())
        self.residual, self.sweeps = (
            max(self.residual, inferred.residual),
            max(self.sweeps, inferred.sweeps),
        )
        self.converged &= inferred.converged
        self.multistable += (
            math.nan if inferred.multistable_share is None else entries * inferred.multistable_share
        )
        self.layers |= {
            f"density/{name}": float(new.active.float().mean()),
            f"bp_residual/{name}": inferred.residual,
        }
        if least and int(new.active.sum()) <= NEAR * least:
            self.layers[f"near_floor/{name}"] = float(new.active.sum())
        if inferred.multistable_share is not None:
            self.layers[f"bp_multistable/{name}"] = inferred.multistable_share

    def info(self) -> Info:
        """Return the figures of the report."""
        return {
            "density": self.active / self.entries,
            "reactivated": float(self.returned),
            "switched_off": float(self.removed),
            "bp_residual": self.residual,
            "bp_sweeps": float(self.sweeps),
            "bp_converged": float(self.converged),
            **(
                {}
                if math.isnan(self.multistable)
                else {"bp_multistable": self.multistable / self.entries}
            ),
            "kl": self.kl,
            **self.layers,
        }

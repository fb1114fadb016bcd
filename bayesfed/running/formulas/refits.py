"""`Refits`: fits of some sites of a regression, where the weights of the fit of all do not do."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass, field

from bayesfed.federated.engine import callbacks
from bayesfed.running.formulas.prepared import Prepared
from bayesfed.running.launch import MOST, run
from bayesfed.running.result import Result

log = logging.getLogger("bayesfed")


@dataclass(frozen=True)
class Refits:
    """Asks the sites of a regression again, without some of them. The model stays that of all
    sites, with its priors and levels, so that such a fit has the posterior that the weights of the
    fit of all sites aim at.

    Parameters
    ----------
    prepared
        The regression before its fit, with the rows of all sites.
    seed
        As of `run`: a fit of some sites is the one that `run` makes of their rows with this seed.
    progress
        As of `run`; the bar says which sites are left out.
    results
        The fits that were made, by the sites that they are without.
    """

    prepared: Prepared
    seed: int = 0
    progress: bool = True
    results: dict[frozenset[str], Result] = field(default_factory=dict, repr=False, compare=False)

    def without(self, sites: Collection[str]) -> Result | None:
        """Return the fit of the sites that are left, made at the first call; None if no row is
        left.
        """
        left = {name: rows for name, rows in self.prepared.clients.items() if name not in sites}
        if not any(map(len, left.values())):
            return None
        left_out = frozenset(sites)
        if left_out not in self.results:
            label = f"without {', '.join(sorted(sites))}"
            log.info("regression, %s: the weights do not do, fitting the other sites", label)
            bar = [callbacks.progress(MOST, label=label)] if self.progress else []
            self.results[left_out] = run(
                self.prepared.algorithm, left, seed=self.seed, callbacks=bar, progress=False
            )
        return self.results[left_out]

"""The turbo exchange: Module A's closed forms and Module B's sum-product, taking turns.

Source: D-Turbo-VBI (section III). Module A hands over ``logit q(s) - logit prior``, Module B the extrinsic part of
its belief; each hears only what the other knows by itself. Under the structured guide A's message
does not depend on B's, so one exchange settles; under the mean-field guide more may be worth making.

An inactive entry (q(s) <= 1/2) is not trained, so it has no fresh evidence: it keeps the evidence it was
switched off with, and returns when its neighbours' messages outweigh that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bayesfed.inference.blocks import Blocks
from bayesfed.inference.sum_product import Messages, SumProduct, sum_product
from bayesfed.models.belief import SiteBelief
from bayesfed.models.declared import Site


@dataclass(frozen=True)
class SupportState:
    """What the server remembers of one site's support: log-odds ``(M, N)`` and the messages to start from."""

    prior_log_odds: Tensor
    evidence: Tensor
    messages: Messages


@dataclass(frozen=True)
class Exchange:
    """How the two modules take turns.

    Parameters
    ----------
    turns
        A-to-B-to-A exchanges a round.
    tolerance, max_sweeps
        When Module B's messages count as settled, and when it gives up and says so. Messages are kept warm
        between rounds, so a loose tolerance loses little.
    """

    turns: int = 1
    tolerance: float = 1e-2
    max_sweeps: int = 200

    def run(
        self, site: Site, belief: SiteBelief, state: SupportState, blocks: Blocks, field: float = 0.0
    ) -> tuple[SiteBelief, SupportState, SumProduct]:
        """Return the belief with new q(s) and q(rho | s), the support's state, and Module B's last result.

        `field` is added to the prior log-odds of every entry.
        """
        active = belief.active
        for _ in range(self.turns):
            updated = blocks.update(belief, state.prior_log_odds, site.precision)
            evidence = torch.where(active, updated.log_odds - state.prior_log_odds, state.evidence)
            result = sum_product(
                site.support, evidence + field, messages=state.messages, tolerance=self.tolerance, max_sweeps=self.max_sweeps, warn=False
            )
            belief = replace(updated, log_odds=result.belief)
            state = SupportState(result.extrinsic + field, evidence, result.messages)
        return blocks.start(belief, site.precision), state, result


def start(site: Site) -> SupportState:
    """Return a support of which nothing is known but its prior: Module B's message without evidence."""
    shape = site.matrix
    nothing = torch.zeros(shape)
    result = sum_product(site.support, nothing, warn=False)
    return SupportState(result.extrinsic, nothing, result.messages)

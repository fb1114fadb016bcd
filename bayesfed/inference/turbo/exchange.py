"""The turbo exchange: Module A's closed forms and Module B's sum-product, by turns.

Source: D-Turbo-VBI (section III). Module A sends ``logit q(s) - logit prior``, Module B the
extrinsic part of its belief: neither gets its own message back. Under the structured guide, A's
message does not depend on B's, so one exchange is enough; under the mean-field guide, more can
help.

An inactive entry (q(s) <= 1/2) is not trained: its evidence is that of a mean of 0, and it becomes
active again when its neighbours' messages outweigh that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import COUNT, NOT_NEGATIVE, checked_class
from bayesfed.inference.sum_product.infer import infer
from bayesfed.inference.sum_product.result import Inferred
from bayesfed.inference.turbo.blocks import Blocks
from bayesfed.inference.turbo.transitions import even_grid, maximise, parameters_of
from bayesfed.models import Grid, Site, SiteBelief
from bayesfed.models.random_fields.clusters import Lowered

Method = Literal["auto", "exact", "bp", "strip"]


@dataclass(frozen=True)
class SupportState:
    """What the server keeps of one site's support between rounds.

    Parameters
    ----------
    prior_log_odds, evidence
        Log-odds ``(M, N)``: Module B's message, and Module A's.
    messages
        Messages with which Module B starts next.
    transitions
        ``(3,)``, the parameters of the grid as `even_grid` takes them, if they are learned; else
        ``(0,)``.
    """

    prior_log_odds: Tensor
    evidence: Tensor
    messages: Tensor
    transitions: Tensor


@checked_class({}, turns=COUNT, tolerance=NOT_NEGATIVE, max_sweeps=COUNT)
@dataclass(frozen=True)
class Exchange:
    """How Modules A and B take turns.

    Parameters
    ----------
    turns
        A-to-B-to-A exchanges per round.
    method
        Module B's method, as in `infer`: "auto" (exact on narrow layers, else belief propagation)
        or "strip", which is at least as accurate as Kikuchi's approximation. Supports that are no
        grids always use "auto".
    tolerance, max_sweeps
        Module B's messages count as settled when they change by no more than `tolerance` nats; it
        stops after `max_sweeps` sweeps. Every round starts from the messages of the last, so a
        loose tolerance loses little.
    certify
        Whether to report every round on how many weights the probability depends on the starting
        messages (attractive supports only).
    learn_transitions
        Whether to re-estimate each Markov grid's couplings and field by EM, one M-step per round,
        from the posterior's pair marginals.

    Raises
    ------
    ArgumentError
        If a number is outside its range, or there is no such method.
    """

    turns: int = 1
    method: Method = "auto"
    tolerance: float = 1e-2
    max_sweeps: int = 200
    certify: bool = True
    learn_transitions: bool = False

    def start(self, site: Site) -> SupportState:
        """Return the state before round 0: Module B's message without evidence.

        Raises
        ------
        ArgumentError
            If transitions are to be learned and the site's support has none.
        """
        nothing = torch.zeros(site.matrix)
        if self.learn_transitions and not self._learns(site.support):
            raise ArgumentError(
                f"Exchange, site {site.name!r}",
                "a MarkovGrid, whose transitions can be learned",
                type(site.support).__name__,
                "learn_transitions=False",
            )
        learned = (
            parameters_of(site.support)
            if self.learn_transitions and isinstance(site.support, Grid)
            else torch.zeros(0)
        )
        result = infer(
            site.support,
            nothing,
            method=self._method(site.support),
            tol=1e-4,
            max_sweeps=1000,
            warn=False,
        )
        return SupportState(result.extrinsic, nothing, result.state, learned)

    def run(
        self,
        site: Site,
        belief: SiteBelief,
        state: SupportState,
        blocks: Blocks,
        field: float = 0.0,
    ) -> tuple[SiteBelief, SupportState, Inferred]:
        """Return the belief with new q(s) and q(rho | s), the support's state, and Module B's last
        result.

        Parameters
        ----------
        site
            The site.
        belief
            Its belief, with the new q(w).
        state
            The support's state after the last round.
        blocks
            The guide's closed-form updates.
        field
            Added to the prior log-odds of every entry.
        """
        support = self.support(site, state)
        for turn in range(self.turns):
            updated = blocks.update(belief, state.prior_log_odds, site.precision)
            evidence = updated.log_odds - state.prior_log_odds
            result = infer(
                support,
                evidence + field,
                method=self._method(support),
                state=state.messages,
                tol=self.tolerance,
                max_sweeps=self.max_sweeps,
                certify=self.certify and turn == self.turns - 1 and support.attractive(),
                warn=False,
            )
            belief = replace(updated, log_odds=result.belief)
            state = replace(
                state,
                prior_log_odds=result.extrinsic + field,
                evidence=evidence,
                messages=result.state,
            )
        if self.learn_transitions and isinstance(support, Grid):
            # The posterior was inferred with `field` in the prior.
            learned = parameters_of(maximise(replace(support, field=support.field + field), result))
            state = replace(state, transitions=learned - torch.tensor([0.0, 0.0, field]))
        return blocks.start(belief, site.precision), state, result

    def support(self, site: Site, state: SupportState) -> Lowered:
        """Return the site's support prior with the transitions that were learned so far."""
        if not state.transitions.numel() or not isinstance(site.support, Grid):
            return site.support
        return even_grid(site.support.size, state.transitions, site.support.arrangement)

    def _method(self, support: Lowered) -> Method:
        # Strips need a grid; "auto" solves an independent support exactly.
        return self.method if isinstance(support, Grid) or self.method == "bp" else "auto"

    @staticmethod
    def _learns(support: Lowered) -> bool:
        return (
            isinstance(support, Grid)
            and support.is_even()
            and min(support.size) > 1
            and not torch.as_tensor(support.field).ndim
        )

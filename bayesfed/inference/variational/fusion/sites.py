"""Rules of one factor a client: ``q = prod_k t_k``, where t_k stands for client k's rows and its share of the prior.

Changes of the factors' natural parameters travel and are added. A client that was never asked holds ``q_0 ^ share``, where q_0 is the guide before
round 0: every client then approximates its own share of the prior, which need not have natural parameters itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from bayesfed.errors import ArgumentError, complain
from bayesfed.errors.checks import checked_class
from bayesfed.inference.variational.fusion.rule import Fused, FusionKind, Start, WeightedSum, require_blocks
from bayesfed.trees import Tree, under, zip_map

SITE = "site/"


@dataclass(frozen=True)
class _Sites:
    """What `ProductOfExperts` and `PVI` have in common; they differ in where a client starts."""

    kind: ClassVar[FusionKind] = "natural"
    adds: ClassVar[bool] = True

    damping: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.damping <= 1:
            raise ArgumentError(complain(f"{type(self).__name__}.damping", expected="0 < damping <= 1", actual=self.damping, hint="1 / clients"))

    def check(self, fused: Fused) -> None:
        """Refuse guides without natural parameters."""
        require_blocks(type(self).__name__, fused)

    def initial(self, fused: Fused) -> Tree:
        """Return natural parameters."""
        return fused.layout.natural(fused.pair, fused.first)

    def publish(self, state: Tree) -> Tree:
        """Publish the state."""
        return state

    def finish(self, parameters: Tree, start: Start, state: Tree, memory: Tree, fused: Fused) -> tuple[Tree, Tree]:
        """Send the damped change of the client's factor, and keep the factor as ``site/NAME``."""
        before, factor = self._site(memory, fused, start.share), fused.layout.natural(fused.pair, parameters)
        if start.cavity:
            factor = zip_map(torch.sub, factor, dict(start.cavity))
        change = {name: self.damping * (factor[name] - leaf) for name, leaf in before.items()}
        return change, {f"{SITE}{name}": leaf + change[name] for name, leaf in before.items()}

    def step(self, state: Tree, answers: WeightedSum, rate: float, fused: Fused) -> Tree:
        """Add the sum of the changes."""
        return zip_map(torch.add, state, answers.total)

    def parameters(self, state: Tree, fused: Fused) -> Tree:
        """Return the guide's parameters for these natural ones."""
        return fused.layout.guide_parameters(fused.pair, state)

    def _site(self, memory: Tree, fused: Fused, share: float) -> Tree:
        return under(memory, SITE) or {name: share * leaf for name, leaf in self.initial(fused).items()}


@checked_class({})
@dataclass(frozen=True)
class ProductOfExperts(_Sites):
    """Multiply posteriors that each saw one client's rows and its share of the prior (Hinton, 2002; Scott et al., 2016, "consensus Monte Carlo").

    Natural parameters are added; the prior is counted once, as ``p(z)^(N_t / N)`` by every client. One round is enough: further rounds
    only continue every client's own fit. Exact for Gaussian posteriors with full covariance; diagonal Gaussians get the right precisions and
    a biased mean. State: ``NAME.h`` and ``NAME.precision``.

    Parameters
    ----------
    damping
        Share of the way to a client's new factor that is taken, above 0 and at most 1.

    Raises
    ------
    ArgumentError
        If the damping is not above 0 and at most 1.
    PosteriorError
        From `check`, if the guide has no natural parameters.
    """

    def start(self, state: Tree, memory: Tree, fused: Fused, share: float) -> Start:
        """Begin where the client's own fit ended."""
        known = bool(under(memory, SITE))
        return Start(self.parameters(self._site(memory, fused, share), fused) if known else fused.first, share)


@checked_class({})
@dataclass(frozen=True)
class PVI(_Sites):
    """Partitioned variational inference (Ashman et al., 2022): each client improves its own factor, given all others'.

    Natural parameters are added. At a fixed point q is an optimum of the ELBO of all rows, whatever the partition. Synchronous rounds
    want ``damping`` near 1 / clients; with one client a round (`in_turn`) it may be 1.

    Parameters
    ----------
    damping
        Share of the way to a client's new factor that is taken, above 0 and at most 1.

    Raises
    ------
    ArgumentError
        If the damping is not above 0 and at most 1.
    PosteriorError
        From `check`, if the guide has no natural parameters.
    """

    def start(self, state: Tree, memory: Tree, fused: Fused, share: float) -> Start:
        """Begin at q, with the product of the others' factors as cavity."""
        return Start(self.parameters(state, fused), share, zip_map(torch.sub, state, self._site(memory, fused, share)))

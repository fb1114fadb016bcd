"""Rules of one factor a client: ``q = prod_k t_k``, where t_k stands for client k's rows and its
share of the prior.

Changes of the factors' natural parameters travel and are added. A client that was never asked holds
``q_0 ^ share``, where q_0 is the guide before round 0: every client then approximates its own share
of the prior, which need not have natural parameters itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, cast

import torch
from torch import Tensor

from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import POSITIVE, SHARE, checked_class, number
from bayesfed.errors.roles import Role
from bayesfed.inference.variational.fusion.pace import Pace, moved
from bayesfed.inference.variational.fusion.rule import (
    Fused,
    FusionKind,
    Start,
    WeightedSum,
    require_blocks,
)
from bayesfed.trees import Tree, under, without, zip_map

SITE = "site/"
DAMPING = number("(0, 1]", "1.0")
# Server's leaves: the sum of all sites, where the posterior is not that sum.
SUM = "sum/"


@dataclass(frozen=True)
class _Sites:
    """What `ProductOfExperts` and `PVI` have in common; they differ in where a client starts."""

    kind: ClassVar[FusionKind] = "natural"
    adds: ClassVar[bool] = True

    damping: float | Literal["auto"] = 1.0

    def check(self, fused: Fused) -> None:
        """Refuse guides without natural parameters."""
        require_blocks(type(self).__name__, fused)

    def initial(self, fused: Fused) -> Tree:
        """Return natural parameters."""
        return fused.layout.natural(fused.pair, fused.first)

    def publish(self, state: Tree) -> Tree:
        """Publish the state."""
        return state

    def finish(
        self, parameters: Tree, start: Start, state: Tree, memory: Tree, fused: Fused
    ) -> tuple[Tree, Tree]:
        """Send the damped change of the client's factor, and keep the factor as ``site/NAME``."""
        before = self._site(memory, fused, start.share)
        factor = fused.layout.natural(fused.pair, parameters)
        if start.cavity:
            factor = zip_map(torch.sub, factor, dict(start.cavity))
        damping, pace = self._paced(parameters, start, memory, fused)
        change = {name: damping * (factor[name] - leaf) for name, leaf in before.items()}
        return change, {
            f"{SITE}{name}": leaf + change[name] for name, leaf in before.items()
        } | pace

    def step(self, state: Tree, answers: WeightedSum, rate: float, fused: Fused) -> Tree:
        """Add the sum of the changes."""
        return zip_map(torch.add, state, answers.total)

    def parameters(self, state: Tree, fused: Fused) -> Tree:
        """Return the guide's parameters for these natural ones."""
        return fused.layout.guide_parameters(fused.pair, state)

    def kept(self, rounds: int) -> float:
        """Return which part of its share of the first guide a client still holds after so many
        rounds of its own.
        """
        if self.damping == "auto":
            return 0.0 if rounds else 1.0
        return float((1 - self.damping) ** rounds)

    def _paced(
        self, parameters: Tree, start: Start, memory: Tree, fused: Fused
    ) -> tuple[float, Tree]:
        """Return the damping of this round, and what is kept to choose the next one."""
        if self.damping != "auto":
            return self.damping, {}
        if not under(memory, SITE):
            # What a client holds before its first round is not its own: nothing of it is worth
            # keeping.
            return 1.0, {}
        pace = Pace.of(memory).after(moved(fused, start.parameters, parameters))
        return pace.damping, pace.leaves()

    def _site(self, memory: Tree, fused: Fused, share: float) -> Tree:
        return under(memory, SITE) or {
            name: share * leaf
            for name, leaf in fused.layout.natural(fused.pair, fused.first).items()
        }


@checked_class({}, damping=DAMPING)
@dataclass(frozen=True)
class ProductOfExperts(_Sites):
    """Multiply posteriors that each saw one client's rows and its share of the prior (Hinton, 2002;
    Scott et al., 2016, "consensus Monte Carlo").

    Natural parameters are added; the prior is counted once, as ``p(z)^(N_t / N)`` by every client.
    One round is enough: further rounds only continue every client's own fit. Exact for Gaussian
    posteriors with full covariance; diagonal Gaussians get the right precisions and a biased mean.
    State: ``NAME.h`` and ``NAME.precision``.

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

    damping: float = 1.0

    def start(self, state: Tree, memory: Tree, fused: Fused, share: float) -> Start:
        """Begin where the client's own fit ended."""
        known = bool(under(memory, SITE))
        return Start(
            self.parameters(self._site(memory, fused, share), fused) if known else fused.first,
            share,
        )


@checked_class(
    {},
    damping=Role(
        lambda value: value == "auto" or DAMPING.fits(value),
        'a number in (0, 1] or "auto"',
        '1 / len(clients), or "auto"',
    ),
    proximal=POSITIVE,
    mixing=SHARE,
    clip=number("(0, inf]", "1.0"),
)
@dataclass(frozen=True)
class PVI(_Sites):
    """Partitioned variational inference (Ashman et al., 2022): each client improves its own factor,
    given all others'; and its relatives.

    Natural parameters are added. At a fixed point q is an optimum of the ELBO of all rows, whatever
    the partition.

    ==============================  ================================================================
    method                          settings
    ==============================  ================================================================
    PVI                             the defaults
    BayesADMM                       ``PVI(damping=g, proximal=rho, mixing=1 / (1 + clients *
                                    rho))``, clients with `Ivon`
    FedLap-Cov                      ``PVI(damping=rho)``, clients with `Ivon(noise=False)`
    FedEP                           ``PVI(damping=1 / clients, clip=c)``
    stochastic EP                   ``PVI(damping=..., tied=True)``
    ==============================  ================================================================

    Parameters
    ----------
    damping
        Share of the way to a client's new factor that is taken, above 0 and at most 1. "auto": all
        of it in a client's first round, so that nothing of the first guide is left; then each
        client chooses its own, from 0.3 on: longer ways while its moves agree, shorter ones when
        they turn back (`bayesfed.inference.variational.fusion.pace`). Clients keep their last move
        for it.
    proximal
        Weight of ``KL(q || posterior)`` in a client's objective, above 0. Below 1 its rows and
        factor count ``1 / proximal`` times: longer moves.
    mixing
        Share of the product of all factors in the next posterior, above 0 and at most 1; the rest
        is the mean of the clients' posteriors.
    clip
        Largest norm of a client's change over that of the posterior, leaf by leaf; infinity for
        none.
    tied
        Whether all clients share one factor, ``q ^ share``, and keep nothing (Li, Hernandez-Lobato
        and Turner, 2015).

    Raises
    ------
    ArgumentError
        If a setting is outside of its domain.
    PosteriorError
        From `check`, if the guide has no natural parameters.

    References
    ----------
    Ashman et al., "Partitioned variational inference" (2022); Moellenhoff et al., "Federated ADMM
    from Bayesian duality" (2025), Algorithm 1; Swaroop, Khan and Doshi-Velez, "Connecting federated
    ADMM to Bayes" (2025); Guo et al., "Federated learning as variational inference: a scalable
    expectation propagation approach" (2023).
    """

    damping: float | Literal["auto"] = "auto"
    proximal: float = 1.0
    mixing: float = 1.0
    clip: float = math.inf
    tied: bool = False

    def __post_init__(self) -> None:
        if self.damping == "auto" and (self.mixing < 1 or self.tied):
            expected = "a damping in numbers with mixing < 1 or tied factors"
            raise ArgumentError("PVI", expected, "'auto'", "PVI(0.3, mixing=0.5)")

    def initial(self, fused: Fused) -> Tree:
        """Return natural parameters; with mixing, the sum of the factors as well."""
        natural = super().initial(fused)
        if self.mixing == 1:
            return natural
        return natural | {f"{SUM}{name}": leaf for name, leaf in natural.items()}

    def publish(self, state: Tree) -> Tree:
        """Publish the posterior."""
        return state if self.mixing == 1 else without(state, SUM)

    def start(self, state: Tree, memory: Tree, fused: Fused, share: float) -> Start:
        """Begin at q, with the product of the others' factors as cavity."""
        site = (
            self._site(memory, fused, share)
            if not self.tied
            else {name: share * leaf for name, leaf in state.items()}
        )
        if self.proximal == 1:
            return Start(self.parameters(state, fused), share, zip_map(torch.sub, state, site))
        cavity = {name: leaf - site[name] / self.proximal for name, leaf in state.items()}
        return Start(
            self.parameters(state, fused), share / self.proximal, cavity, 1 / self.proximal
        )

    def finish(
        self, parameters: Tree, start: Start, state: Tree, memory: Tree, fused: Fused
    ) -> tuple[Tree, Tree]:
        """Send the damped change of the client's factor, and keep the factor unless it is tied."""
        if self.proximal == 1 and not self.tied and self.clip == math.inf:
            return super().finish(parameters, start, state, memory, fused)
        damping, pace = self._paced(parameters, start, memory, fused)
        reached, step = fused.layout.natural(fused.pair, parameters), damping * self.proximal
        # All that a factor needs is how far the posterior moved: the rest of it cancels.
        change = {
            name: self._clipped(step * (reached[name] - leaf), leaf) for name, leaf in state.items()
        }
        if self.tied:
            return change, {}
        before = self._site(memory, fused, start.share * self.proximal)
        return change, {
            f"{SITE}{name}": leaf + change[name] for name, leaf in before.items()
        } | pace

    def step(self, state: Tree, answers: WeightedSum, rate: float, fused: Fused) -> Tree:
        """Add the sum of the changes; with mixing, go on from the mean of the clients'
        posteriors.
        """
        if self.mixing == 1:
            return super().step(state, answers, rate, fused)
        posterior, clients = without(state, SUM), float(cast(float, answers.weight))
        if not clients:
            return state
        total = zip_map(torch.add, under(state, SUM), answers.total)
        scale = self.proximal * float(self.damping) * clients
        mean = {name: leaf + answers.total[name] / scale for name, leaf in posterior.items()}
        mixed = {name: torch.lerp(leaf, total[name], self.mixing) for name, leaf in mean.items()}
        return mixed | {f"{SUM}{name}": leaf for name, leaf in total.items()}

    def _clipped(self, change: Tensor, whole: Tensor) -> Tensor:
        if self.clip == math.inf:
            return change
        most = self.clip * float(whole.norm())
        return change * min(1.0, most / max(float(change.norm()), 1e-30))

"""Fusion rules: in which space the posteriors of clients become one.

======================  =============================  ==========================  ==========================================
rule                    space of the sum               scale of a client's rows    exact for
======================  =============================  ==========================  ==========================================
`MeanParameters`        unconstrained parameters       either; local is too wide   nothing
`Wasserstein`           mean and sd                    either; local is too wide   nothing
`ReverseKL`             natural parameters, averaged   either; local is too wide   nothing
`ProductOfExperts`      natural parameters, added      local                       full covariance and a Gaussian likelihood
`PVI`                   natural parameters, added      local                       the optimum of the family, at convergence
`SummedGradients`       gradients of the ELBO          local                       the optimum of the family, at convergence
======================  =============================  ==========================  ==========================================

All of them are sums over clients: none needs a client's update apart from the others', so they survive secure aggregation, and the air may add them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from bayesfed.errors import ArgumentError, PosteriorError, complain
from bayesfed.inference.variational.layout import Layout
from bayesfed.inference.variational.program import Pair
from bayesfed.trees import Tree, zip_map

SITE = "site/"


class Start(NamedTuple):
    """Where a client begins: the guide's shared parameters, the power on the prior, the cavity."""

    parameters: Tree
    share: float = 1.0
    cavity: Mapping[str, Tensor] = {}


@dataclass(frozen=True)
class Fused:
    """What every rule is told: the guide and what its parameters mean."""

    pair: Pair
    layout: Layout

    @property
    def first(self) -> Tree:
        """The shared parameters at first."""
        return {name: self.pair.first[name] for name in self.layout.shared}


class Fusion(Protocol):
    """A rule: what travels, and what the sum does."""

    @property
    def adds(self) -> bool:
        """Whether clients' shares of the prior and of the rows are added up; False: their posteriors are averaged, weighted by rows."""
        ...

    def check(self, fused: Fused) -> None:
        """Raise `PosteriorError` if the rule cannot serve this guide."""
        ...

    def initial(self, fused: Fused) -> Tree:
        """Return the state before round 0."""
        ...

    def start(self, state: Tree, memory: Tree, fused: Fused, share: float) -> Start:
        """Begin a client's round, given the published state and its share N_t / N of the rows."""
        ...

    def finish(self, parameters: Tree, start: Start, state: Tree, memory: Tree, fused: Fused) -> tuple[Tree, Tree]:
        """Return what travels and what the client keeps."""
        ...

    def parameters(self, state: Tree, fused: Fused) -> Tree:
        """Return the guide's shared parameters of a state."""
        ...


def _require_blocks(rule: str, fused: Fused, *, diagonal: bool = False) -> None:
    layout = fused.layout
    if layout.points or layout.opaque or not layout.blocks:
        raise PosteriorError(
            complain(
                rule,
                expected="a guide of Gaussian, Gamma, Beta or Dirichlet draws whose location and scale are parameters",
                actual=f"points {list(layout.points)}, unknown parameters {list(layout.opaque)}",
                hint="SummedGradients(), which serves any guide, or AutoNormal",
            )
        )
    if diagonal and (other := [block.name for block in layout.blocks if set(block.parameters) != {"loc", "scale"}]):
        raise PosteriorError(complain(rule, expected="independent Gaussian draws", actual=f"{other}", hint="AutoNormal, or PVI()"))


@dataclass(frozen=True)
class MeanParameters:
    """Average the guide's parameters in their unconstrained space; a sd is averaged through its softplus or logarithm.

    Weighted by rows. Point estimates (AutoDelta) become FedAvg. No posterior in the usual sense: ten IID clients whose rows count once are
    more than twice too wide. Serves blocks and points, not parameters whose meaning is unknown, nor a split Cholesky factor.

    Raises
    ------
    PosteriorError
        From `check`, if a parameter is neither a location, a scale nor a point.
    """

    adds: bool = False

    def check(self, fused: Fused) -> None:
        """Refuse parameters of which a mean says nothing."""
        mixed = [b.name for b in fused.layout.blocks if "scale_tril" in b.parameters]
        if fused.layout.opaque or mixed:
            raise PosteriorError(
                complain(
                    "MeanParameters",
                    expected="parameters that are locations, scales or points",
                    actual=f"{[*fused.layout.opaque, *mixed]}",
                    hint="SummedGradients(), or PVI() for a full covariance",
                )
            )

    def initial(self, fused: Fused) -> Tree:
        """Return the parameters themselves."""
        return fused.first

    def start(self, state: Tree, memory: Tree, fused: Fused, share: float) -> Start:
        """Begin where the server is."""
        return Start(state)

    def finish(self, parameters: Tree, start: Start, state: Tree, memory: Tree, fused: Fused) -> tuple[Tree, Tree]:
        """Send the parameters."""
        return parameters, {}

    def parameters(self, state: Tree, fused: Fused) -> Tree:
        """Return the state."""
        return state


@dataclass(frozen=True)
class Wasserstein:
    """Average means and standard deviations: the Wasserstein-2 barycentre of diagonal Gaussians (D-Turbo-VBI, (23)).

    In the unconstrained space of the guide's draws. Optimal transport between one-dimensional Gaussians is affine, so the barycentre has
    the weighted mean of the sds (Agueh and Carlier, 2011). For full covariances it is not a sum, and is refused.

    Raises
    ------
    PosteriorError
        From `check`, if the guide is not of independent Gaussians.
    """

    adds: bool = False

    def check(self, fused: Fused) -> None:
        """Refuse all but independent Gaussians."""
        _require_blocks("Wasserstein", fused, diagonal=True)

    def initial(self, fused: Fused) -> Tree:
        """Return ``NAME.mean`` and ``NAME.sd``."""
        return self._moments(fused.first, fused)

    def start(self, state: Tree, memory: Tree, fused: Fused, share: float) -> Start:
        """Begin where the server is."""
        return Start(self.parameters(state, fused))

    def finish(self, parameters: Tree, start: Start, state: Tree, memory: Tree, fused: Fused) -> tuple[Tree, Tree]:
        """Send means and sds."""
        return self._moments(parameters, fused), {}

    def parameters(self, state: Tree, fused: Fused) -> Tree:
        """Return the guide's parameters with these means and sds."""
        result: Tree = {}
        for block in fused.layout.blocks:
            lowest = float(state[f"{block.name}.sd"].min())
            if not lowest > 0:
                hint = "a higher SNR, or SummedGradients(), whose sum may be noisy"
                raise PosteriorError(complain(f"the posterior of {block.name!r}", expected="standard deviations above 0", actual=lowest, hint=hint))
            result |= block.write(fused.pair, {"loc": state[f"{block.name}.mean"], "scale": state[f"{block.name}.sd"]})
        return result

    def _moments(self, parameters: Tree, fused: Fused) -> Tree:
        result: Tree = {}
        for block in fused.layout.blocks:
            usual = block.read(fused.pair, parameters)
            result |= {f"{block.name}.mean": usual["loc"], f"{block.name}.sd": usual["scale"]}
        return result


@dataclass(frozen=True)
class ReverseKL:
    """Average natural parameters: the q that minimises ``sum_k w_k KL(q || q_k)``, a geometric mean (Battistelli and Chisci, 2014).

    Precisions are averaged, so with rows that count N / N_t times it is near the exact width, and with rows that count once too wide.

    Raises
    ------
    PosteriorError
        From `check`, if the guide has no natural parameters.
    """

    adds: bool = False

    def check(self, fused: Fused) -> None:
        """Refuse guides without natural parameters."""
        _require_blocks("ReverseKL", fused)

    def initial(self, fused: Fused) -> Tree:
        """Return natural parameters."""
        return fused.layout.natural(fused.pair, fused.first)

    def start(self, state: Tree, memory: Tree, fused: Fused, share: float) -> Start:
        """Begin where the server is."""
        return Start(self.parameters(state, fused))

    def finish(self, parameters: Tree, start: Start, state: Tree, memory: Tree, fused: Fused) -> tuple[Tree, Tree]:
        """Send natural parameters."""
        return fused.layout.natural(fused.pair, parameters), {}

    def parameters(self, state: Tree, fused: Fused) -> Tree:
        """Return the guide's parameters of these natural ones."""
        return fused.layout.guide_parameters(fused.pair, state)


@dataclass(frozen=True)
class _Sites:
    """Rules of one factor a client: ``q = prod_k t_k``, t_k the client's rows and its share of the prior; changes of t_k travel and are added.

    A client that was never asked holds ``q_0 ^ share``, q_0 the guide as it began, so that no prior need have natural parameters: every
    client approximates its own share of it.
    """

    adds: bool = True
    damping: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.damping <= 1:
            raise ArgumentError(complain(f"{type(self).__name__}.damping", expected="0 < damping <= 1", actual=self.damping, hint="1 / clients"))

    def check(self, fused: Fused) -> None:
        """Refuse guides without natural parameters."""
        _require_blocks(type(self).__name__, fused)

    def initial(self, fused: Fused) -> Tree:
        """Return natural parameters."""
        return fused.layout.natural(fused.pair, fused.first)

    def parameters(self, state: Tree, fused: Fused) -> Tree:
        """Return the guide's parameters of these natural ones."""
        return fused.layout.guide_parameters(fused.pair, state)

    def finish(self, parameters: Tree, start: Start, state: Tree, memory: Tree, fused: Fused) -> tuple[Tree, Tree]:
        """Send the damped change of the client's factor, and keep the factor."""
        before, found = self._site(memory, fused, start.share), fused.layout.natural(fused.pair, parameters)
        if start.cavity:
            found = zip_map(torch.sub, found, dict(start.cavity))
        change = {name: self.damping * (found[name] - leaf) for name, leaf in before.items()}
        return change, {f"{SITE}{name}": leaf + change[name] for name, leaf in before.items()}

    def _site(self, memory: Tree, fused: Fused, share: float) -> Tree:
        if held := {name.removeprefix(SITE): leaf for name, leaf in memory.items() if name.startswith(SITE)}:
            return held
        return {name: share * leaf for name, leaf in self.initial(fused).items()}


@dataclass(frozen=True)
class ProductOfExperts(_Sites):
    """Multiply posteriors that each saw one client's rows and its share of the prior (Hinton, 2002; Scott et al., 2016, "consensus Monte Carlo").

    Natural parameters are added; the prior is counted once, as ``p(z)^(N_t / N)`` by every client. One round is all there is: further rounds
    only carry every client's own fit on. Exact for Gaussian posteriors with full covariance; diagonal Gaussians get the right precisions and
    a biased mean. State: ``NAME.h`` and ``NAME.precision``.

    Parameters
    ----------
    damping
        Share of the way to a client's new factor that is taken, above 0 and at most 1.

    Raises
    ------
    ArgumentError
        If the damping is not above 0 and at most 1.
    """

    def start(self, state: Tree, memory: Tree, fused: Fused, share: float) -> Start:
        """Begin where the client was."""
        known = any(name.startswith(SITE) for name in memory)
        return Start(self.parameters(self._site(memory, fused, share), fused) if known else fused.first, share)


@dataclass(frozen=True)
class PVI(_Sites):
    """Partitioned variational inference (Ashman et al., 2022): each client improves its own factor against all others'.

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
    """

    def start(self, state: Tree, memory: Tree, fused: Fused, share: float) -> Start:
        """Begin at q, with the product of the others' factors as cavity."""
        return Start(self.parameters(state, fused), share, zip_map(torch.sub, state, self._site(memory, fused, share)))


@dataclass(frozen=True)
class SummedGradients:
    """FedSVI: clients send gradients of their terms of the ELBO at the server's parameters, and the server takes one step of Adam on the sum.

    In unconstrained parameters, for any guide at all. The sum is an unbiased gradient of the ELBO of all rows with the prior counted once, so
    there is no drift; local steps average draws and batches.

    Parameters
    ----------
    learning_rate
        Of the server's Adam (Kingma and Ba, 2015), its moments part of the state.
    """

    learning_rate: float = 0.01
    adds: bool = True

    def __post_init__(self) -> None:
        if not self.learning_rate > 0:
            raise ArgumentError(complain("SummedGradients.learning_rate", expected="a positive number", actual=self.learning_rate, hint="0.01"))

    def check(self, fused: Fused) -> None:
        """Serve any guide that has parameters to share."""
        if not fused.layout.shared:
            raise PosteriorError(complain("SummedGradients", expected="a guide with shared parameters", actual="none", hint="AutoNormal"))

    def initial(self, fused: Fused) -> Tree:
        """Return the parameters themselves."""
        return fused.first

    def start(self, state: Tree, memory: Tree, fused: Fused, share: float) -> Start:
        """Stay where the server is."""
        return Start(state, share)

    def finish(self, parameters: Tree, start: Start, state: Tree, memory: Tree, fused: Fused) -> tuple[Tree, Tree]:
        """Send the gradients."""
        return parameters, {}

    def parameters(self, state: Tree, fused: Fused) -> Tree:
        """Return the state."""
        return state

"""Rules that average the clients' posteriors, weighted by rows. They differ in the space of the
average.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bayesfed.errors import PosteriorError
from bayesfed.inference.variational.fusion.rule import (
    VALUE,
    Fused,
    FusionKind,
    Start,
    WeightedSum,
    require_blocks,
    valued,
)
from bayesfed.trees import Tree, under


@dataclass(frozen=True)
class _Averages:
    """What the averages have in common: everything is published, and the next state is the mean of
    what the clients send, `sent` of their parameters.
    """

    adds: ClassVar[bool] = False

    def initial(self, fused: Fused) -> Tree:
        """Return the state before the first round: what a client with the first guide sends."""
        return self.sent(fused.first, fused)

    def start(self, state: Tree, memory: Tree, fused: Fused, share: float) -> Start:
        """Begin at the server's posterior."""
        return Start(self.parameters(state, fused))

    def finish(
        self, parameters: Tree, start: Start, state: Tree, memory: Tree, fused: Fused
    ) -> tuple[Tree, Tree]:
        """Send the parameters in the form that is averaged."""
        return self.sent(parameters, fused), {}

    def sent(self, parameters: Tree, fused: Fused) -> Tree:
        """Return the guide's parameters in the form that is averaged: themselves."""
        return valued(parameters)

    def parameters(self, state: Tree, fused: Fused) -> Tree:
        """Return the guide's parameters for an average."""
        return under(state, VALUE)

    def publish(self, state: Tree) -> Tree:
        """Publish the state."""
        return state

    def step(self, state: Tree, answers: WeightedSum, rate: float, fused: Fused) -> Tree:
        """Take the weighted mean; a round of clients without rows changes nothing."""
        return answers.mean() if answers.weight else state


@dataclass(frozen=True)
class MeanParameters(_Averages):
    """Average the guide's parameters in their unconstrained space; a sd is averaged through its
    softplus or logarithm.

    Weighted by rows. Points, such as parameters of the model, become FedAvg. No posterior in the
    usual sense: ten IID clients whose rows count once are more than twice too wide. Serves blocks
    and points, not parameters whose meaning is unknown, nor a split Cholesky factor.

    Raises
    ------
    PosteriorError
        From `check`, if a parameter is neither a location, a scale nor a point.
    """

    kind: ClassVar[FusionKind] = "value"

    def check(self, fused: Fused) -> None:
        """Refuse parameters whose mean has no meaning."""
        mixed = [b.name for b in fused.layout.blocks if "scale_tril" in b.parameters]
        if fused.layout.opaque or mixed:
            raise PosteriorError(
                "MeanParameters",
                "parameters that are locations, scales or points",
                f"{[*fused.layout.opaque, *mixed]}",
                "SummedGradients(), or PVI() for a full covariance",
            )


@dataclass(frozen=True)
class Wasserstein(_Averages):
    """Average means and standard deviations: the Wasserstein-2 barycentre of diagonal Gaussians
    (D-Turbo-VBI, (23)).

    In the unconstrained space of the guide's draws. Optimal transport between one-dimensional
    Gaussians is affine, so the barycentre has the weighted mean of the sds (Agueh and Carlier,
    2011). For full covariances it is not a sum, and is refused.

    Raises
    ------
    PosteriorError
        From `check`, if the guide is not of independent Gaussians.
    """

    kind: ClassVar[FusionKind] = "moments"

    def check(self, fused: Fused) -> None:
        """Refuse all but independent Gaussians."""
        require_blocks("Wasserstein", fused, diagonal=True)

    def parameters(self, state: Tree, fused: Fused) -> Tree:
        """Return the guide's parameters for these means and sds."""
        result: Tree = {}
        for block in fused.layout.blocks:
            lowest = float(state[f"sd/{block.name}"].min())
            if not lowest > 0:
                hint = "a higher SNR, or SummedGradients(), whose sum may be noisy"
                raise PosteriorError(
                    f"the posterior of {block.name!r}", "standard deviations above 0", lowest, hint
                )
            result |= block.write(
                fused.pair, {"loc": state[f"mean/{block.name}"], "scale": state[f"sd/{block.name}"]}
            )
        return result

    def sent(self, parameters: Tree, fused: Fused) -> Tree:
        """Return ``mean/NAME`` and ``sd/NAME``."""
        result: Tree = {}
        for block in fused.layout.blocks:
            usual = block.read(fused.pair, parameters)
            result |= {f"mean/{block.name}": usual["loc"], f"sd/{block.name}": usual["scale"]}
        return result


@dataclass(frozen=True)
class ReverseKL(_Averages):
    """Average natural parameters: the q that minimises ``sum_k w_k KL(q || q_k)``, a geometric mean
    (Battistelli and Chisci, 2014).

    Precisions are averaged, so with rows that count N / N_t times it is near the exact width, and
    with rows that count once too wide.

    Raises
    ------
    PosteriorError
        From `check`, if the guide has no natural parameters.
    """

    kind: ClassVar[FusionKind] = "natural"

    def check(self, fused: Fused) -> None:
        """Refuse guides without natural parameters."""
        require_blocks("ReverseKL", fused)

    def sent(self, parameters: Tree, fused: Fused) -> Tree:
        """Return natural parameters."""
        return fused.layout.natural(fused.pair, parameters)

    def parameters(self, state: Tree, fused: Fused) -> Tree:
        """Return the guide's parameters for these natural ones."""
        return fused.layout.guide_parameters(fused.pair, state)

"""`TernaryStep`: the server of sparse ternary compression, which compresses both ways."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from bayesfed.compress.quantisers.ternary import ternary
from bayesfed.errors import ArgumentError, complain
from bayesfed.federated.aggregation.servers import summed
from bayesfed.federated.core.protocols import CHANGE, Info
from bayesfed.federated.core.update import Reducer
from bayesfed.trees import Tree

RESIDUAL, SUM = ".residual", ".sum-of-last-"


@dataclass(frozen=True)
class TernaryStep:
    """Make the mean change ternary, keep the residual for the next round, and send clients only what they missed.

    Source: Sattler, Wiedemann, Mueller and Samek, "Robust and communication-efficient federated learning from non-IID data" (2019),
    Algorithm 2. The state holds the model and, for each leaf, its ``.residual`` and the sums of the last 1 to `cache` changes.

    Parameters
    ----------
    share
        Share of a leaf's entries that change.
    cache
        A client that missed at most this many rounds gets the sum of the changes it missed. Others, and new ones, get the model.
    """

    share: float
    cache: int = 2

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1 or self.cache < 1:
            actual = (self.share, self.cache)
            raise ArgumentError(complain("TernaryStep", expected="a share in (0, 1] and cache >= 1", actual=actual, hint="TernaryStep(0.01)"))

    def initial(self, model: Tree) -> Tree:
        """Return the state before the first round."""
        extra = {f"{name}{RESIDUAL}": torch.zeros_like(leaf) for name, leaf in model.items()}
        sums = {f"{name}{SUM}{back}": torch.zeros_like(leaf) for name, leaf in model.items() for back in range(1, self.cache + 1)}
        return model | extra | sums

    def model(self, state: Tree) -> Tree:
        """Return the parameters of a state."""
        return {name: leaf for name, leaf in state.items() if not name.endswith(RESIDUAL) and SUM not in name}

    def publish(self, state: Tree, round: int, version: int | None) -> Tree:
        """Publish the sum of the changes since `version`, or the model."""
        model, behind = self.model(state), round - version if version is not None else 0
        if not 1 <= behind <= self.cache:
            return model
        return {name + CHANGE: state[f"{name}{SUM}{behind}"] for name in model}

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Add the ternary change, leaf by leaf."""
        total, model = summed(reducer, "delta"), self.model(state)
        mean = total.mean() if total.weight else {name: torch.zeros_like(leaf) for name, leaf in model.items()}
        result: Tree = {}
        for name, leaf in model.items():
            wanted = mean[name] + state[f"{name}{RESIDUAL}"]
            change = ternary(wanted, self.share)
            sums = [change, *(state[f"{name}{SUM}{back}"] + change for back in range(1, self.cache))]
            result |= {name: leaf + change, f"{name}{RESIDUAL}": wanted - change}
            result |= {f"{name}{SUM}{back}": value for back, value in enumerate(sums, 1)}
        # In the order of `initial`, so that a resumed run is the same to the bit.
        return {name: result[name] for name in state}, {}

"""The clients' fit, which goes with their payloads (`Scored`), and what the server remembers of it
(`Watch`), to see when a network has learned something and when it falls apart.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass, replace

import torch
from torch import Tensor

from bayesfed.algorithms.d_turbo_vbi.density import ToDensity
from bayesfed.data import Dataset
from bayesfed.errors import CollapseError
from bayesfed.federated import Fit, LocalOptions
from bayesfed.federated.core import Around
from bayesfed.keys import Key
from bayesfed.trees import Tree

# The leaf of a payload with the clients' fit, and nats a row beyond which it says no more than that
# the network has fallen apart.
NLL, MOST_NLL = "run/nll", 1e4
# Share of what had been gained below which a difference is rounding; share by which a support that
# stays shrinks.
LEAST_GAIN, LEAST_SHRUNK = 1e-6, 0.01
# Rounds in a row that may be lost before the run ends.
MOST_LOST = 4


@dataclass(frozen=True)
class Scored(Around):
    """A local step whose mean negative log likelihood goes with the payload, so that the server
    sees a network fall apart.
    """

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Run the local step and add its score."""
        fit = self.local.fit(message, memory, data, key, options)
        return fit._replace(
            payload=fit.payload
            | {NLL: torch.tensor(min(fit.info["nll"], MOST_NLL), device=data.inputs.device)}
        )


@dataclass(frozen=True)
class Watch:
    """The local negative log likelihood so far, nats a row, averaged over a round's steps and over
    the clients.

    Parameters
    ----------
    first, last, lowest
        That of round 0, of the last round, and the lowest so far, with slow rises since then that
        are not the support's. Infinite before round 0.
    keep
        Share of the active weights that stay active in a round. It grows towards 1 when a round is
        taken back.
    lost
        Number of rounds in a row in which much of what had been gained was lost.
    settled
        Whether weights may be switched off.
    """

    first: float = math.inf
    last: float = math.inf
    lowest: float = math.inf
    keep: float = 1.0
    lost: int = 0
    settled: bool = False

    @staticmethod
    def of(leaf: Tensor) -> Watch:
        """Read it from its leaf of the state."""
        first, last, lowest, keep, lost, settled = leaf.tolist()
        return Watch(first, last, lowest, keep, int(lost), bool(settled))

    def leaf(self) -> Tensor:
        """Return it as a leaf of the state, ``(6,)``."""
        return torch.tensor([float(value) for value in astuple(self)], dtype=torch.float64)

    def after(
        self, nll: float, round: int, policy: ToDensity, shrunk: float = 1.0
    ) -> tuple[Watch, float]:
        """Return what is remembered after a round, and the share of what had been gained that the
        round lost.

        A slow rise while the support hardly changes is no loss: as the learning rate falls, clients
        of unlike rows get less far from the average network towards their own within a round.

        Parameters
        ----------
        nll
            Local negative log likelihood of the round.
        round
            Its number.
        policy
            What counts as a loss, and as a fit that has settled.
        shrunk
            Share of itself by which the number of active weights fell just before the round.

        Raises
        ------
        CollapseError
            If much of the gain is lost in several rounds in a row, in which no weight was switched
            off.
        """
        if math.isinf(self.first):
            return Watch(nll, nll, nll, policy.keep, 0, policy.patience <= round), 0.0
        gained = self.first - self.lowest
        # Where little has been gained yet, a loss counts against the value of round 0.
        scale = max(gained, abs(self.first))
        rise = nll - self.last
        drifts = (
            self.settled
            and not self.lost
            and shrunk < LEAST_SHRUNK
            and 0 < rise < policy.fall / 2 * scale
        )
        best = self.lowest + rise if drifts else self.lowest
        risen = max(0.0, (nll - best) / scale) if scale else 0.0
        if risen >= policy.fall and self.settled:
            if self.lost == MOST_LOST:
                raise CollapseError(
                    "d_turbo_vbi",
                    "a local fit that does not fall apart",
                    f"{nll:.3g} nats a row, after {self.lowest:.3g} at best and {self.first:.3g} "
                    f"in round 0, {MOST_LOST + 1} rounds in a row",
                    "a lower temperature of the likelihood, a smaller learning rate, or a higher "
                    "density",
                )
            return replace(self, last=nll, keep=(1 + self.keep) / 2, lost=self.lost + 1), risen
        lowest = min(best, nll)
        slow = self.last - nll <= policy.settle * (
            self.first - lowest
        ) and self.first - lowest > LEAST_GAIN * abs(self.first)
        return replace(
            self,
            last=nll,
            lowest=lowest,
            lost=0,
            settled=self.settled or slow or policy.patience <= round,
        ), risen

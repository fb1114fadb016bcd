"""How well the model that clients receive fits their rows, which goes with their payloads
(`Scored`), and what the server remembers of it (`Watch`), to see when a network has learned
something and when it falls apart.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass, replace

import torch
from torch import Generator, Tensor

from bayesfed.algorithms.d_turbo_vbi.density import ToDensity
from bayesfed.data import Dataset
from bayesfed.errors import CollapseError
from bayesfed.federated import Fit, LocalOptions
from bayesfed.federated.core import Around
from bayesfed.inference import MeanFieldElbo
from bayesfed.keys import Key
from bayesfed.models.modules import evaluating
from bayesfed.trees import Tree

# The leaf of a payload with the clients' fit, and nats a row beyond which it says no more than that
# the network has fallen apart.
NLL, MOST_NLL = "run/nll", 1e4
# Number of rows that are scored, at the most.
ROWS = 256
# Share of what had been gained below which a difference is rounding.
LEAST_GAIN = 1e-6
# Rounds in a row that may be lost before the run ends.
MOST_LOST = 4


@dataclass(frozen=True)
class Scored(Around):
    """A local step with whose payload the received model's mean negative log likelihood goes, so
    that the server sees a network fall apart. Local work hides that where it repairs the damage.

    Parameters
    ----------
    objective
        The model and how it is read from a message.
    """

    objective: MeanFieldElbo

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Run the local step and add the score."""
        fit = self.local.fit(message, memory, data, key, options)
        return fit._replace(payload=fit.payload | {NLL: self.score(message, data)})

    def score(self, message: Tree, data: Dataset) -> Tensor:
        """Return the mean negative log likelihood of at most 256 rows, evenly spread over the data,
        under the transmitted model.
        """
        rows = data[torch.arange(0, len(data), math.ceil(max(1, len(data)) / ROWS))]
        at_mean = replace(self.objective, sample=False)
        with torch.no_grad(), evaluating(self.objective.declared.net):
            likely = at_mean.pointwise(*at_mean.start(message), rows, Generator())
        nll = -likely.sum() / max(1, len(rows))
        return nll.nan_to_num(MOST_NLL).clamp(max=MOST_NLL)


@dataclass(frozen=True)
class Watch:
    """The negative log likelihood of the models that clients received so far, nats a row, averaged
    over the clients.

    Parameters
    ----------
    first, last, lowest
        That of round 0, of the last round, and the lowest so far. Infinite before round 0.
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

    def after(self, nll: float, round: int, policy: ToDensity | None) -> tuple[Watch, float]:
        """Return what is remembered after a round, and the share of what had been gained that the
        model which it began with had lost.

        Parameters
        ----------
        nll
            Negative log likelihood of the round.
        round
            Its number.
        policy
            What counts as a loss, and as a fit that has settled. Without one nothing is a loss.

        Raises
        ------
        CollapseError
            If much of the gain is lost in several rounds in a row, in which no weight was switched
            off.
        """
        rule = policy or ToDensity()
        if math.isinf(self.first):
            return Watch(nll, nll, nll, rule.keep, 0, rule.patience <= round), 0.0
        gained = self.first - self.lowest
        # Where little has been gained yet, a loss counts against the value of round 0.
        scale = max(gained, abs(self.first))
        risen = max(0.0, (nll - self.lowest) / scale) if scale else 0.0
        if policy and risen >= policy.fall and self.settled:
            if self.lost == MOST_LOST:
                raise CollapseError(
                    "d_turbo_vbi",
                    "a fit that does not fall apart",
                    f"{nll:.3g} nats a row, after {self.lowest:.3g} at best and {self.first:.3g} "
                    f"in round 0, {MOST_LOST + 1} rounds in a row",
                    "a lower temperature of the likelihood, a smaller learning rate, or a higher "
                    "density",
                )
            return replace(self, last=nll, keep=(1 + self.keep) / 2, lost=self.lost + 1), risen
        lowest = min(self.lowest, nll)
        slow = self.last - nll <= rule.settle * (
            self.first - lowest
        ) and self.first - lowest > LEAST_GAIN * abs(self.first)
        return replace(
            self,
            last=nll,
            lowest=lowest,
            lost=0,
            settled=self.settled or slow or rule.patience <= round,
        ), risen

"""D-Turbo-VBI's temperature on rows that clients hold out; see
`bayesfed.federated.training.held_out_scores`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from torch import Tensor

from bayesfed.data import Dataset
from bayesfed.federated.training.held_out_scores import SCORES, HeldOutScores, better
from bayesfed.inference import MeanFieldElbo
from bayesfed.inference.turbo.elbo import TEMPERATURE, spread_leaves
from bayesfed.keys import Key
from bayesfed.trees import Tree


@dataclass(frozen=True)
class HeldOut(HeldOutScores):
    """A local step that trains without every tenth row and scores the received posterior on those
    rows.

    Parameters
    ----------
    objective
        The model and how its posterior is read from a message.
    draws
        Number of posterior draws that a score is averaged over.
    """

    objective: MeanFieldElbo

    def likely(self, message: Tree, factor: float, rows: Dataset, key: Key) -> Iterator[Tensor]:
        """Yield the log likelihood of each row at draws of the posterior, its variances times
        `factor`.
        """
        trained, fixed = self.objective.start(message)
        names = spread_leaves(self.objective.declared.sites, self.objective.spread)
        scaled = {
            name: leaf + math.log(factor) / 2 if name in names else leaf
            for name, leaf in trained.items()
        }
        noise = key.generator(rows.inputs.device)
        for _ in range(self.draws):
            yield self.objective.pointwise(scaled, fixed, rows, noise)


def retempered(
    state: Tree, mean: Tree, spreads: Collection[str], settled: bool
) -> tuple[Tree, Tree]:
    """Return the state with the temperature, and the means with the sds, that held-out rows ask
    for, once the network has learned.
    """
    mean = dict(mean)
    scores, temperature = mean.pop(SCORES), state[TEMPERATURE]
    factor = better(scores, float(temperature)) if settled else 1.0
    return state | {TEMPERATURE: temperature * factor}, {
        name: leaf * factor**0.5 if name in spreads else leaf for name, leaf in mean.items()
    }

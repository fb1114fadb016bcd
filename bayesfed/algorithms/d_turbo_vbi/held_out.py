"""D-Turbo-VBI's temperature on rows that clients hold out; see
`bayesfed.federated.training.held_out_scores`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from torch import Tensor

from bayesfed.data import Dataset
from bayesfed.federated.core import Info
from bayesfed.federated.training.held_out_scores import SCORES, HeldOutScores, better
from bayesfed.inference import MeanFieldElbo
from bayesfed.inference.turbo.elbo import TEMPERATURE, spread_leaves
from bayesfed.keys import Key
from bayesfed.trees import Tree

# Figures of the scores, in the order of their factors.
NLLS = ("held_out_nll", "held_out_nll_cooler", "held_out_nll_hotter")


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


def retempered(state: Tree, mean: Tree, spreads: Collection[str]) -> tuple[Tree, Tree, Info]:
    """Return the state with the temperature, and the means with the sds, that held-out rows ask
    for; as they are without names of sds, before the network has learned. The figures say why: the
    negative log likelihood of held-out rows with the sds as they were, and with less and more.
    """
    mean = dict(mean)
    scores, temperature = mean.pop(SCORES), state[TEMPERATURE]
    factor = better(scores, float(temperature)) if spreads else 1.0
    why = {"temperature": float(temperature * factor)} | dict(
        zip(NLLS, scores.tolist(), strict=True)
    )
    return (
        state | {TEMPERATURE: temperature * factor},
        {name: leaf * factor**0.5 if name in spreads else leaf for name, leaf in mean.items()},
        why,
    )

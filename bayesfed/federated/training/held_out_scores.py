"""A temperature that is chosen on rows that clients hold out.

Every tenth row of a client is never trained on. In each round, before its local work, a client
scores these rows under the posterior that it received, with all its variances as they are, halved
and doubled, and sends the three scores with its payload. The server multiplies the temperature and
the variances by the factor with the best mean score: where the likelihood decides, the variances of
a tempered posterior are proportional to its temperature, so that the scores of one posterior tell
about its neighbours.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bayesfed.data import Dataset
from bayesfed.errors import DataError
from bayesfed.federated.core import Around, Fit, LocalOptions
from bayesfed.keys import Key
from bayesfed.trees import Tree

# The leaf of the payload with the scores, and the factors of the variances that they are for.
SCORES = "run/scores"
FACTORS = (1.0, 0.5, 2.0)
# One row in so many is held out.
EVERY = 10
# Temperatures between which is chosen.
LOWEST, HIGHEST = 1e-6, 1.0


@dataclass(frozen=True)
class HeldOutScores(Around, ABC):
    """A local step that trains without every tenth row and scores the received posterior on those
    rows.

    Parameters
    ----------
    draws
        Number of posterior draws that a score is averaged over.
    """

    draws: int = field(default=8, kw_only=True)

    @abstractmethod
    def likely(self, message: Tree, factor: float, rows: Dataset, key: Key) -> Iterable[Tensor]:
        """Return the log likelihood of each row at each draw of the posterior, its variances times
        `factor`.
        """

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Score, and run the local step on the rows that are not held out."""
        trained, held = split_held(data)
        fit = self.local.fit(message, memory, trained, key, options)
        scores = self.scores(message, held, key.child("held out"))
        return fit._replace(payload=fit.payload | {SCORES: scores.to(data.inputs.device)})

    def scores(self, message: Tree, rows: Dataset, key: Key) -> Tensor:
        """Return the mean negative log predictive density of the rows for each factor, ``(3,)``;
        zeros without rows.

        Raises
        ------
        DataError
            If a score is not a number.
        """
        if not len(rows):
            return torch.zeros(len(FACTORS))
        with torch.no_grad():
            likely = [
                torch.stack(list(self.likely(message, factor, rows, key))) for factor in FACTORS
            ]
        result = torch.stack(
            [(math.log(self.draws) - each.logsumexp(dim=0)).mean() for each in likely]
        )
        if not bool(torch.isfinite(result).all()):
            raise DataError(
                "held-out rows", "finite scores", result.tolist(), "inputs on one scale"
            )
        return result


def better(
    scores: Tensor, temperature: float, lowest: float = LOWEST, highest: float = HIGHEST
) -> float:
    """Return the factor by which temperature and variances change, given the clients' mean scores
    ``(3,)``, within two bounds.
    """
    values = scores.tolist()
    # The first of equal scores: nothing changes without a reason.
    factor = FACTORS[values.index(min(values))]
    return min(max(factor, lowest / temperature), max(highest / temperature, 1.0))


def split_held(data: Dataset) -> tuple[Dataset, Dataset]:
    """Return the rows to train on, and every tenth row, which is held out. A client with fewer than
    ten rows holds out none.
    """
    held = torch.arange(len(data)) % EVERY == EVERY - 1
    return data[~held], data[held]

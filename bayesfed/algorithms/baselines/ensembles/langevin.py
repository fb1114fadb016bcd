"""`Langevin`: networks drawn from a client's own posterior by stochastic gradient Langevin dynamics
(Welling and Teh, 2011).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from bayesfed.data import Dataset
from bayesfed.errors import ArgumentError
from bayesfed.federated import Descent, Fit, LocalOptions
from bayesfed.federated.core import Around
from bayesfed.federated.training.held_out_scores import split_held
from bayesfed.inference.ensembles.networks import together
from bayesfed.keys import Key
from bayesfed.trees import Tree


@dataclass(frozen=True)
class Langevin(Around):
    """Steps of plain SGD on the mean loss, each followed by noise of variance
    ``2 rate temperature / N_k``; the later half of them is drawn from.

    With this noise the steps draw from ``p(theta | D_k)^(1 / temperature)`` as the rate goes to
    zero. Every tenth row is held out.

    Parameters
    ----------
    local
        Steps of plain SGD.
    samples
        S, the number of networks that are sent, equally spaced, the last step's among them.
    temperature
        Temperature of the posterior; 0: no noise.
    """

    local: Descent
    samples: int
    temperature: float

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Send the networks, stacked, ``(S, ...)`` by parameter. A client without rows sends the
        message.

        Raises
        ------
        ArgumentError
            If there are fewer than two steps for each network.
        DataError
            If the data cannot be scored, or training diverged.
        """
        rows, _ = split_held(data)
        if not len(rows):
            return Fit(
                together([message] * self.samples), {}, {"samples": 0.0, "loss": 0.0, "nll": 0.0}
            )
        spacing = self.spacing(self.local.asked(options)[1])
        noise, drawn = key.child("langevin").generator(rows.inputs.device), list[Tree]()

        def after_step(trained: Tree, rate: float, left: int) -> None:
            sd = math.sqrt(2 * rate * self.temperature / len(rows))
            for leaf in trained.values() if sd else ():
                leaf.add_(torch.empty_like(leaf).normal_(generator=noise), alpha=sd)
            if left % spacing == 0 and left < spacing * self.samples:
                drawn.append({name: leaf.detach().clone() for name, leaf in trained.items()})

        fit = self.local.train(message, rows, key, options, after_step)
        return fit._replace(payload=together(drawn))

    def spacing(self, steps: int) -> int:
        """Return the number of steps between two networks; `ArgumentError` if there are fewer than
        two steps for each.
        """
        if steps < 2 * self.samples:
            raise ArgumentError(
                "beta_pred_bayes",
                f"two steps for each of {self.samples} networks",
                steps,
                f"Training(steps={2 * self.samples})",
            )
        return steps // 2 // self.samples

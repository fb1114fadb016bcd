"""The temperature of a network that is chosen on rows that clients hold out: the client's scores
(`HeldOutNetwork`) and the server's choice (`Tempered`); see
`bayesfed.federated.training.held_out_scores`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesfed.algorithms.federated_svi.network import TEMPERATURE, NetworkLocal
from bayesfed.algorithms.federated_svi.server import Fuse
from bayesfed.data import Dataset
from bayesfed.federated import Reducer, Sum, Update
from bayesfed.federated.aggregation.servers import summed
from bayesfed.federated.core import Info
from bayesfed.federated.training.held_out_scores import SCORES, HeldOutScores, better
from bayesfed.keys import Key
from bayesfed.models.modules import evaluating
from bayesfed.trees import Tree, without

# Largest factor between the first temperature and one that is chosen.
WIDEST = 4.0


@dataclass(frozen=True)
class HeldOutNetwork(HeldOutScores):
    """`NetworkLocal` that trains without every tenth row, and scores the posterior that it received
    on those.
    """

    local: NetworkLocal

    def likely(self, message: Tree, factor: float, rows: Dataset, key: Key) -> Iterator[Tensor]:
        """Yield the log likelihood of each row at draws of the posterior, its variances times
        `factor`.
        """
        network, generator = self.local, key.generator(rows.inputs.device)
        own = network.fusion.parameters(without(message, TEMPERATURE), network.fused)
        mean, sd = network.moments(own, rows.inputs.device)
        with evaluating(network.model.net):
            for _ in range(self.draws):
                drawn = {
                    name: leaf
                    + math.sqrt(factor)
                    * sd[name]
                    * torch.randn(
                        leaf.shape, dtype=leaf.dtype, device=leaf.device, generator=generator
                    )
                    for name, leaf in mean.items()
                }
                yield network.model.likelihood.pointwise(
                    network.output(drawn, rows.inputs), rows.targets
                )


@dataclass(frozen=True)
class Tempered:
    """`Fuse`, for rules of natural parameters, with a temperature that is chosen on rows that
    clients hold out (`HeldOutScores`).

    Parameters
    ----------
    server
        The server of the rule.
    first
        Temperature in the beginning, which is never left by more than `WIDEST`: where posteriors
        are wide, means stop learning before scores tell.
    """

    server: Fuse
    first: float

    def publish(self, state: Tree, round: int, version: int | None) -> Tree:
        """Publish what the rule lets clients have, and the temperature."""
        return self.server.publish(without(state, TEMPERATURE), round, version) | {
            TEMPERATURE: state[TEMPERATURE]
        }

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Apply the rule; then multiply temperature and variances by the factor that the held-out
        rows favour.
        """
        answers, temperature = summed(reducer, self.server.fusion.kind), float(state[TEMPERATURE])
        if not answers.weight:
            return state, {}
        total = {
            name: leaf for name, leaf in answers.total.items() if name not in (SCORES, TEMPERATURE)
        }
        own, info = self.server.step(
            without(state, TEMPERATURE), Sum(Update(total, answers.weight, answers.kind)), round
        )
        scores = answers.total[SCORES] / answers.number()
        # Clients without a tenth row send zeros, which favour no factor.
        factor = better(scores, temperature, self.first / WIDEST, min(1.0, self.first * WIDEST))
        tempered = {name: leaf / factor for name, leaf in own.items()}
        figures = {"temperature": temperature, "held_out_nll": float(scores[0])}
        return tempered | {TEMPERATURE: state[TEMPERATURE] * factor}, info | figures

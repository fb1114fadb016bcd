"""Byzantine clients: harmful numbers in valid messages."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from bayesfed.data.dataset import Dataset
from bayesfed.federated.core.algorithm import Algorithm
from bayesfed.federated.core.options import LocalOptions
from bayesfed.federated.core.protocols import Fit
from bayesfed.federated.core.seams import Around
from bayesfed.keys import Key
from bayesfed.trees import Tree


def byzantine(algorithm: Algorithm, clients: Collection[str], factor: float) -> Algorithm:
    """Return the algorithm with some clients that send their change multiplied by a factor: -1
    flips its sign, 100 scales it.

    Parameters
    ----------
    algorithm
        The algorithm to attack.
    clients
        Names of the Byzantine clients.
    factor
        The factor.
    """
    return replace(
        algorithm,
        phases=tuple(
            replace(phase, local=Byzantine(phase.local, frozenset(clients), factor))
            for phase in algorithm.phases
        ),
    )


@dataclass(frozen=True)
class Byzantine(Around):
    """A local step around another one; some clients send a multiple of their result.

    Parameters
    ----------
    local
        The inner local step.
    clients
        Names of the Byzantine clients.
    factor
        The factor.
    """

    clients: frozenset[str]
    factor: float

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Fit, then multiply the change; values are multiplied relative to the message."""
        fit = self.local.fit(message, memory, data, key, options)
        # The path of a client's key is phase, round, client.
        if key.path[2] not in self.clients:
            return fit
        if self.kind == "value":
            return fit._replace(
                payload={
                    name: message[name] + self.factor * (leaf - message[name])
                    for name, leaf in fit.payload.items()
                }
            )
        return fit._replace(
            payload={name: self.factor * leaf for name, leaf in fit.payload.items()}
        )

"""Clients that do harm within the protocol: sound messages with chosen numbers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from bayesfed.data.dataset import Dataset
from bayesfed.federated.core.algorithm import Algorithm
from bayesfed.federated.core.protocols import Fit, Scalar
from bayesfed.federated.core.wrappers import Around
from bayesfed.keys import Key
from bayesfed.trees import Tree


def byzantine(algorithm: Algorithm, clients: Collection[str], factor: float) -> Algorithm:
    """Let some clients send their own change times a factor: -1 flips its signs, 100 scales it.

    Parameters
    ----------
    clients
        Names of those who do.
    """
    return replace(algorithm, phases=tuple(replace(phase, local=Byzantine(phase.local, frozenset(clients), factor)) for phase in algorithm.phases))


@dataclass(frozen=True)
class Byzantine(Around):
    """Another local, of whose clients some send a multiple of what they found."""

    clients: frozenset[str]
    factor: float

    def fit(self, message: Tree, memory: Tree, data: Dataset, key: Key, options: Mapping[str, Scalar]) -> Fit:
        """Fit, then multiply; values are measured from the message."""
        fit = self.local.fit(message, memory, data, key, options)
        # A client's stream is named by phase, round and client.
        if key.path[2] not in self.clients:
            return fit
        if self.kind == "value":
            return fit._replace(payload={name: message[name] + self.factor * (leaf - message[name]) for name, leaf in fit.payload.items()})
        return fit._replace(payload={name: self.factor * leaf for name, leaf in fit.payload.items()})

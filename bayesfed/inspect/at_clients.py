"""What belongs to single clients: the part of a posterior that stays with them, and the rows that they fitted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from bayesfed.data.dataset import Dataset
from bayesfed.errors import ArgumentError, PosteriorError, complain
from bayesfed.federated.core.algorithm import Partial, Posterior
from bayesfed.trees import Tree

Rows = Dataset | Mapping[str, Dataset] | None


@dataclass(frozen=True)
class Part:
    """Rows of one client, or of all, and the posterior that predicts them.

    Parameters
    ----------
    client
        Name of the client; empty for rows that are not given by client.
    data
        The rows; None for a client whose rows are not given.
    posterior
        The client's own posterior, or the server's where nothing stays with clients.
    """

    client: str
    data: Dataset | None
    posterior: Posterior

    @property
    def rows(self) -> Dataset:
        """The rows.

        Raises
        ------
        ArgumentError
            If there are none.
        """
        if self.data is None:
            raise ArgumentError(complain("rows", expected=f"those of {self.client!r}", actual="none", hint="a data set for each client by name"))
        return self.data


def stays(posterior: Posterior) -> tuple[str, ...]:
    """Return the names of what stays with clients."""
    return posterior.stays if isinstance(posterior, Partial) else ()


def own_posterior(posterior: Posterior, memories: Mapping[str, Tree], client: str, data: Dataset | None, where: str) -> Posterior:
    """Return the posterior of one client: its own where a part stays with it, else the server's.

    Raises
    ------
    ArgumentError
        If what the client keeps is not known, or does not fit its rows.
    """
    if not isinstance(posterior, Partial) or not posterior.stays:
        return posterior
    try:
        return posterior.at_client(memories.get(client, {}), data)
    except PosteriorError as problem:
        raise ArgumentError(f"{where}, client {client!r}: {problem}") from problem


def parts_of(posterior: Posterior, memories: Mapping[str, Tree], data: Rows, where: str, fitted: Mapping[str, Dataset] | None = None) -> list[Part]:
    """Return the parts of some rows, with the posterior that predicts each.

    Parameters
    ----------
    posterior
        The server's posterior.
    memories
        By client: what it keeps between rounds.
    data
        Rows, or those of every client by name; clients without rows are left out. None: every client's posterior without rows, where parts of it
        stay with clients.
    where
        Name of the caller, for errors.
    fitted
        By client: the rows that were fitted, from which posteriors without rows have their shapes.

    Raises
    ------
    ArgumentError
        If a part of the posterior stays with clients and rows are not given by client, or as `own_posterior`.
    """
    if data is None:
        shapes = fitted or {}
        return [Part(name, None, own_posterior(posterior, memories, name, shapes.get(name), where)) for name in sorted(memories) if stays(posterior)]
    if isinstance(data, Mapping):
        given = {name: part for name, part in data.items() if len(part)}
        return [Part(name, part, own_posterior(posterior, memories, name, part, where)) for name, part in given.items()]
    if kept := stays(posterior):
        expected = f"a data set for each client by name, since {kept[0]} stays with clients"
        hint = "{name: rows}; for clients that never took part, Predictive(result.posterior, inputs, key)"
        raise ArgumentError(complain(where, expected=expected, actual="one data set", hint=hint))
    return [Part("", data, posterior)] if len(data) else []


def are_fitted(data: Dataset, fitted: Iterable[Dataset]) -> np.ndarray:
    """Return which rows are among those that were fitted, ``(N,)`` booleans. Rows are compared by all their bits."""
    known = {digest for part in fitted for digest in _digests(part)}
    return np.array([digest in known for digest in _digests(data)], dtype=bool)


def _digests(data: Dataset) -> Iterable[bytes]:
    inputs, targets = (leaf.detach().cpu().contiguous().numpy() for leaf in (data.inputs, data.targets))
    for row in range(len(data)):
        yield blake2b(inputs[row].tobytes() + targets[row].tobytes(), digest_size=16).digest()

"""What belongs to single clients: the part of a posterior that stays with them, and the rows that
they fitted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate
from typing import Any

import numpy as np
import torch

from bayesfed.data import Dataset, concatenated
from bayesfed.data.population import check_classes
from bayesfed.errors import ArgumentError, PosteriorError
from bayesfed.federated import Posterior
from bayesfed.federated.core.posteriors import Partial
from bayesfed.inference.evaluation.predictive import Predictive, scores_together
from bayesfed.keys import Key
from bayesfed.trees import Tree

Rows = Dataset | Mapping[str, Dataset] | None
NEVER = (
    "; for clients that never took part, "
    "Predictive(result.posterior, inputs, key) of bayesfed.inference.evaluation.predictive"
)


NO_ROWS = Dataset(torch.zeros(0), torch.zeros(0))


@dataclass(frozen=True)
class Part:
    """Rows of one client, or of all, and the posterior that predicts them.

    Parameters
    ----------
    client
        Name of the client; empty for rows that are not given by client.
    rows
        The rows; none of a client whose rows are not given.
    posterior
        The client's own posterior, or the server's where nothing stays with clients.
    """

    client: str
    rows: Dataset
    posterior: Posterior


def stays(posterior: Posterior) -> tuple[str, ...]:
    """Return the names of what stays with clients."""
    return posterior.stays if isinstance(posterior, Partial) else ()


def own_posterior(
    posterior: Posterior,
    memories: Mapping[str, Tree],
    client: str,
    data: Dataset | None,
    where: str,
) -> Posterior:
    """Return the posterior of one client: its own where a part stays with it, else the server's.

    Raises
    ------
    ArgumentError
        If what the client keeps is not known, or does not fit its rows.
    """
    if not isinstance(posterior, Partial) or not posterior.stays:
        return posterior
    try:
        return posterior.at_client(memories.get(client, {}), data, client)
    except PosteriorError as problem:
        raise ArgumentError(f"{where}, client {client!r}: {problem}") from problem


def parts_of(
    posterior: Posterior,
    memories: Mapping[str, Tree],
    data: Rows,
    where: str,
    fitted: Mapping[str, Dataset] | None = None,
) -> list[Part]:
    """Return the parts of some rows, with the posterior that predicts each.

    Parameters
    ----------
    posterior
        The server's posterior.
    memories
        By client: what it keeps between rounds.
    data
        Rows, or those of every client by name; clients without rows are left out. None: every
        client's posterior without rows, where parts of it stay with clients.
    where
        Name of the caller, for errors.
    fitted
        By client: the rows that were fitted, from which posteriors without rows have their shapes.

    Raises
    ------
    ArgumentError
        If a part of the posterior stays with clients and rows are not given by client, or as
        `own_posterior`.
    """
    if data is None:
        shapes = fitted or {}
        return [
            Part(name, NO_ROWS, own_posterior(posterior, memories, name, shapes.get(name), where))
            for name in sorted(memories)
            if stays(posterior)
        ]
    if isinstance(data, Mapping):
        return [
            Part(name, rows, own_posterior(posterior, memories, name, rows, where))
            for name, rows in with_rows(data).items()
        ]
    if kept := stays(posterior):
        raise ArgumentError(
            where,
            f"a data set for each client by name, since {kept[0]} stays with clients",
            "one data set",
            f"{{name: rows}}{NEVER}",
        )
    return [Part("", data, posterior)] if len(data) else []


def scores_by_client(
    posterior: Posterior, memories: Mapping[str, Tree], data: Rows, key: Key, draws: int
) -> dict[str, dict[str, float]]:
    """Return the scores of each client's rows by its name, and of all rows together as "all", as
    `Result.scores` does.

    Raises
    ------
    ArgumentError
        If there are no rows, a client is called "all", or as `parts_of`.
    """
    together = pooled("Result.scores", data)
    given = with_rows(data) if isinstance(data, Mapping) else {}
    if "all" in given:
        raise ArgumentError(
            "Result.scores", "clients of other names", "'all'", "renaming that client"
        )
    ends = accumulate(map(len, given.values()))
    groups = {
        name: slice(end - len(part), end)
        for end, (name, part) in zip(ends, given.items(), strict=True)
    } | {"all": slice(None)}
    parts = [(posterior, together)]
    if stays(posterior):
        owns = parts_of(posterior, memories, data, "Result.scores")
        parts = [(part.posterior, part.rows) for part in owns]
    scored = [(Predictive(one, rows.inputs, key, count=draws), rows.targets) for one, rows in parts]
    return scores_together(scored, groups)


def with_rows(data: Mapping[str, Dataset]) -> dict[str, Dataset]:
    """Return the data of the clients that have rows."""
    return {name: rows for name, rows in data.items() if len(rows)}


def check_rows(where: str, data: object, fitted: Mapping[str, Dataset] | None = None) -> None:
    """Raise `ArgumentError` unless the class numbers of rows are those of the rows that were
    fitted.
    """
    scored: dict[str, Any] = dict(data) if isinstance(data, Mapping) else {"these rows": data}
    if fitted and data is not None:
        check_classes(where, fitted, scored)


def pooled(where: str, data: Rows) -> Dataset:
    """Return all rows of all clients as one set.

    Raises
    ------
    ArgumentError
        If there are none.
    """
    rows = all_rows(data)
    if rows is None or not len(rows):
        raise ArgumentError(where, "at least one row", "none", "a test set, or clients with rows")
    return rows


def all_rows(data: Rows) -> Dataset | None:
    """Return the rows of all clients as one data set, in their order; None if there are none."""
    if not isinstance(data, Mapping):
        return data
    parts = with_rows(data).values()
    return concatenated([*parts]) if parts else None


def are_fitted(data: Dataset, fitted: Iterable[Dataset]) -> np.ndarray:
    """Return which rows are among those that were fitted, ``(N,)`` booleans. Rows are compared by
    all their bits.
    """
    known = {digest for part in fitted for digest in _digests(part)}
    return np.array([digest in known for digest in _digests(data)], dtype=bool)


def _digests(data: Dataset) -> Iterable[bytes]:
    inputs, targets = (
        leaf.detach().cpu().contiguous().numpy() for leaf in (data.inputs, data.targets)
    )
    for row in range(len(data)):
        yield blake2b(inputs[row].tobytes() + targets[row].tobytes(), digest_size=16).digest()

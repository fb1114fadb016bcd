"""Rows split into those to train and those to test on: of one set, as an experiment file says in
``[data]``, of every client, or whole clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import torch

from bayesfed.data.dataset import Dataset
from bayesfed.data.partition import held_out
from bayesfed.data.population import Population
from bayesfed.data.texts.texts import Texts
from bayesfed.data.texts.tokens import tokenised
from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import PART, Role, a, checked
from bayesfed.keys import Key

__all__ = ["held_out_rows", "split_clients", "split_rows", "split_texts"]


@checked()
def held_out_rows(data: Dataset, share: float, key: Key) -> tuple[Dataset, Dataset]:
    """Return (train, test): data sets, with `share` of the rows of every class and domain in the
    test set, rounded to the nearest row.

    Parameters
    ----------
    data
        The rows to split. Targets that are numbers make one class.
    share
        Share of the test set, between 0 and 1.
    key
        Key of the draw.

    Raises
    ------
    ArgumentError
        If `data` is no data set, or `share` is not between 0 and 1.
    """
    labels = (
        [0] * len(data)
        if data.targets.is_floating_point()
        else [int(one) for one in data.targets.reshape(len(data), -1)[:, 0]]
    )
    strata: list[str | int] = (
        [f"{label} {domain}" for label, domain in zip(labels, data.domains, strict=True)]
        if data.domains
        else [*labels]
    )
    train, test = held_out(strata, share, key)
    return data[train], data[test]


Clients = dict[str, Dataset]
Rows = TypeVar("Rows", Dataset, Clients, Mapping[str, Dataset])


@checked(rows=a((Dataset, Mapping), "a data set, or one for each client by name", "bf.digits()[0]"))
def split_rows(rows: Rows, share: float = 0.2, *, key: Key | None = None) -> tuple[Rows, Rows]:
    """Hold out a share of the rows to test on, of every class alike; of a mapping of clients, a
    share of each client's rows.

    Parameters
    ----------
    rows
        One data set, or a data set for each client by name.
    share
        Share of the rows that are held out, between 0 and 1; rounded to whole rows for each class.
    key
        Key of the draw. Default: ``Key(0, "rows")``.

    Returns
    -------
    tuple
        Rows to train on and rows to test on, each of the form of `rows`. A client with few rows may
        have none to test on.

    Raises
    ------
    ArgumentError
        If `share` is not between 0 and 1.

    Examples
    --------
    >>> train, test = split_rows(clients, 0.25)
    >>> run(fed_per(net), train, rounds=40).personal_scores(test)
    """
    key = key or Key(0, "rows")
    if isinstance(rows, Dataset):
        return held_out_rows(rows, share, key)
    parts = {name: held_out_rows(own, share, key.child(name)) for name, own in rows.items()}
    train, test = ({name: part[side] for name, part in parts.items()} for side in (0, 1))
    return train, test


Given = TypeVar("Given", Population, Clients)


@checked(
    clients=Role(
        lambda clients: isinstance(clients, Mapping),
        "a data set for each client by name",
        "bf.federate(train, parts)",
    ),
    share=PART,
)
def split_clients(
    clients: Given, share: float = 0.2, *, key: Key | None = None
) -> tuple[Given, Given]:
    """Hold out whole clients, with all their rows: to test a model on clients that it never met.

    Parameters
    ----------
    clients
        A data set for each client by name, or a `Population`, of which nothing is loaded.
    share
        Share of the clients that are held out, between 0 and 1; at least one client is held out and
        one is not.
    key
        Key of the draw. Default: ``Key(0, "clients")``.

    Returns
    -------
    tuple
        Clients to train on and unseen clients, each of the form of `clients`.

    Raises
    ------
    ArgumentError
        If `share` is not between 0 and 1, or there are fewer than two clients.

    Examples
    --------
    >>> seen, unseen = split_clients(clients, 0.2)
    >>> run(fed_avg(net), seen, rounds=40, test=concatenated(list(unseen.values())))
    """
    if len(clients) < 2:
        raise ArgumentError(
            "split_clients", "at least two clients", len(clients), "split_rows(clients, 0.2)"
        )
    count = min(max(1, round(share * len(clients))), len(clients) - 1)
    order = torch.randperm(len(clients), generator=(key or Key(0, "clients")).generator()).tolist()
    sides = sorted(order[count:]), sorted(order[:count])
    if isinstance(clients, Population):
        return clients.part(sides[0]), clients.part(sides[1])
    names = sorted(clients)
    seen, unseen = ({names[place]: clients[names[place]] for place in side} for side in sides)
    return seen, unseen


def split_texts(
    texts: Texts,
    tokenizer: str | Path,
    key: Key,
    *,
    share: float = 0.2,
    length: int = 64,
    cache: str | Path | None = None,
) -> tuple[Dataset, Dataset]:
    """Hold out a share of the texts to test on, of every class and domain alike, and turn both into
    tokens.

    Parameters
    ----------
    tokenizer, length, cache
        As of `tokenised`.

    Raises
    ------
    ArgumentError, DataError, MissingExtraError
        As `tokenised` and `Texts.split`.
    """
    train, test = texts.split(share, key)
    return tokenised(train, tokenizer, length=length, cache=cache), tokenised(
        test, tokenizer, length=length, cache=cache
    )

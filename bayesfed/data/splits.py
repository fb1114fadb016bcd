"""Rows split into those to train and those to test on: of one set, as an experiment file says in ``[data]``, or of every client."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, overload

from bayesfed.data.dataset import Dataset
from bayesfed.data.partition import held_out
from bayesfed.data.texts.texts import Texts
from bayesfed.data.texts.tokens import tokenised
from bayesfed.errors.checks import a, check
from bayesfed.keys import Key

__all__ = ["held_out_rows", "split_rows", "split_texts"]


def held_out_rows(data: Dataset, share: float, key: Key) -> tuple[Dataset, Dataset]:
    """Return (train, test): data sets, with `share` of the rows of every class and domain in the test set, rounded to the nearest row.

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
    check("held_out_rows, data", data, a(Dataset, "a data set", "Dataset(inputs, targets)"))
    labels = [0] * len(data) if data.targets.is_floating_point() else [int(one) for one in data.targets.reshape(len(data), -1)[:, 0]]
    strata: list[str | int] = [f"{label} {domain}" for label, domain in zip(labels, data.domains, strict=True)] if data.domains else [*labels]
    train, test = held_out(strata, share, key)
    return data[train], data[test]


Clients = dict[str, Dataset]


@overload
def split_rows(rows: Dataset, share: float = 0.2, *, key: Key) -> tuple[Dataset, Dataset]: ...


@overload
def split_rows(rows: Mapping[str, Dataset], share: float = 0.2, *, key: Key | None = None) -> tuple[Clients, Clients]: ...


def split_rows(rows: Any, share: float = 0.2, *, key: Key | None = None) -> Any:
    """Hold out a share of the rows to test on, of every class alike; of a mapping of clients, a share of each client's rows.

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
        Rows to train on and rows to test on, each of the form of `rows`. A client with few rows may have none to test on.

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
    if isinstance(rows, Mapping):
        parts = {name: split_rows(own, share, key=key.child(name)) for name, own in rows.items()}
        return {name: train for name, (train, _) in parts.items()}, {name: test for name, (_, test) in parts.items()}
    return held_out_rows(rows, share, key)


def split_texts(
    texts: Texts, tokenizer: str | Path, key: Key, *, share: float = 0.2, length: int = 64, cache: str | Path | None = None
) -> tuple[Dataset, Dataset]:
    """Hold out a share of the texts to test on, of every class and domain alike, and turn both into tokens.

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
    return tokenised(train, tokenizer, length=length, cache=cache), tokenised(test, tokenizer, length=length, cache=cache)

"""Rows that come as one set, split into those to train and those to test on: what an experiment file says in ``[data]``."""

from __future__ import annotations

from pathlib import Path

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


def split_rows(rows: Dataset, key: Key, *, share: float = 0.2) -> tuple[Dataset, Dataset]:
    """Hold out a share of the rows to test on, of every class and domain alike: `held_out_rows` as an experiment file calls it.

    Raises
    ------
    ArgumentError
        If `share` is not between 0 and 1.
    """
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

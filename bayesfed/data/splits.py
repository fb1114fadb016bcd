"""Rows that come as one set, split into those to train and those to test on: what an experiment file says in ``[data]``."""

from __future__ import annotations

from pathlib import Path

from bayesfed.data.dataset import Dataset
from bayesfed.data.partition import held_out
from bayesfed.data.texts.texts import Texts
from bayesfed.data.texts.tokens import tokenised
from bayesfed.keys import Key

__all__ = ["split_rows", "split_texts"]


def split_rows(rows: Dataset, key: Key, *, share: float = 0.2) -> tuple[Dataset, Dataset]:
    """Hold out a share of the rows to test on, of every class alike.

    Raises
    ------
    ArgumentError
        If `share` is not between 0 and 1.
    """
    strata = [0] * len(rows) if rows.targets.is_floating_point() else [int(one) for one in rows.targets.reshape(len(rows), -1)[:, 0]]
    train, test = held_out(strata, share, key)
    return rows[train], rows[test]


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

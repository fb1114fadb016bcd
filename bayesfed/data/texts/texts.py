"""`Texts`: labelled texts of several domains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesfed.data.partition import held_out
from bayesfed.errors import DataError
from bayesfed.keys import Key


@dataclass(frozen=True)
class Texts:
    """N texts, each with a class label and the name of its domain.

    Parameters
    ----------
    texts
        N strings, none of them blank.
    labels
        Class labels ``(N,)``, integers from 0.
    domains
        N names of domains, for partitions.

    Raises
    ------
    DataError
        If the lengths differ, a text is blank, or labels are not integers from 0.
    """

    texts: Sequence[str]
    labels: Tensor
    domains: Sequence[str]

    def __post_init__(self) -> None:
        lengths = (
            len(self.texts),
            len(self.labels) if self.labels.ndim == 1 else -1,
            len(self.domains),
        )
        if len(set(lengths)) != 1:
            actual = (
                f"{lengths[0]} texts, labels {tuple(self.labels.shape)} and {lengths[2]} domains"
            )
            raise DataError(
                "Texts",
                "a label and a domain for every text",
                actual,
                "leaving out texts that have none",
            )
        if self.labels.is_floating_point() or (self.labels.numel() and int(self.labels.min()) < 0):
            raise DataError("Texts labels", "integers from 0", self.labels[:5], "labels.long()")
        if blank := [row for row, text in enumerate(self.texts) if not text.strip()]:
            raise DataError(
                "Texts", "texts with words", f"blank ones in rows {blank[:5]}", "leaving them out"
            )

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, rows: Tensor) -> Texts:
        chosen = rows.tolist()
        return Texts(
            [self.texts[row] for row in chosen],
            self.labels[rows],
            [self.domains[row] for row in chosen],
        )

    def split(self, share: float, key: Key) -> tuple[Texts, Texts]:
        """Return (train, test) with `share` of every class of every domain in the test set.

        A text that occurs more than once is in one of them only, so that no text of the test set is
        trained on.

        Raises
        ------
        ArgumentError
            If `share` is not between 0 and 1.
        """
        first: dict[str, int] = {}
        for row, text in enumerate(self.texts):
            first.setdefault(text, row)
        _, test = held_out(
            [f"{self.domains[row]}/{int(self.labels[row])}" for row in first.values()], share, key
        )
        names = list(first)
        held = {names[place] for place in test.tolist()}
        tested = torch.tensor([text in held for text in self.texts], dtype=torch.bool)
        return self[(~tested).nonzero()[:, 0]], self[tested.nonzero()[:, 0]]

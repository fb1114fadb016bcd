r"""`Texts`, labelled texts of several domains; and `sentiment`, sentences with the mean of twenty
people's ratings, from four domains (Hutto and Gilbert, 2014, VADER).

The sentences are part of the source distribution of vaderSentiment: one file for each domain, each
line ``id TAB mean rating from -4 to 4 TAB text``::

    pip download --no-deps --no-binary :all: vaderSentiment==3.3.2
    tar xzOf vaderSentiment-3.3.2.tar.gz \\
        vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz | tar xz

==========  ============================================  ======
movies      Rotten Tomatoes reviews, by sentence          10,605
products    Amazon reviews, by sentence                    3,708
tweets      Twitter                                        4,200
editorials  New York Times editorials, by sentence         5,190
==========  ============================================  ======

The ids of products and editorials are ``document_sentence``: sentences of one of 300 reviews or 498
editorials have an author in common.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from bayesfed.data.arrays import as_tensor
from bayesfed.data.partition import held_out
from bayesfed.errors import ArgumentError, DataError, LocalText
from bayesfed.errors.checks import Role, checked
from bayesfed.errors.plurals import plural
from bayesfed.keys import Key


@dataclass(frozen=True)
class Texts:
    """N texts or pairs of texts, each with a class label and the name of its domain.

    Parameters
    ----------
    texts
        N strings, or N tuples of two, none of them blank.
    labels
        Class labels ``(N,)``, integers from 0: a tensor, an array or a series.
    domains
        N names of domains, for partitions.

    Raises
    ------
    DataError
        If the lengths differ, rows are not all texts or all pairs, a text is blank, or labels are
        no tensor, array or series of integers from 0.
    """

    texts: Sequence[str | tuple[str, str]]
    labels: Tensor
    domains: Sequence[str]

    def __post_init__(self) -> None:
        vars(self).update(labels=as_tensor(self.labels, "Texts labels"))
        lengths = (
            len(self.texts),
            len(self.labels) if self.labels.ndim == 1 else -1,
            len(self.domains),
        )
        if len(set(lengths)) != 1:
            raise DataError(
                "Texts",
                "a label and a domain for every text",
                f"{plural(lengths[0], 'text')}, labels {tuple(self.labels.shape)} "
                f"and {plural(lengths[2], 'domain')}",
                "leaving out texts that have none",
            )
        if self.labels.is_floating_point() or (self.labels.numel() and int(self.labels.min()) < 0):
            raise DataError("Texts labels", "integers from 0", self.labels[:5], "labels.long()")
        rows = [text if isinstance(text, tuple) else (text,) for text in self.texts]
        width = min(len(rows[0]), 2) if rows else 1
        if others := [
            number
            for number, row in enumerate(rows)
            if len(row) != width or not all(isinstance(one, str) and one.strip() for one in row)
        ]:
            raise DataError(
                "Texts",
                "texts with words, or tuples of two for pairs",
                f"others in rows {others[:5]}",
                "leaving them out, list(zip(first, second)) for pairs",
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
        first: dict[str | tuple[str, str], int] = {}
        for row, text in enumerate(self.texts):
            first.setdefault(text, row)
        _, test = held_out(
            [f"{self.domains[row]}/{int(self.labels[row])}" for row in first.values()], share, key
        )
        names = list(first)
        held = {names[place] for place in test.tolist()}
        tested = torch.tensor([text in held for text in self.texts], dtype=torch.bool)
        return self[(~tested).nonzero()[:, 0]], self[tested.nonzero()[:, 0]]


_FILES = {
    "movies": "movieReviewSnippets_GroundTruth.txt",
    "products": "amazonReviewSnippets_GroundTruth.txt",
    "tweets": "tweets_GroundTruth.txt",
    "editorials": "nytEditorialSnippets_GroundTruth.txt",
}
By = Literal["domain", "document"]
_ARCHIVE = "vaderSentiment-3.3.2"
_COMMAND = (
    "`pip download --no-deps --no-binary :all: vaderSentiment==3.3.2 && "
    f"tar xzOf {_ARCHIVE}.tar.gz {_ARCHIVE}/additional_resources/hutto_ICWSM_2014.tar.gz | "
    "tar xz`, then the folder hutto_ICWSM_2014"
)


@checked(threshold=Role(lambda rating: 0 <= rating < 4, "a number from 0 to 4", "0.5"))
def sentiment(
    folder: str | Path,
    *,
    domains: Sequence[str] = tuple(_FILES),
    by: By = "domain",
    threshold: float = 0.0,
    neutral: bool = False,
) -> Texts:
    """Read rated sentences as two classes: 1 where the mean rating is above `threshold`, 0 where it
    is below ``-threshold``; or as three.

    Parameters
    ----------
    folder
        The folder with the files ``*_GroundTruth.txt``.
    domains
        Some of "movies", "products", "tweets" and "editorials", in the order of the rows.
    by
        What `Texts.domains` names. "document": reviews and editorials apart, as "products/12";
        sentences of movies and tweets, which have no document in common, stay in "movies" and
        "tweets".
    threshold
        Rows with ratings from ``-threshold`` to ``threshold`` are left out as undecided, unless
        `neutral`. At 0 these are 383 of 23,703.
    neutral
        Whether these rows are a class of their own: 0 is then negative, 1 neutral and 2 positive.

    Raises
    ------
    ArgumentError
        If there are no domains, a domain is unknown or occurs twice, `by` is unknown, or the
        threshold is not from 0 to 4.
    DataError
        If a file is missing (the message names the command that gets it) a
        line has no rating from -4 to 4 or no text (the message names file and line), or no rows are
        left.
    """
    if not domains or not set(domains) <= _FILES.keys() or len(set(domains)) != len(domains):
        raise ArgumentError(
            "sentiment, domains", f"some of {list(_FILES)}", domains, "['movies', 'tweets']"
        )
    folder = Path(folder)
    if missing := [_FILES[name] for name in domains if not (folder / _FILES[name]).is_file()]:
        raise DataError(LocalText(folder), ", ".join(missing), "no such files", _COMMAND)
    rows = [
        (
            text,
            _label(rating, threshold, neutral),
            f"{name}/{document}" if document and by == "document" else name,
        )
        for name in domains
        for document, rating, text in _rated(folder / _FILES[name])
        if neutral or rating > threshold or rating < -threshold
    ]
    if not rows:
        raise DataError(
            LocalText(folder), f"ratings beyond {threshold}", "none", "a smaller threshold"
        )
    texts, labels, homes = zip(*rows, strict=True)
    return Texts(texts, torch.tensor(labels), homes)


def _label(rating: float, threshold: float, neutral: bool) -> int:
    if neutral:
        return 1 + int(rating > threshold) - int(rating < -threshold)
    return int(rating > 0)


def _rated(path: Path) -> Iterator[tuple[str, float, str]]:
    """Yield the document, the rating and the text of each line; the document is "" where lines have
    none.
    """
    lines = path.read_bytes().splitlines()
    for number, line in enumerate(lines, 1):
        try:
            identity, rating, text = line.decode().split("\t")
            value = float(rating)
            if not -4 <= value <= 4:
                raise ValueError(f"a rating of {rating}")
            if not text.strip():
                raise ValueError("no text")
        except ValueError as problem:
            raise DataError(
                LocalText(f"{path}, line {number}"),
                "an id, a rating from -4 to 4 and a text in UTF-8, by tabs",
                problem,
                "the published file",
            ) from problem
        yield identity.rpartition("_")[0], value, text.strip()

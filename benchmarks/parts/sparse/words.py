"""Sentences as bags of words: of four sources, each rated good or bad."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import torch
from parts.sparse.tasks import CLIENTS, Task

import bayesfed as bf

# Words of the vocabulary; sentences to train and to test on.
VOCABULARY, ROWS, TESTED = 3000, 6000, 2000
WORD = re.compile(r"[a-z']+")


def words(seed: int, folder: Path) -> Task:
    """Read rated sentences: the class is source and sign of the rating, eight in all; an input is 1
    where its word is in the sentence.
    """
    found = bf.data.sentiment(folder)
    sources = sorted(set(found.domains))
    order = torch.randperm(len(found), generator=bf.Key(seed, "words").generator())
    bags = [set(WORD.findall(found.texts[row].lower())) for row in order[: ROWS + TESTED].tolist()]
    vocabulary = known(bags[:ROWS])
    inputs = torch.zeros(len(bags), VOCABULARY)
    for row, bag in enumerate(bags):
        inputs[row, [vocabulary[word] for word in bag if word in vocabulary]] = 1.0
    targets = torch.tensor(
        [2 * sources.index(found.domains[row]) + int(found.labels[row]) for row in order.tolist()]
    )[: len(bags)]
    train, test = (
        bf.Dataset(inputs[part], targets[part]) for part in (slice(0, ROWS), slice(ROWS, None))
    )
    parts = bf.dirichlet(train.targets, CLIENTS, 0.5, bf.Key(seed, "partition"))
    return Task(bf.federate(train, parts), test, (VOCABULARY, 64, 2 * len(sources)))


def known(bags: Iterable[set[str]]) -> dict[str, int]:
    """Return the numbers of the words that most sentences have."""
    counts = Counter(word for bag in bags for word in bag)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return {word: number for number, word in enumerate(ranked[:VOCABULARY])}

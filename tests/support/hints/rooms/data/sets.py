"""Messages of `bayesfed.data` itself: data sets, partitions, populations, what is drawn or made."""

import math
import tempfile
from dataclasses import replace
from unittest import mock

import numpy as np
import pandas as pd
import torch

import bayesfed as bf
from bayesfed.data import (
    Population,
    concatenated,
    corrupted,
    label_shifted,
    power_law,
    split_clients,
    split_rows,
    synthetic,
)
from tests.house.wrong_calls.given import DATA, KEY, done, go

COMPLETE = tuple(
    f"bayesfed/data/{name}.py"
    for name in (
        *("arrays", "corrupted", "dataset", "files", "packed", "partition", "population"),
        *("splits", "synthetic"),
    )
)
frame = pd.DataFrame({"x": [1.0, 2.0], **{name: ["a", "b"] for name in "abcde"}, 7: ["a", "b"]})
HOLES = pd.DataFrame({"x": [1.0, math.nan, 3.0], "y": ["a", None, "b"]})
MASKED = np.ma.masked_invalid([[1.0], [math.nan]])
names = ["b", "a"]
rows = {"a": DATA[:2], "b": DATA[2:]}
LABELS = torch.tensor([0, 1])


def made(inputs=None, targets=LABELS, **changes):
    """Make a data set of two rows."""
    return bf.Dataset(torch.zeros(2, 1) if inputs is None else inputs, targets, **changes)


def framed(values):
    """Make a data set of all columns of a frame."""
    return bf.Dataset(values, torch.zeros(len(values)))


def images(change=lambda pixels: pixels):
    """Blur images of two rows and three columns, changed before."""
    return corrupted(made(change(torch.rand(2, 2, 3))), "blur")


def shifted(*shares, count=6):
    """Draw rows of three classes in these shares."""
    return label_shifted(bf.Dataset(torch.zeros(count, 1), torch.arange(count) % 3), shares, KEY)


def population(given=2, samples=2, load=lambda name: DATA[:2]):
    """Load the first client of a population."""
    made = Population(given, samples, load)
    return made[made.names[0]]


def without_sklearn():
    """Ask for digits where scikit-learn is not installed."""
    with mock.patch.object(synthetic, "find_spec", return_value=None):
        bf.digits()


def renamed(*classes):
    """Return two data sets with these names of their classes."""
    return [replace(DATA, classes=tuple(one)) for one in classes]


CASES = [
    (
        lambda: made({"a": torch.zeros(2, 1), "b": torch.zeros(3)}),
        "the same rows of each",
        lambda: made({"a": torch.zeros(2, 1), "b": torch.zeros(2)}),
    ),
    (
        lambda: made((torch.tensor([1.0, math.nan]), torch.zeros(2))),
        "dropping or imputing those rows",
        lambda: made((torch.ones(2), torch.zeros(2))),
    ),
    # Arrays and frames.
    (lambda: made([[1.0], [2.0]]), "torch.tensor(rows)", lambda: made(torch.tensor([[1.0], [2]]))),
    (
        lambda: made(np.array([["1"], ["2"]]), np.array([0, 1])),
        "numbers in place of texts",
        lambda: made(np.array([["1"], ["2"]]).astype(float), np.array([0, 1])),
    ),
    (
        lambda: made(HOLES[["x"]].fillna(0), HOLES["y"]),
        "frame.dropna()",
        lambda: made(HOLES.dropna()[["x"]], HOLES.dropna()["y"]),
    ),
    (
        lambda: made(frame[["x"]], frame[["a", "b"]]),
        "one column of labels",
        lambda: made(frame[["x"]], frame["a"]),
    ),
    (framed, frame),
    (lambda: framed(HOLES[["x"]]), "frame.dropna()", lambda: framed(HOLES[["x"]].dropna())),
    (
        lambda: framed(HOLES[["x"]]),
        "frame.fillna(frame.mean())",
        lambda: framed(HOLES[["x"]].fillna(HOLES[["x"]].mean())),
    ),
    (lambda: framed(MASKED), "leaving out such rows", lambda: framed(MASKED[:1])),
    (lambda: framed(MASKED), "values.filled(...)", lambda: framed(MASKED.filled(0.0))),
    # Data sets.
    (
        lambda: made(torch.ones(2, 1, dtype=torch.complex64)),
        "torch.view_as_real(values)",
        lambda: made(torch.view_as_real(torch.ones(2, 1, dtype=torch.complex64))),
    ),
    (lambda: made(classes=("a", "a")), "one for each", lambda: made(classes=("a", "b"))),
    (lambda: made(targets=LABELS[:1]), "the same rows of both", made),
    (
        lambda: made(torch.tensor([[1.0], [math.nan]])),
        "dropping",
        lambda: made(torch.tensor([[1.0]]), LABELS[:1]),
    ),
    (
        lambda: made(targets=LABELS - 1),
        "relabelling",
        lambda: made(targets=(LABELS - 1).unique(return_inverse=True)[1]),
    ),
    (
        lambda: made(classes=("a",)),
        "a name for every class",
        lambda: made(classes=("a", "b")),
    ),
    (lambda classes: made(targets=torch.zeros(2), classes=classes), ("a", "b")),
    (lambda domains: made(domains=domains), ("a",)),
    (lambda: DATA[[0, 2]], "data[torch.tensor([0, 2])]", lambda: DATA[torch.tensor([0, 2])]),
    (lambda: DATA[:5, 0], "data[:5]", lambda: DATA[:5]),
    (DATA.to, "nowhere"),
    (
        lambda: concatenated([DATA, made()]),
        "the same features",
        lambda: concatenated([DATA[:1], DATA]),
    ),
    (lambda: concatenated([]), "at least one set", lambda: concatenated([DATA])),
    (
        lambda: concatenated(renamed("abc", "abd")),
        "classes=train.classes when reading",
        lambda: concatenated(renamed("abc", "abc")),
    ),
    (
        lambda: done().save_model("/proc/nothing"),
        "a path in a folder that can be written to",
        lambda: done().save_model(f"{tempfile.mkdtemp()}/model.safetensors"),
    ),
    # Partitions.
    (
        lambda: bf.federate(DATA, {"a": LABELS * 0}),
        "rows.unique()",
        lambda: bf.federate(DATA, {"a": (LABELS * 0).unique()}),
    ),
    (lambda given: bf.federate(DATA, {"a": given}), [0.5]),
    (
        lambda: bf.federate(DATA, bf.iid(9, 2, KEY)),
        "a partition of 6 rows",
        lambda: bf.federate(DATA, bf.iid(6, 2, KEY)),
    ),
    (lambda clients: bf.iid(60, clients, KEY), 0),
    (
        lambda: bf.iid(2, 60, KEY),
        "iid(rows=60, clients=2, ...) if the two are swapped",
        lambda: bf.iid(rows=60, clients=2, key=KEY),
    ),
    (
        lambda: bf.federate(DATA, [[0, 1], [1, 2]]),
        "parts without common rows, such as iid(len(train), 10, key)",
        lambda: bf.federate(DATA, bf.iid(6, 2, KEY)),
    ),
    (
        lambda: bf.iid(6, 4, KEY, minimum=2),
        "a smaller minimum",
        lambda: bf.iid(6, 4, KEY, minimum=1),
    ),
    (
        lambda: split_clients({"a": DATA}),
        "split_rows(clients, 0.2)",
        lambda: split_rows({"a": DATA}, 0.2),
    ),
    # Populations.
    (lambda load: Population(2, 2, load), 5),
    (lambda given: Population(given, 2, len), "client"),
    (
        lambda: population(["a", "b"], {"a": 2}),
        "{name: 16, ...}",
        lambda: population(["a", "b"], {"a": 2, "b": 2}),
    ),
    (
        lambda: Population(names, [2], len),
        "[len(rows[name]) for name in names]",
        lambda: Population(names, [len(rows[name]) for name in names], len),
    ),
    (lambda given: Population(given, 2, len), ["a", "b", "a"]),
    (
        lambda: bf.federate(DATA, {7: LABELS}),
        "f'{number:07d}'",
        lambda: bf.federate(DATA, {f"{7:07d}": LABELS}),
    ),
    (lambda: population(samples=3), "samples that count its rows", population),
    (
        lambda: population(load=lambda name: DATA[:2].inputs),
        "a load that returns one",
        population,
    ),
    (
        lambda: go(clients=dict(zip("ab", renamed("abc", "abd"), strict=True))),
        "classes=('a', 'b', 'c', 'd') when reading",
        lambda: go(clients=dict(zip("ab", renamed("abcd", "abcd"), strict=True))),
    ),
    # What is drawn and made.
    (lambda: shifted(1.0, 1.0), "a share a class", lambda: shifted(1.0, 1.0, 1.0)),
    (
        lambda: shifted(1.0, 1.0, 1.0, 1.0),
        "shares of classes that have rows",
        lambda: shifted(1.0, 1.0, 1.0, 0.0),
    ),
    (lambda: shifted(0.3, 1.0, 1.0), "more rows", lambda: shifted(0.3, 1.0, 1.0, count=30)),
    (
        lambda: shifted(0.3, 1.0, 1.0),
        "shares that differ less",
        lambda: shifted(0.5, 1.0, 1.0),
    ),
    (
        lambda: images(lambda pixels: (pixels * 255).byte()),
        "scaling to 0..1",
        lambda: images(lambda pixels: (pixels * 255).byte() / 255),
    ),
    (
        lambda: images(lambda pixels: pixels.flatten(1)),
        "inputs.reshape(-1, H, W)",
        lambda: images(lambda pixels: pixels.flatten(1).reshape(-1, 2, 3)),
    ),
    (without_sklearn, "pip install 'bayesfed[examples]'", bf.digits),
    (lambda test: bf.digits(test=test), 0),
    (
        lambda: power_law(2, KEY, least=3, most=2),
        "least=1, most=1000",
        lambda: power_law(2, KEY, least=1, most=1000),
    ),
]

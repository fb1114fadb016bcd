"""Wrong calls of data."""

import math

import numpy as np
import torch

import bayesfed as bf
from bayesfed.data import shards
from bayesfed.errors import (
    ArgumentError,
    DataError,
)
from tests.house.wrong_calls.given import DATA, KEY, csv

WRONG = {
    "Dataset lists": (
        lambda: bf.Dataset([[1.0, 2.0]], [0]),
        DataError,
        "; try torch.tensor(rows), np.array(rows), or a",
    ),
    "Dataset numpy strings": (
        lambda: bf.Dataset(np.array([["a"]]), np.array([0])),
        DataError,
        "; try numbers in place of texts and missing v",
    ),
    "Dataset none": (
        lambda: bf.Dataset(None, None),
        DataError,
        "; try torch.tensor(rows), np.array(rows), or a",
    ),
    "Dataset lengths": (
        lambda: bf.Dataset(torch.zeros(3, 2), torch.zeros(2)),
        DataError,
        "; try the same rows of both",
    ),
    "Dataset scalar": (
        lambda: bf.Dataset(torch.tensor(1.0), torch.tensor(1)),
        DataError,
        "; try the same rows of both",
    ),
    "Dataset nan": (
        lambda: bf.Dataset(torch.tensor([[math.nan]]), torch.zeros(1)),
        DataError,
        "; try dropping or imputing those rows",
    ),
    "Dataset negative": (
        lambda: bf.Dataset(torch.zeros(1, 1), torch.tensor([-1])),
        DataError,
        "; try relabelling",
    ),
    "Dataset index int": (lambda: DATA[0], DataError, "; try data[:5], data[torch.tensor([0, 2])]"),
    "Dataset index list": (
        lambda: DATA[[0, 1]],
        DataError,
        "; try data[:5], data[torch.tensor([0, 2])]",
    ),
    "Dataset classes": (
        lambda: bf.Dataset(torch.zeros(2, 1), torch.tensor([0, 5]), classes=("x", "y")),
        DataError,
        "; try a name for every c",
    ),
    "Dataset domains": (
        lambda: bf.Dataset(torch.zeros(2, 1), torch.tensor([0, 1]), domains=("x",)),
        DataError,
        "; try domains=()",
    ),
    "iid data": (lambda: bf.iid(DATA, 2, KEY), ArgumentError, "; try len(train)"),
    "iid no key": (lambda: bf.iid(6, 2, 0), ArgumentError, "; try Key(0, 'purpose')"),
    "iid clients 0": (lambda: bf.iid(6, 0, KEY), ArgumentError, "; try clients=10"),
    "iid clients float": (
        lambda: bf.iid(6, 2.5, KEY),
        ArgumentError,
        "expected a whole number >= 0, found 2.5; try 1",
    ),
    "iid minimum": (lambda: bf.iid(6, 4, KEY, minimum=2), ArgumentError, "; try a smaller minimum"),
    "dirichlet data": (
        lambda: bf.dirichlet(DATA, 2, 0.5, KEY),
        ArgumentError,
        "; try train.targets",
    ),
    "dirichlet key": (
        lambda: bf.dirichlet(DATA.targets, 2, 0.5, 0),
        ArgumentError,
        "; try Key(0, 'purpose')",
    ),
    "dirichlet alpha": (lambda: bf.dirichlet(DATA.targets, 2, 0, KEY), ArgumentError, "; try 0.5"),
    "dirichlet alpha str": (
        lambda: bf.dirichlet(DATA.targets, 2, "0.5", KEY),
        ArgumentError,
        "; try 0.5",
    ),
    "dirichlet numbers": (
        lambda: bf.dirichlet(torch.randn(6), 2, 0.5, KEY),
        ArgumentError,
        "; try train.targets",
    ),
    "dirichlet list": (
        lambda: bf.dirichlet([0, 1, 2], 2, 0.5, KEY),
        ArgumentError,
        "; try train.targets",
    ),
    "shards": (
        lambda: shards(DATA.targets, 2, 0, KEY),
        ArgumentError,
        "per_client: expected a whole number >= 1, found 0; try 2",
    ),
    "federate swapped": (
        lambda: bf.federate(bf.iid(6, 2, KEY), DATA),
        ArgumentError,
        "; try iid(len(train), 4, Key(0))",
    ),
    "federate tensors": (
        lambda: bf.federate(DATA.inputs, bf.iid(6, 2, KEY)),
        ArgumentError,
        "; try Dataset(inputs, targets)",
    ),
    "federate out of range": (
        lambda: bf.federate(DATA, bf.iid(9, 2, KEY)),
        ArgumentError,
        "; try a partition of 6 rows",
    ),
    "federate int": (
        lambda: bf.federate(DATA, 2),
        ArgumentError,
        "; try iid(len(train), 4, Key(0))",
    ),
    "held_out share": (
        lambda: bf.held_out(DATA.targets.tolist(), 2, KEY),
        ArgumentError,
        "; try 0.2",
    ),
    "held_out dataset": (
        lambda: bf.held_out(DATA, 0.5, KEY),
        ArgumentError,
        "; try train.targets.tolist(), or split_rows(tr",
    ),
    "key float": (lambda: bf.Key(0.5), ArgumentError, "; try Key(0, 'fit', 3)"),
    "csv empty": (
        lambda: csv("x, y\n1, a\n, b\n"),
        DataError,
        "; try dropping or imputing empty cells, as",
    ),
    "csv label": (lambda: csv("x, z\n1, a\n"), DataError, "; try one of 'x', 'z'"),
    "csv no file": (
        lambda: bf.from_csv("nowhere.csv", label="y"),
        DataError,
        "; try a path that begins in",
    ),
    "csv frame": (
        lambda: bf.from_csv(None, label="y"),
        DataError,
        "; try Dataset(frame[columns], frame[label])",
    ),
    "npz none": (lambda: bf.data.from_npz("nowhere.npz"), DataError, "; try np.savez(path, ...)"),
}

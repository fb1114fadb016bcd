"""What runs, data sets and results say of metrics, classes, labels, rows and paths."""

import tempfile
from dataclasses import replace

import torch
from torch import nn

import bayesfed as bf
from bayesfed.federated import early_stop, evaluate, score
from tests.house.wrong_calls.given import DATA, TEST, done, go

COMPLETE = ("bayesfed/federated/engine/metrics.py",)
TWO = replace(DATA, targets=DATA.targets % 2)
A, B = replace(TWO, classes=("cat", "dog")), replace(TWO, classes=("cat", "fox"))
NUMBERS = replace(DATA, targets=DATA.inputs[:, :1])
LINE = nn.Linear(4, 1)
CODES = bf.Dataset(torch.randn(90, 4), torch.tensor([0, 5, 9]).repeat(30))
RING = bf.FactorGraph.grid((13, 13), 0.6, 0.6)


def wide(data):
    """Train a network of ten classes."""
    go(bf.fed_avg(nn.Linear(4, 10), training=bf.Training(steps=1)), {"a": data})


def last(*layers):
    """Train a network that ends with these layers."""
    go(bf.fed_avg(nn.Sequential(nn.Linear(4, 3), *layers), training=bf.Training(steps=1)))


def strips(**options):
    """Sum a grid."""
    bf.infer(RING, warn=False, **options)


def tagged(label):
    """Score tokens that all have this label."""
    rows = bf.Dataset(DATA.inputs, torch.full((len(DATA), 2), label))
    score(lambda inputs: torch.zeros(len(inputs), 2, 3), rows, likelihood=bf.models.Labels())


CASES = [
    (
        lambda: score(nn.Linear(4, 3), DATA, nn.functional.cross_entropy),
        "reduction='none'",
        lambda: score(nn.Linear(4, 3), DATA, nn.CrossEntropyLoss(reduction="none")),
    ),
    (lambda: score(LINE, DATA[:0]), "a test set", lambda: score(nn.Linear(4, 3), TEST)),
    (lambda: tagged(-100), "a test set", lambda: tagged(0)),
    (lambda: score(LINE, NUMBERS), "metric='mse'", lambda: score(LINE, NUMBERS, "mse")),
    (
        lambda: score(LINE, NUMBERS, "nll"),
        "metric=lambda outputs, targets: -Normal(sd=1.0).pointwise(outputs, targets)",
        lambda: score(LINE, NUMBERS, lambda o, t: -bf.Normal(sd=1.0).pointwise(o, t)),
    ),
    (
        lambda: score(nn.Linear(4, 3), DATA, "mse"),
        "metric='accuracy'",
        lambda: score(nn.Linear(4, 3), DATA, metric="accuracy"),
    ),
    (
        lambda: score(lambda inputs: inputs[:, None], DATA),
        "a metric of your own: (outputs, targets) -> one figure per row",
        lambda: score(lambda inputs: inputs[:, None], DATA, lambda o, t: o[:, 0, 0] - t),
    ),
    (
        lambda: go(callbacks=[early_stop("acuracy", patience=2)]),
        "evaluate(test, name='acuracy') before it",
        lambda: go(callbacks=[evaluate(TEST, name="acuracy"), early_stop("acuracy", patience=2)]),
    ),
    (
        lambda: go(clients={"a": A, "b": B}),
        "classes=('cat', 'dog', 'fox') when reading each of them",
        lambda: go(
            clients={
                name: replace(part, classes=("cat", "dog", "fox"))
                for name, part in {"a": A, "b": B}.items()
            }
        ),
    ),
    (
        lambda: wide(CODES),
        "labels.unique(return_inverse=True)[1] of all rows",
        lambda: wide(replace(CODES, targets=CODES.targets.unique(return_inverse=True)[1])),
    ),
    (
        lambda: bf.federate(DATA, {"a": torch.tensor([0, 0])}),
        "rows.unique()",
        lambda: bf.federate(DATA, {"a": torch.tensor([0, 0]).unique()}),
    ),
    (lambda rows: bf.federate(DATA, {"a": rows}), [0.5]),
    (
        lambda: last(nn.Softmax(1)),
        "the network without its last softmax",
        last,
    ),
    (
        lambda: bf.Training(steps=3, epochs=1.0),
        "Training(epochs=1.0)",
        lambda: bf.Training(epochs=1.0),
    ),
    (
        lambda: done().save("/proc/nothing"),
        "a path in a folder that can be written to",
        lambda: done().save(tempfile.mkdtemp()),
    ),
    (
        lambda: strips(method="bp", strip_rows=3),
        "method='strip'",
        lambda: strips(method="strip", strip_rows=3),
    ),
    (
        lambda: strips(method="bp", regions=[(0, 1)]),
        "no regions",
        lambda: strips(method="bp"),
    ),
]

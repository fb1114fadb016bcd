"""Wrong calls of results."""

from dataclasses import replace

import numpy as np
import torch

from bayesfed.errors import (
    ArgumentError,
    ClientError,
    DataError,
)
from tests.house.wrong_calls.given import (
    BINARY,
    DATA,
    TEST,
    done,
    go,
    rows,
    svi,
    svi_done,
    zeros_and_ones,
)

WRONG = {
    "final missing": (
        lambda: done().final("acuracy"),
        ArgumentError,
        "; try a callback that enters it",
    ),
    "final no test": (lambda: done().final("accuracy"), ArgumentError, "; try run(..., test=data)"),
    "posterior": (lambda: done().posterior, ArgumentError, "; try d_turbo_vbi"),
    "scores no posterior": (lambda: done().scores(TEST), ArgumentError, "; try d_turbo_vbi"),
    "svi whole numbers": (
        lambda: go(svi(zeros_and_ones), clients={"a": BINARY}),
        ClientError,
        "; try obs=targets.float() in a model",
    ),
    "scores width": (
        lambda: svi_done().scores(rows(3, 5)),
        DataError,
        "; try rows of the width and type that were fit",
    ),
    "scores labels": (
        lambda: svi_done().scores(replace(TEST, targets=torch.tensor([0, 1, 2, 7]))),
        DataError,
        "; try the labels of the classes that were fitted",
    ),
    "scores empty": (
        lambda: svi_done().scores(TEST[:0]),
        ArgumentError,
        "; try a test set, or clients with rows",
    ),
    "scores tuple": (
        lambda: svi_done().scores((TEST.inputs, TEST.targets)),
        ArgumentError,
        "; try Dataset(inputs, targets)",
    ),
    "scores draws": (lambda: svi_done().scores(TEST, draws=0), ArgumentError, "; try 100"),
    "predictive dataset": (
        lambda: svi_done().predictive(TEST),
        ArgumentError,
        "; try data.inputs, or torch.as_tensor(array)",
    ),
    "predictive numpy": (
        lambda: svi_done().predictive(TEST.inputs.numpy()),
        ArgumentError,
        "; try data.inputs, or torch.as_tensor(array)",
    ),
    "k_hat draws": (lambda: svi_done().k_hat(DATA, draws=5), ArgumentError, "; try 1,000 draws"),
    "k_hat no posterior": (lambda: done().k_hat(DATA), ArgumentError, "; try d_turbo_vbi"),
    "to_arviz draws": (
        lambda: svi_done().to_arviz(TEST, draws=0),
        ArgumentError,
        "; try draws=100",
    ),
    "to_arviz tensor": (
        lambda: svi_done().to_arviz(TEST.inputs, draws=1),
        ArgumentError,
        "; try Dataset(inputs, targets)",
    ),
    "belief": (lambda: done().belief, ArgumentError, "; try d_turbo_vbi"),
    "bits": (lambda: done().bits("sideways"), ArgumentError, "; try 'up'"),
    "table": (lambda: done().table(every=0), ArgumentError, "; try every=5"),
    "model width": (
        lambda: done().model(torch.zeros(2, 5)),
        DataError,
        "; try rows of the width and type that were trained on",
    ),
    "model numpy": (
        lambda: done().model(np.zeros((2, 4), np.float32)),
        DataError,
        "; try data.inputs, or torch.as_tensor(array)",
    ),
    "model dataset": (
        lambda: done().model(TEST),
        DataError,
        "; try data.inputs, or torch.as_tensor(array)",
    ),
    "model dtype": (
        lambda: done().model(torch.zeros(2, 4).double()),
        DataError,
        "as its parameters are, found a tensor (2, 4) of float64",
    ),
}

"""Wrong calls of training and of runs."""

import math
from dataclasses import replace

import torch

import bayesfed as bf
from bayesfed.errors import (
    ArgumentError,
    ClientError,
    DataError,
    KeywordError,
    TooFewClientsError,
)
from bayesfed.federated import checkpoint, early_stop, evaluate, score
from tests.house.wrong_calls.given import CLIENTS, DATA, KEY, TEST, avg, done, go, net, rows

WRONG = {
    "Training steps": (
        lambda: bf.Training(steps=2.5),
        ArgumentError,
        "expected a whole number >= 1, found 2.5; try 5",
    ),
    "Training steps 0": (
        lambda: bf.Training(steps=0),
        ArgumentError,
        "expected a whole number >= 1, found 0; try 50",
    ),
    "Training steps str": (
        lambda: bf.Training(steps="5"),
        ArgumentError,
        "expected a whole number >= 1, found '5'; try 5",
    ),
    "Training batch": (
        lambda: bf.Training(batch_size=0),
        ArgumentError,
        "expected a whole number >= 1, found 0; try 64",
    ),
    "Training optimiser": (
        lambda: bf.Training(optimiser=0.1),
        ArgumentError,
        "; try Sgd(0.05), Adam(1e-3)",
    ),
    "Training torch": (
        lambda: bf.Training(optimiser=torch.optim.SGD),
        ArgumentError,
        "; try Sgd(0.05), Adam(1e-3)",
    ),
    "Training optimiser class": (
        lambda: bf.Training(optimiser=bf.Sgd),
        ArgumentError,
        "; try Sgd(0.05), Adam(1e-3)",
    ),
    "Training optimizer": (
        lambda: bf.Training(optimizer=bf.Sgd(0.1)),
        KeywordError,
        "; try optimiser=Sgd(0.1)",
    ),
    "Training lr": (lambda: bf.Training(lr=0.1), KeywordError, "; try optimiser=Sgd(0.1)"),
    "Training schedule": (
        lambda: bf.Training(schedule=0.1),
        ArgumentError,
        "; try cosine(0.1, rounds)",
    ),
    "Training epochs": (
        lambda: bf.Training(epochs=0),
        ArgumentError,
        "expected a number in (0, inf), found 0; try 1.0",
    ),
    "Training epochs nan": (
        lambda: bf.Training(epochs=math.nan),
        ArgumentError,
        "expected a number in (0, inf), found nan; try 1.0",
    ),
    "Sgd rate": (lambda: bf.Sgd(-1), ArgumentError, "; try 1e-3"),
    "Sgd str": (lambda: bf.Sgd("0.1"), ArgumentError, "; try 1e-3"),
    "Adam": (lambda: bf.Adam(0), ArgumentError, "; try 1e-3"),
    "fleet count": (lambda: bf.fleet(4, KEY), ArgumentError, "; try ['name', ...]"),
    "Adam lr": (lambda: bf.Adam(lr=0.1), KeywordError, "; try learning_rate"),
    "series acc": (lambda: go(test=TEST).series("acc"), ArgumentError, "; try 'accuracy'"),
    "cosine": (lambda: bf.federated.cosine(0.1, 0), ArgumentError, "; try cosine(0.1, 40)"),
    # run
    "run rounds 0": (lambda: go(rounds=0), ArgumentError, "; try rounds=10"),
    "run rounds float": (lambda: go(rounds=2.5), ArgumentError, "; try rounds=10"),
    "run rounds str": (lambda: go(rounds="3"), ArgumentError, "; try rounds=10"),
    "run net": (lambda: go(net()), ArgumentError, "; try fed_avg(net): a recipe called with a net"),
    "run recipe": (
        lambda: go(bf.fed_avg),
        ArgumentError,
        "; try fed_avg(net): a recipe called with a net",
    ),
    "run clients list": (
        lambda: go(clients=[DATA, DATA]),
        ArgumentError,
        "; try {'name': data_set, ...}, federate(train,",
    ),
    "run clients dataset": (
        lambda: go(clients=DATA),
        ArgumentError,
        "; try {'name': data_set, ...}, federate(train,",
    ),
    "run clients empty": (lambda: go(clients={}), DataError, "; try federate(data, iid(...))"),
    "run clients tensors": (
        lambda: go(clients={"a": (DATA.inputs, DATA.targets)}),
        ArgumentError,
        "; try {'name': Dataset(inputs, targets)}",
    ),
    "run clients all empty": (
        lambda: go(clients={"a": DATA[:0]}),
        DataError,
        "; try federate(data, iid(...))",
    ),
    "run clients names": (
        lambda: go(clients={0: DATA}),
        ArgumentError,
        "; try {'name': Dataset(inputs, targets)}",
    ),
    "run test tuple": (
        lambda: go(test=(TEST.inputs, TEST.targets)),
        ArgumentError,
        "; try test=Dataset(inputs, targets)",
    ),
    "run test width": (
        lambda: go(test=rows(4, 5)),
        ArgumentError,
        "; try the test set prepared as the rows are",
    ),
    "run test dtype": (
        lambda: go(test=replace(TEST, inputs=TEST.inputs.double())),
        ArgumentError,
        "; try the test set prepared as the rows a",
    ),
    "run test clients": (
        lambda: go(test={"a": TEST}),
        ArgumentError,
        "; try test=data.concatenated(list(test.values()))",
    ),
    "run test empty": (
        lambda: go(test=TEST[:0]),
        ArgumentError,
        "; try test=Dataset(inputs, targets)",
    ),
    "run test labels": (
        lambda: go(test=replace(TEST, targets=torch.tensor([0, 1, 2, 7]))),
        ArgumentError,
        "; try a last layer with 8 outputs",
    ),
    "run test regression": (
        lambda: go(test=replace(TEST, targets=torch.randn(4))),
        ArgumentError,
        "; try callbacks=[evaluate(test, metric='mse')]",
    ),
    "run batch width": (
        lambda: go(clients={"a": rows(6, 5)}),
        ClientError,
        "; try rows of the width and type that the netw",
    ),
    "run batch dtype": (
        lambda: go(clients={"a": replace(DATA, inputs=DATA.inputs.double())}),
        ClientError,
        "as its parameters are, found a tensor (1, 4) of float64",
    ),
    "run batch ints": (
        lambda: go(clients={"a": replace(DATA, inputs=(DATA.inputs * 10).long())}),
        ClientError,
        "; try rows of the width and type that",
    ),
    "run labels too high": (
        lambda: go(clients={"a": replace(DATA, targets=DATA.targets + 5)}),
        ClientError,
        "; try a last layer with 8 outputs",
    ),
    "run labels float": (
        lambda: go(clients={"a": replace(DATA, targets=DATA.targets.float())}),
        ClientError,
        "; try targets.long()",
    ),
    "run one hot": (
        lambda: go(clients={"a": replace(DATA, targets=torch.eye(3)[DATA.targets])}),
        ClientError,
        "; try targets.argmax(1), since they ",
    ),
    "run one hot int": (
        lambda: go(clients={"a": replace(DATA, targets=torch.eye(3)[DATA.targets].long())}),
        ClientError,
        "; try targets.argmax(1), ",
    ),
    "run (N, 1)": (
        lambda: go(clients={"a": replace(DATA, targets=DATA.targets[:, None])}),
        ClientError,
        "; try targets[:, 0]",
    ),
    "run normal classes": (
        lambda: go(avg(likelihood=bf.Normal())),
        ClientError,
        "; try Categorical() for labels",
    ),
    "run normal width": (
        lambda: go(avg(likelihood=bf.Normal()), {"a": replace(DATA, targets=torch.randn(6))}),
        ClientError,
        "; try a network ",
    ),
    "run seed": (lambda: go(seed=0.5), ArgumentError, "; try Key(0, 'fit', 3)"),
    "run seed str": (lambda: go(seed="x"), ArgumentError, "; try Key(0, 'fit', 3)"),
    "run seed key": (lambda: go(seed=KEY), ArgumentError, "; try Key(0, 'fit', 3)"),
    "run sampler float": (
        lambda: go(sampler=0.5),
        ArgumentError,
        "; try everyone, fraction(0.5), or (round, name",
    ),
    "run sampler str": (
        lambda: go(sampler="everyone"),
        ArgumentError,
        "; try everyone, fraction(0.5), or (round, name",
    ),
    "run callback": (
        lambda: go(callbacks=evaluate(TEST)),
        ArgumentError,
        "; try [evaluate(test), ...]",
    ),
    "run callbacks str": (
        lambda: go(callbacks=["x"]),
        ArgumentError,
        "; try [evaluate(test), ...]",
    ),
    "run on error": (lambda: go(on_client_error="ignore"), ArgumentError, "; try 'raise'"),
    "run resume str": (
        lambda: go(resume="folder"),
        ArgumentError,
        "; try result.snapshot, or newest(folder)",
    ),
    "run resume result": (
        lambda: go(resume=done()),
        ArgumentError,
        "; try result.snapshot, or newest(folder)",
    ),
    "run resume other": (
        lambda: go(bf.fed_prox(net(), strength=0.1), rounds=3, resume=done().snapshot),
        ArgumentError,
        "; try the run's own ",
    ),
    "run least": (
        lambda: go(least=0),
        ArgumentError,
        "least: expected a whole number >= 1, found 0",
    ),
    "run least many": (
        lambda: go(least=3),
        TooFewClientsError,
        "round 0, stage 'train': 2 of at least 3 client",
    ),
    "run secrets": (
        lambda: go(secrets={"a": b"short", "b": b"short"}),
        ArgumentError,
        "; try secrets.token_bytes(32)",
    ),
    "run epochs": (
        lambda: go(epochs=3),
        KeywordError,
        "; try training=Training(steps=50) of a recipe",
    ),
    "run pool class": (
        lambda: go(clients=bf.InProcess),
        ArgumentError,
        "; try {'name': data_set, ...}, federate(train,",
    ),
    "InProcess workers": (
        lambda: bf.InProcess(CLIENTS, workers=-1),
        ArgumentError,
        "; try workers=2",
    ),
    "InProcess list": (
        lambda: bf.InProcess([DATA]),
        ArgumentError,
        "; try {'name': Dataset(inputs, targets)}",
    ),
    "fraction": (lambda: bf.fraction(0), ArgumentError, "; try 0.5"),
    "fraction 20": (lambda: bf.fraction(20), ArgumentError, "; try 0.5"),
    "evaluate every": (
        lambda: evaluate(TEST, every=0),
        ArgumentError,
        "evaluate, every: expected a whole number >= 1, found 0",
    ),
    "evaluate tensor": (
        lambda: evaluate(TEST.inputs),
        ArgumentError,
        "; try Dataset(inputs, targets)",
    ),
    "early_stop patience": (
        lambda: early_stop("accuracy", patience=0),
        ArgumentError,
        "patience: expected a whole number >= 1, found 0",
    ),
    "checkpoint every": (
        lambda: checkpoint("x", every=0),
        ArgumentError,
        "checkpoint, every: expected a whole number >= 1, found 0",
    ),
    "score": (lambda: score(done().model, TEST[:0]), ArgumentError, "; try a test set"),
}

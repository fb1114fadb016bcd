"""Classes and rows as clients have them: the same numbers for the same names, labels of any whole
type, rows that are there once.
"""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import bayesfed as bf
from bayesfed.data import Population
from bayesfed.errors import ArgumentError, ClientError
from bayesfed.federated import evaluate
from tests.house.wrong_calls.given import DATA, KEY, TEST, avg, go

TWO = replace(DATA, targets=DATA.targets % 2)
A, B = replace(TWO, classes=("cat", "dog")), replace(TWO, classes=("cat", "fox"))
ALL = replace(DATA, classes=("cat", "dog", "fox"))


@pytest.mark.parametrize(
    "call",
    [
        lambda: go(clients={"a": A, "b": B}),
        lambda: bf.InProcess({"a": A, "b": B}),
        lambda: go(clients={"a": A, "none": DATA, "b": B[:0]}),
        lambda: go(clients={"a": A}, test=B),
        lambda: go(clients={"a": A}, callbacks=[evaluate(B)]),
        lambda: go(clients={"a": A}).personal_scores({"a": B}),
        lambda: go(bf.laplace(nn.Linear(4, 3)), {"a": A}).scores(B),
        lambda: [*map(Population(["a", "b"], 6, {"a": A, "b": B}.__getitem__).get, "ab")],
    ],
    ids=["run", "pool", "empty", "test", "evaluate", "personal", "scores", "population"],
)
def test_numbers_that_mean_other_classes_are_refused_before_the_first_round(call):
    with pytest.raises(ArgumentError, match=r"\('cat', 'dog'\).*\('cat', 'fox'\)|'fox'.*'dog'"):
        call()


def test_a_list_of_names_that_goes_on_means_the_same():
    result = go(clients={"a": A, "all": ALL, "none": DATA}, test=ALL)
    assert result.personal_scores({"a": A, "all": ALL}).mean() >= 0


@pytest.mark.parametrize("kind", [torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool])
def test_labels_of_any_whole_type_are_labels(kind):
    labels = TWO.targets.to(kind)
    for data in (bf.Dataset(DATA.inputs, labels), bf.Dataset(DATA.inputs.numpy(), labels.numpy())):
        assert data.targets.dtype == torch.int64
        assert data.targets.tolist() == TWO.targets.tolist()
    go(clients={"a": bf.Dataset(DATA.inputs, labels)})


@pytest.mark.parametrize(
    "rows",
    [
        [0, 2],
        (0, 2),
        np.array([0, 2], dtype=np.int16),
        torch.tensor([0, 2], dtype=torch.uint8),
        torch.tensor([True, False, True, False, False, False]),
    ],
    ids=["list", "tuple", "array", "bytes", "mask"],
)
def test_rows_of_clients_in_any_form(rows):
    (part,) = bf.federate(DATA, {"a": rows}).values()
    assert torch.equal(part.inputs, DATA.inputs[[0, 2]])


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([0, -1], r"numbers of rows from 0 to 5, found -1 to 0 for 'a'"),
        ([0, 6], r"numbers of rows from 0 to 5, found 0 to 6 for 'a'"),
        (torch.tensor([0.0, 1.0]), r"rows of 'a': expected numbers of rows \(N_k,\)"),
        (torch.tensor([True, False]), r"rows of 'a': expected numbers of rows \(N_k,\)"),
        (np.array(["x"]), r"rows of 'a': expected numbers of rows \(N_k,\)"),
    ],
)
def test_rows_that_are_none_are_refused(rows, words):
    with pytest.raises(ArgumentError, match=words):
        bf.federate(DATA, {"a": rows})


def test_rows_held_twice_are_said():
    with pytest.warns(UserWarning, match="federate: 'b' holds a row more than once"):
        bf.federate(DATA, {"a": [0, 1], "b": [2, 2]})


@pytest.mark.parametrize("labels", [[0, 5, 9], [1, 2, 3]], ids=["codes", "from one"])
def test_labels_that_seem_to_be_codes_are_said(labels):
    data = bf.Dataset(torch.randn(90, 4), torch.tensor(labels).repeat(30))
    algorithm = bf.fed_avg(bf.mlp([4, 10], KEY), training=bf.Training(steps=1))
    with pytest.warns(UserWarning, match=r"of the classes 0 to \d have no row at any client"):
        go(algorithm, {"a": data[:45], "b": data[45:]})
    # Another client may have them, names say what numbers mean, and the hint works.
    whole = bf.Dataset(torch.randn(40, 4), torch.arange(40) % 10)
    named = replace(data, classes=tuple("abcdefghij"))
    dense = replace(data, targets=data.targets.unique(return_inverse=True)[1])
    for clients in ({"a": data, "b": whole}, {"a": named}, {"a": dense}):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            go(algorithm, clients)


def test_probabilities_are_no_logits():
    def run(*last):
        return go(bf.fed_avg(nn.Sequential(nn.Linear(4, 3), *last), training=bf.Training(steps=1)))

    with pytest.raises(ClientError, match=r"logits \(B, C\), found probabilities: .* softmax"):
        run(nn.Softmax(1))
    # The softmax of log probabilities is their exponential, so nothing is wrong with these.
    run(nn.LogSoftmax(1))


def test_names_of_clients_are_texts_that_can_be_written():
    with pytest.raises(ArgumentError, match=r"clients: expected names that are texts"):
        go(clients={"\ud800": DATA})
    assert go(clients={"höpital/№ 7": DATA}).history


def test_numbers_of_numpy_name_a_run():
    seeded = go(seed=np.int64(2), test=TEST)
    assert type(seeded.snapshot.seed) is int
    assert seeded.final("accuracy") == go(seed=2, test=TEST).final("accuracy")
    assert bf.Key(np.int32(1), np.int64(2)) == bf.Key(1, 2)
    assert avg()

"""Arrays and frames as data sets, tables with columns of clients and domains, bad cells counted at
once, rows held out.
"""

import re

import numpy as np
import pandas as pd
import pytest
import torch

import bayesfed as bf
from bayesfed.data import by_domain
from bayesfed.errors import ArgumentError, DataError

FRAME = pd.DataFrame(
    {"x": [1, 2, 3], "z": [0.5, 1.5, 2.5], "kind": ["b", "a", "b"], "weight": [0.1, 0.2, 0.3]}
)


def write(path, text):
    path.write_text(text)
    return path


def test_arrays_are_tensors_of_the_kinds_that_nets_take():
    data = bf.Dataset(np.arange(6.0).reshape(3, 2), np.array([0, 2, 1], dtype=np.int32))
    assert (data.inputs.dtype, data.targets.dtype) == (torch.float32, torch.int64)
    tokens = bf.Dataset(np.array([[1, 2], [3, 4]]), np.array([0.5, 1.0]))
    assert (tokens.inputs.dtype, tokens.targets.dtype) == (torch.int64, torch.float32)
    named = bf.Dataset(np.zeros((3, 1)), np.array(["cat", "ant", "cat"]))
    assert (named.targets.tolist(), named.classes) == ([1, 0, 1], ("ant", "cat"))
    assert bf.Dataset(
        np.zeros((2, 1)), np.array(["b", "a"]), classes=("a", "b", "c")
    ).targets.tolist() == [1, 0]
    same = torch.zeros(2, 1, dtype=torch.float64)
    assert bf.Dataset(same, torch.zeros(2)).inputs is same


def test_frames_are_tables_of_numbers():
    data = bf.Dataset(FRAME[["x", "z"]], FRAME["kind"])
    assert (data.inputs.tolist(), data.inputs.dtype) == (
        [[1.0, 0.5], [2.0, 1.5], [3.0, 2.5]],
        torch.float32,
    )
    assert (data.targets.tolist(), data.classes) == ([1, 0, 1], ("a", "b"))
    # A frame of one column is that column where it is the targets.
    assert bf.Dataset(FRAME[["x"]], FRAME[["kind"]]).targets.shape == (3,)
    assert bf.Dataset(FRAME[["x"]], FRAME["weight"]).targets.dtype == torch.float32


@pytest.mark.parametrize(
    ("inputs", "targets", "words"),
    [
        (
            FRAME[["x", "kind"]],
            FRAME["weight"],
            "columns of numbers, found others: kind; try frame.drop(columns=['kind'])",
        ),
        (
            FRAME[["x", "z"]].where(FRAME[["x", "z"]] > 1),
            FRAME["weight"],
            "2 empty: 1 in 'x', 1 in 'z'; try frame.dropna()",
        ),
        (
            FRAME[["x"]],
            FRAME["kind"].where(FRAME["x"] > 1),
            "expected one label a row, found 1 without",
        ),
        (np.array([["a"]]), np.array([0]), "Dataset inputs: expected numbers"),
        ([[1.0]], np.array([0]), "a tensor, an array or a frame, found a list"),
        (np.array([[np.nan]]), np.array([0]), "NaN or Inf in 1 row"),
    ],
    ids=["texts", "empty", "label", "array", "list", "nan"],
)
def test_what_is_no_table_of_numbers_is_refused(inputs, targets, words):
    with pytest.raises(DataError, match=re.escape(words)):
        bf.Dataset(inputs, targets)


def test_columns_of_clients_and_domains(tmp_path):
    path = write(
        tmp_path / "a.csv", "x,ward,y,year\n1,north,b,2020\n2,south,a,2021\n3,north,b,2021\n"
    )
    clients = bf.from_csv(path, label="y", client="ward", columns=["x"])
    assert {
        name: (part.inputs.tolist(), part.targets.tolist(), part.classes)
        for name, part in clients.items()
    } == {
        "north": ([[1.0], [3.0]], [1, 1], ("a", "b")),
        "south": ([[2.0]], [0], ("a", "b")),
    }
    whole = bf.from_csv(path, label="y", domain="ward")
    assert (whole.domains, whole.inputs.shape) == (("north", "south", "north"), (3, 2))
    both = bf.from_csv(path, label="y", domain="year", client="ward")
    assert (both["north"].domains, both["north"].inputs.tolist()) == (
        ("2020", "2021"),
        [[1.0], [3.0]],
    )
    assert by_domain(whole.domains)["north"].tolist() == [0, 2]
    with pytest.raises(DataError, match="expected a column 'wards', found 4 others; try 'ward'"):
        bf.from_csv(path, label="y", client="wards")
    path = write(tmp_path / "b.csv", "x,ward,y\n1,north,b\n2,,a\n")
    with pytest.raises(
        DataError,
        match="column 'ward': expected a name in every row, found 1 without, first in line 3",
    ):
        bf.from_csv(path, label="y", client="ward")


def test_bad_cells_are_counted_at_once(tmp_path):
    path = write(tmp_path / "a.csv", "x,z,y\n,1,a\n2,red,a\n,3,b\n")
    words = (
        "line 2, column 'x': expected a finite number, found ''; 3 such cells, 2 of them "
        "empty: 2 in 'x', 1 in 'z'; try dropping or imputing"
    )
    with pytest.raises(DataError, match=re.escape(words)) as caught:
        bf.from_csv(path, label="y")
    assert str(caught.value).endswith(
        "as pandas.read_csv(path).dropna() does, and columns=[...] without texts"
    )


def test_rows_are_held_out_of_every_class_and_domain():
    targets = torch.arange(40) % 2
    data = bf.Dataset(
        torch.arange(40.0)[:, None],
        targets,
        domains=tuple("north" if row < 20 else "south" for row in range(40)),
    )
    train, test = bf.data.held_out_rows(data, 0.2, bf.Key(0))
    assert (len(train), len(test), test.targets.sum()) == (32, 8, 4)
    assert sorted(test.domains) == ["north"] * 4 + ["south"] * 4
    assert sorted([*train.inputs[:, 0].tolist(), *test.inputs[:, 0].tolist()]) == list(range(40))
    numbers = bf.Dataset(torch.zeros(10, 1), torch.randn(10, generator=bf.Key(1).generator()))
    assert [len(part) for part in bf.data.held_out_rows(numbers, 0.3, bf.Key(0))] == [7, 3]
    with pytest.raises(ArgumentError, match="held_out_rows, data: expected a Dataset"):
        bf.data.held_out_rows(targets, 0.2, bf.Key(0))


def test_a_frame_can_be_run():
    clients = {
        name: bf.Dataset(rows[["x", "z"]], rows["kind"], classes=("a", "b"))
        for name, rows in FRAME.groupby("x")[["x", "z", "kind"]]
    }
    clients = {f"client-{name}": part for name, part in clients.items()}
    result = bf.run(
        bf.fed_avg(bf.mlp([2, 2], bf.Key(0)), training=bf.Training(steps=1)),
        clients,
        rounds=1,
        progress=False,
    )
    assert result.data.keys() == clients.keys()


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("form", [lambda one: one, pd.Series, lambda one: pd.DataFrame({"y": one})])
def test_categories_are_classes_in_their_order(ordered, form):
    names, rows = ["low", "medium", "high", "none"], torch.zeros(3, 1)
    given = form(pd.Categorical(["high", "low", "medium"], names, ordered=ordered))
    made = bf.Dataset(rows, given)
    assert (made.classes, made.targets.tolist()) == (tuple(names), [2, 0, 1])
    assert bf.Dataset(rows, given, classes=names[::-1]).targets.tolist() == [1, 3, 2]
    numbers = form(pd.Categorical([5, 0, 5], [5, 0]))
    assert bf.Dataset(rows, numbers).targets.tolist() == [5, 0, 5]


def test_masked_cells_are_refused():
    whole, holes = np.ones((2, 1)), np.ma.masked_equal([[1.0], [-99.0]], -99.0)
    for inputs, targets in ((holes, whole[:, 0]), (whole, holes[:, 0])):
        with pytest.raises(DataError, match="a number in every cell, found 1 masked"):
            bf.Dataset(inputs, targets)
    assert bf.Dataset(holes[:1], np.ma.array([0])).inputs.tolist() == [[1.0]]

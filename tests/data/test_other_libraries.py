"""Data sets of other libraries: Hugging Face's and PyTorch's."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import IterableDataset, Subset, TensorDataset

import bayesfed as bf
from bayesfed.errors import DataError

# Hugging Face's sets, by what they answer to


class ClassLabel:
    def __init__(self, names):
        self.names = names


class Split:
    """What `datasets.Dataset` answers to: its columns' features, and rows as dictionaries."""

    def __init__(self, columns, **features):
        self.columns = columns
        self.features = {name: features.get(name, object()) for name in columns}

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __iter__(self):
        for row in range(len(self)):
            yield {name: values[row] for name, values in self.columns.items()}


def test_hugging_face_pictures_and_class_labels():
    pixels = np.random.default_rng(0).integers(0, 256, (2, 4, 5, 3), np.uint8)
    split = Split(
        {"image": [Image.fromarray(image) for image in pixels], "label": [1, 0]},
        label=ClassLabel(["shirt", "bag"]),
    )
    data = bf.data.from_hugging_face(split)
    assert (data.targets.tolist(), data.classes) == ([1, 0], ("shirt", "bag"))
    torch.testing.assert_close(data.inputs, torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255)
    assert bf.data.from_hugging_face(split, classes=("bag", "shirt")).targets.tolist() == [0, 1]


def test_hugging_face_columns_of_numbers_and_regression():
    split = Split({"a": [1, 2], "b": [0.5, 1.5], "kind": ["x", "w"], "price": [9.5, 8.0]})
    data = bf.data.from_hugging_face(split, inputs=["b", "a"], label="kind")
    assert (data.inputs.tolist(), data.targets.tolist(), data.classes) == (
        [[0.5, 1.0], [1.5, 2.0]],
        [1, 0],
        ("w", "x"),
    )
    assert bf.data.from_hugging_face(
        split, inputs="a", label="price", regression=True
    ).targets.tolist() == [9.5, 8.0]
    lists = bf.data.from_hugging_face(
        Split({"embedding": [[1.0, 2.0], [3.0, 4.0]], "label": [torch.tensor(7), np.int64(5)]})
    )
    assert (lists.inputs.tolist(), lists.targets.tolist(), lists.classes) == (
        [[1.0, 2.0], [3.0, 4.0]],
        [1, 0],
        ("5", "7"),
    )


@pytest.mark.parametrize(
    ("split", "options", "words"),
    [
        (
            {"train": Split({"x": [1]})},
            {},
            r"one split, found the splits train; try dataset\['train'\]",
        ),
        ([1, 2], {}, "a data set whose columns are known, found list"),
        (
            Split({"image": [1], "labels": [0]}),
            {},
            "a column 'label', found image, labels; try 'labels'",
        ),
        (
            Split({"a": [1], "b": [1], "label": [0]}),
            {},
            "columns beside the label, found a, b; try inputs='a'",
        ),
        (Split({"label": [0]}), {}, "columns beside the label, found none"),
        (Split({"x": [], "label": []}), {}, "at least one, found none"),
        (
            Split({"text": ["good"], "label": [0]}),
            {},
            r"row 0, column 'text': expected numbers, found 'good'.*tokenised",
        ),
        (
            Split({"x": [[1], [1, 2]], "label": [0, 0]}),
            {},
            r"row 1, column 'x': expected the shape of row 0, column 'x', \(1,\), found \(2,\)",
        ),
        (
            Split({"x": [[[1], [1, 2]]], "label": [0]}),
            {},
            "row 0, column 'x': expected numbers in one shape",
        ),
        (Split({"x": [None], "label": [0]}), {}, "expected numbers, found None"),
        (
            Split({"x": [float("nan")], "label": [0]}),
            {},
            "row 0, column 'x': expected finite numbers",
        ),
        (
            Split({"x": [1], "label": [-1]}, label=ClassLabel(["a", "b"])),
            {},
            "row 0, column 'label': expected a label from 0 to 1, .* found -1",
        ),
        (
            Split({"x": [1], "label": [None]}),
            {},
            "row 0, column 'label': expected a label, an integer or a text, found none",
        ),
    ],
    ids=lambda value: "",
)
def test_bad_hugging_face_sets_are_refused(split, options, words):
    with pytest.raises(DataError, match=words):
        bf.data.from_hugging_face(split, **options)


# PyTorch's sets


class Stream(IterableDataset):
    def __iter__(self):
        yield np.array([1, 2], np.uint8), "b"
        yield np.array([3, 4], np.uint8), "a"


class Pictures(TensorDataset):
    classes = ("ant", "bee", "cow")


def test_torch_sets_of_both_kinds():
    inputs = torch.randn(4, 2, 2, generator=bf.Key(0, "x").generator())
    data = bf.data.from_torch(TensorDataset(inputs, torch.tensor([3, 5, 3, 4])))
    assert torch.equal(data.inputs, inputs)
    assert (data.targets.tolist(), data.classes) == ([0, 2, 0, 1], ("3", "4", "5"))
    stream = bf.data.from_torch(Stream())
    assert (stream.targets.tolist(), stream.classes) == ([1, 0], ("a", "b"))
    torch.testing.assert_close(stream.inputs, torch.tensor([[1.0, 2.0], [3.0, 4.0]]) / 255)
    part = bf.data.from_torch(Subset(Pictures(inputs, torch.tensor([0, 1, 2, 2])), [1, 3]))
    assert (part.targets.tolist(), part.classes) == ([1, 2], ("ant", "bee", "cow"))
    assert bf.data.from_torch(
        TensorDataset(inputs, torch.arange(4) / 2), regression=True
    ).targets.tolist() == [0, 0.5, 1, 1.5]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (
            TensorDataset(torch.zeros(2, 1)),
            r"row 0: expected a pair \(input, target\), found tuple of 1",
        ),
        (TensorDataset(torch.zeros(0, 1), torch.zeros(0)), "at least one, found none"),
        (
            TensorDataset(torch.zeros(2, 1), torch.tensor([0.5, 1])),
            "row 0, target: .* found 0.5; try regression=True",
        ),
        (
            TensorDataset(torch.zeros(2, 1), torch.zeros(2, 3)),
            "row 0, target: expected a label, an integer or a text",
        ),
        (
            Pictures(torch.zeros(1, 1), torch.tensor([3])),
            "row 0, target: expected a label from 0 to 2, as there are names, found 3",
        ),
        ([("a", 0)], "row 0, input: expected numbers, found 'a'"),
        (7, "a torch.utils.data.Dataset, found int"),
    ],
    ids=lambda value: "",
)
def test_bad_torch_sets_are_refused(data, words):
    with pytest.raises(DataError, match=words):
        bf.data.from_torch(data)

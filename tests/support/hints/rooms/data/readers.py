"""Messages of `bayesfed.data.readers` and of the rows that they read."""

import struct
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
import torch
from PIL import Image
from torch.utils.data import TensorDataset

import bayesfed as bf
from bayesfed.data import (
    Texts,
    from_hugging_face,
    from_image_folder,
    from_npz,
    from_torch,
    tokenised,
)
from tests.data.test_cifar import write_cifar10
from tests.data.test_other_libraries import Split
from tests.support.hints.rooms.data.texts import TEXTS, tokenizer

COMPLETE = ("bayesfed/data/readers", "bayesfed/data/rows.py")
IDX = {"train": 2, "t10k": 1}
dataset = {"train": Split({"x": [1], "label": [0]})}


def at(name, content=b""):
    """Write a file in a folder of its own, and return its path."""
    path = Path(tempfile.mkdtemp(), name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def cifar(**spoilt):
    """Read CIFAR-10 of a few records, with files of other bytes (None: of none)."""
    folder = Path(tempfile.mkdtemp())
    write_cifar10(folder)
    for name, content in spoilt.items():
        path = folder / f"{name}.bin"
        path.unlink() if content is None else path.write_bytes(content)
    bf.data.cifar10(folder)


def denied():
    """Read CIFAR-10 without the permission to."""
    with mock.patch.object(np, "fromfile", side_effect=PermissionError("denied")):
        cifar()


def idx(values):
    """Return bytes in the IDX format."""
    head = struct.pack(f">2xBB{values.ndim}I", 8, values.ndim, *values.shape)
    return head + values.astype(np.uint8).tobytes()


def fashion(parts):
    """Read the four files of so many pictures each."""
    folder = Path(tempfile.mkdtemp())
    for name, count in parts.items():
        (folder / f"{name}-images-idx3-ubyte").write_bytes(idx(np.zeros((count, 2, 2))))
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(idx(np.zeros(count)))
    bf.fashion_mnist(folder)


def pictures(*paths, mode="L", damaged=""):
    """Read a folder of small pictures; a folder where a path has no suffix."""
    folder = Path(tempfile.mkdtemp())
    for number, path in enumerate(map(Path, paths)):
        home = folder / (path.parent if path.suffix else path)
        home.mkdir(parents=True, exist_ok=True)
        if path.suffix:
            Image.new(mode, (2 + number, 2)).save(folder / path)
    if damaged:
        (folder / damaged).write_text("no picture")
    from_image_folder(folder, size=(2, 2))


def npz(rows=((0.5,),), labels=(0,), **options):
    """Read two arrays from an npz file."""
    path = at("a.npz")
    np.savez(path, inputs=np.asarray(rows), targets=np.asarray(labels))
    return from_npz(path, **options)


def empty():
    """Read an npz file without arrays."""
    path = at("a.npz")
    np.savez(path)
    from_npz(path)


def csv(text="x,y\n1,a\n", name="a.csv", **options):
    """Read a table."""
    return bf.from_csv(at("a.csv", text).with_name(name), **{"label": "y", **options})


def pair(inputs, targets=(0,), classes=None, **options):
    """Read pairs, of a data set whose classes have names."""
    made = list(zip(inputs, targets, strict=True))
    return from_torch(Pairs(made, classes), **options)


class Pairs(list):
    """A data set of PyTorch's kind."""

    def __init__(self, pairs, classes=None):
        super().__init__(pairs)
        if classes:
            self.classes = classes


def hugging(columns, **options):
    """Read a split with these columns."""
    return from_hugging_face(Split({"label": [0], **columns}), **options)


def read_torch(given):
    """Read pairs."""
    return from_torch(given)


def read_split(given):
    """Read a split."""
    return from_hugging_face(given)


def without_holes():
    """Read a table that pandas wrote without its empty cells."""
    whole = pd.read_csv(at("a.csv", "x,y\n1,a\n,b\n")).dropna()
    csv(whole.to_csv(index=False))


ROW, LABELS = [torch.zeros(2)], ["a", "b"]
CASES = [
    # CIFAR and IDX.
    (lambda: cifar(test_batch=None), "cifar-10-binary.tar.gz", cifar),
    (lambda: cifar(test_batch=b"0"), "downloading it again", cifar),
    (lambda: cifar(test_batch=b"\xff" * 3073), "downloading it again", cifar),
    (denied, "checking its permissions", cifar),
    (
        lambda: bf.data.read_idx("nowhere"),
        "checking the path",
        lambda: bf.data.read_idx(at("a", idx(np.zeros(3)))),
    ),
    (
        lambda: bf.data.read_idx(at("a", "text")),
        "the original file",
        lambda: bf.data.read_idx(at("a", idx(np.zeros(3)))),
    ),
    (
        lambda: bf.data.read_idx(at("a", idx(np.zeros(3))[:-1])),
        "downloading it again",
        lambda: bf.data.read_idx(at("a", idx(np.zeros(3)))),
    ),
    (
        lambda: fashion({"train": 2}),
        "the folder that holds the four files",
        lambda: fashion({"train": 2, "t10k": 1}),
    ),
    # Pictures.
    (
        lambda: from_image_folder("nowhere"),
        "checking the path",
        lambda: pictures("cat/a.png"),
    ),
    (lambda: pictures("a.png"), "CLASS/a.png", lambda: pictures("CLASS/a.png")),
    (pictures, "the folder above or below", lambda: pictures("cats/a.png")),
    (lambda: pictures("cat/a.png", "dog"), "removing the folder", lambda: pictures("cat/a.png")),
    (
        lambda: pictures("cat/a.png", damaged="cat/b.png"),
        "moving the file elsewhere",
        lambda: pictures("cat/a.png"),
    ),
    (
        lambda: pictures("cat/a.tif", mode="F"),
        "converting it to 8 bits",
        lambda: pictures("cat/a.tif", mode="L"),
    ),
    # Labels.
    (lambda label: npz(labels=[label], classes=("cat", "dog")), "dogs"),
    (
        lambda: pair(ROW, [-1], LABELS),
        "a part of the data that has labels",
        lambda: pair(ROW, [1], LABELS),
    ),
    (lambda: pair(ROW, [None]), "rows with one label each", lambda: pair(ROW, ["a"])),
    (
        lambda: pair(ROW, [[0, 1]]),
        "rows with one label each",
        lambda: pair(ROW, [1]),
    ),
    (lambda regression: pair(ROW, [0.5], regression=regression), False),
    (
        lambda: pair(2 * ROW, [None, 0.5], regression=True),
        "leaving out rows without one",
        lambda: pair(ROW, [0.5], regression=True),
    ),
    # Arrays in files.
    (
        lambda: npz([["1"]]),
        "encoding texts as numbers",
        lambda: npz(np.array([["1"]]).astype(float)),
    ),
    (lambda regression: npz(labels=[0.5], regression=regression), False),
    (lambda regression: npz(labels=["a"], regression=regression), True),
    (
        lambda: npz(labels=[0, 1]),
        "np.savez(path, inputs=..., targets=...) of the same rows",
        npz,
    ),
    (lambda channels_last: npz(channels_last=channels_last), True),
    (
        lambda: npz(labels=[[0, 1]]),
        "labels.argmax(1) if they are one-hot",
        lambda: npz(labels=np.array([[0, 1]]).argmax(1)),
    ),
    (lambda targets: npz(targets=targets), "target"),
    (empty, "np.savez(path, inputs=..., targets=...)", npz),
    (lambda: from_npz(at("a.npz")), "np.savez(path, ...)", npz),
    (
        lambda: npz(labels=np.array(["a"], object)),
        "array.astype(str)",
        lambda: npz(labels=np.array(["a"], object).astype(str)),
    ),
    (
        lambda: npz(np.array([[0.5]], object)),
        "or (float)",
        lambda: npz(np.array([[0.5]], object).astype(float)),
    ),
    # Tables.
    (
        lambda: bf.from_csv(pd.DataFrame({"x": [1.0], "y": ["a"]}), label="y"),
        "Dataset(frame[columns], frame[label])",
        lambda: bf.Dataset(pd.DataFrame({"x": [1.0]}), pd.Series(["a"])),
    ),
    (
        lambda: csv("x,y\n1,a,b\n"),
        "quotes around cells that hold the delimiter",
        lambda: csv('x,y\n1,"a,b"\n'),
    ),
    (
        lambda: csv("x;y\n1,5;2,5\n", regression=True),
        "delimiter=';', decimal=','",
        lambda: csv("x;y\n1,5;2,5\n", regression=True, delimiter=";", decimal=","),
    ),
    (
        lambda: csv('x,y\n"1,500",a\n'),
        "thousands=','",
        lambda: csv('x,y\n"1,500",a\n', thousands=","),
    ),
    (
        lambda: csv("x;y\n1.500;a\n", delimiter=";", decimal=","),
        "thousands='.'",
        lambda: csv("x;y\n1.500;a\n", delimiter=";", decimal=",", thousands="."),
    ),
    (
        lambda: csv(decimal=",", thousands=","),
        "decimal=',', thousands='.'",
        lambda: csv(decimal=",", thousands="."),
    ),
    (lambda name: csv(name=name), "b.csv"),
    (
        lambda: csv("x,y,z\n1,a,b\n", client="y"),
        "the column of the clients' names",
        lambda: csv("x,y,z\n1,a,b\n", client="z"),
    ),
    (
        lambda: bf.from_csv("elsewhere/a.csv", label="y"),
        f"a path that begins in {Path.cwd()}",
        csv,
    ),
    (
        lambda: csv("x,y\n1,é\n".encode("latin-1")),
        "encoding='latin-1'",
        lambda: csv("x,y\n1,é\n".encode("latin-1"), encoding="latin-1"),
    ),
    (lambda: csv('x,y\n1,"a\n'), "a file that was saved anew", csv),
    (lambda: csv("x,y\n"), "another file", csv),
    (lambda: csv(""), "another file", csv),
    (lambda: csv("x,x,y\n1,2,a\n"), "renaming one", lambda: csv("x,x2,y\n1,2,a\n")),
    (lambda label: csv("x,label\n1,a\n", label=label), "lable"),
    (lambda columns: csv(columns=columns), ["x", "y"]),
    (lambda: csv("y\na\n"), "a table with more columns", csv),
    (
        lambda: csv("x,y,of\n1,a,\n2,b,c\n", client="of"),
        "dropping them",
        lambda: csv("x,y,of\n2,b,c\n", client="of"),
    ),
    (lambda: csv("x,y\n1,a\n,b\n"), "pandas.read_csv(path).dropna()", without_holes),
    (
        lambda: csv("x,z,y\n1,red,a\n"),
        "columns=[...] without it",
        lambda: csv("x,z,y\n1,red,a\n", columns=["x"]),
    ),
    (
        lambda: csv("x,z,y\na film,a plot,0\n"),
        "tokenised(Texts(...), ...)",
        lambda: tokenised(Texts([("a film", "a plot")], torch.tensor([0]), ["x"]), tokenizer()),
    ),
    # Data sets of other libraries.
    (
        lambda: from_torch(Pairs([torch.zeros(2)])),
        "a data set of two tensors",
        lambda: from_torch(TensorDataset(torch.zeros(1, 2), torch.zeros(1).long())),
    ),
    (read_torch, 5),
    (read_split, dataset),
    (
        lambda: from_hugging_face([1]),
        "datasets.load_dataset(..., split='train')",
        lambda: from_hugging_face(dataset["train"]),
    ),
    (lambda label: hugging({"x": [1]}, label=label), "labels"),
    (lambda inputs: hugging({"a": [1], "b": [2]}, inputs=inputs), None),
    (
        lambda: hugging({}),
        "another data set",
        lambda: hugging({"x": [1]}),
    ),
    # Rows.
    (
        lambda: pair([[1], [1, 2]], [0, 0]),
        "padding to one shape",
        lambda: pair([[1, 0], [1, 2]], [0, 0]),
    ),
    (lambda: from_torch(Pairs([])), "another source", lambda: pair(ROW)),
    (lambda: pair([[[1], [1, 2]]]), "padding rows", lambda: pair([[[1, 0], [1, 2]]])),
    (lambda: pair([None, 1.0], [0, 0]), "leaving it out", lambda: pair([1.0])),
    (
        lambda: pair(["a good film"]),
        "bf.data.tokenised(Texts(...), ...)",
        lambda: tokenised(TEXTS, tokenizer()),
    ),
    (lambda: pair([[np.nan]]), "imputing such rows", lambda: pair([[0.0]])),
]

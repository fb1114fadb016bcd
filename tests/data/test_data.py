"""Data sets, the IDX reader and partitions."""

import gzip

import numpy as np
import pytest
import torch

import bayesfed as bf
from bayesfed.data import blobs, by_domain, read_idx, shards
from bayesfed.errors import ArgumentError, DataError
from tests.support.regression import sparse_regression


def idx(array, code):
    return (
        bytes([0, 0, code, array.ndim])
        + b"".join(n.to_bytes(4, "big") for n in array.shape)
        + array.tobytes()
    )


def write_mnist(folder, zipped):
    random = np.random.default_rng(0)
    for part, count in (("train", 20), ("t10k", 8)):
        images, labels = (
            random.integers(0, 256, (count, 28, 28), np.uint8),
            random.integers(0, 10, count).astype(np.uint8),
        )
        for name, array in (("images-idx3-ubyte", images), ("labels-idx1-ubyte", labels)):
            raw = idx(array, 8)
            path = folder / f"{part}-{name}{'.gz' if zipped else ''}"
            path.write_bytes(gzip.compress(raw) if zipped else raw)


@pytest.mark.parametrize("zipped", [False, True])
def test_fashion_mnist_reads_the_four_files(tmp_path, zipped):
    write_mnist(tmp_path, zipped)
    train, test = bf.fashion_mnist(tmp_path)
    assert train.inputs.shape == (20, 28, 28)
    assert len(test) == 8
    assert 0 <= float(train.inputs.min()) <= float(train.inputs.max()) <= 1
    assert train.targets.dtype == torch.long


def test_idx_keeps_values_of_every_type(tmp_path):
    for code, dtype in ((0x0B, ">i2"), (0x0C, ">i4"), (0x0D, ">f4"), (0x0E, ">f8"), (0x09, ">i1")):
        array = np.arange(-3, 3).astype(dtype).reshape(2, 3)
        (tmp_path / "x").write_bytes(idx(array, code))
        assert torch.equal(
            read_idx(tmp_path / "x").double(), torch.from_numpy(array.astype(np.float64))
        )


def test_bad_idx_files_are_refused(tmp_path):
    path = tmp_path / "x"
    for raw, words in (
        (b"", "IDX header"),
        (b"\1\2\3\4", "IDX header"),
        (idx(np.zeros((2, 2), np.uint8), 8)[:-1], "4 bytes for shape"),
    ):
        path.write_bytes(raw)
        with pytest.raises(DataError, match=words):
            read_idx(path)
    (tmp_path / "x.gz").write_bytes(b"not gzip")
    with pytest.raises(DataError, match="readable IDX file"):
        read_idx(tmp_path / "x.gz")
    with pytest.raises(DataError, match="apt-get install dataset-fashion-mnist"):
        bf.fashion_mnist(tmp_path)


@pytest.mark.parametrize(
    ("inputs", "targets", "words"),
    [
        (torch.ones(3, 2), torch.ones(2), "inputs and targets of one length"),
        (torch.tensor([[1.0], [float("nan")]]), torch.zeros(2), "NaN or Inf in 1 row, first 1"),
        (torch.ones(2, 2), torch.tensor([0.0, float("inf")]), "Dataset targets: expected finite"),
        (torch.ones(2, 2), torch.tensor([0, -1]), "class labels from 0"),
        (torch.tensor(1.0), torch.tensor(1.0), "one length"),
    ],
)
def test_bad_data_is_refused(inputs, targets, words):
    with pytest.raises(DataError, match=words):
        bf.Dataset(inputs, targets)


def is_exact_cover(parts, rows):
    return torch.equal(torch.cat(parts).sort().values, torch.arange(rows))


@pytest.mark.parametrize("clients", [1, 7, 1000])
@pytest.mark.parametrize("alpha", [1e-3, 0.5, 1e3])
def test_dirichlet_is_an_exact_cover(alpha, clients):
    labels = torch.arange(3000) % 10
    parts = bf.dirichlet(labels, clients, alpha, bf.Key(0, "p"))
    assert len(parts) == clients
    assert is_exact_cover(parts, 3000)
    again = bf.dirichlet(labels, clients, alpha, bf.Key(0, "p"))
    assert all(torch.equal(left, right) for left, right in zip(parts, again, strict=True))
    other = bf.dirichlet(labels, clients, alpha, bf.Key(1, "p"))
    assert clients == 1 or not all(
        torch.equal(left, right) for left, right in zip(parts, other, strict=True)
    )
    filled = bf.dirichlet(labels, clients, alpha, bf.Key(0, "p"), minimum=2)
    assert is_exact_cover(filled, 3000)
    assert min(map(len, filled)) >= 2


def test_dirichlet_skew_follows_alpha():
    labels = torch.arange(10_000) % 10

    def largest_share(alpha):
        parts = bf.dirichlet(labels, 10, alpha, bf.Key(3, "p"))
        return np.mean(
            [labels[part].bincount(minlength=10).max() / len(part) for part in parts if len(part)]
        )

    assert largest_share(0.05) > 0.5 > largest_share(0.5) > 0.15 > largest_share(1000)


def test_other_partitions_cover_exactly():
    labels = torch.arange(103) % 10
    parts = bf.iid(103, 4, bf.Key(0, "p"))
    assert is_exact_cover(parts, 103)
    assert sorted(map(len, parts)) == [25, 26, 26, 26]
    parts = shards(labels, 5, 2, bf.Key(0, "p"))
    assert is_exact_cover(parts, 103)
    assert all(len(labels[part].unique()) <= 4 for part in parts)
    domains = by_domain(["b", "a", "b"])
    assert {name: rows.tolist() for name, rows in domains.items()} == {"a": [1], "b": [0, 2]}


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: bf.iid(10, 0, bf.Key(0)), "at least one client"),
        (lambda: bf.iid(10, 4, bf.Key(0), minimum=3), "minimum 3 <= 10 rows"),
        (lambda: bf.dirichlet(torch.zeros(5), 2, 0.0, bf.Key(0)), "alpha > 0"),
        (lambda: bf.dirichlet(torch.zeros(5), 2, float("nan"), bf.Key(0)), "alpha > 0"),
        (
            lambda: shards(torch.zeros(5), 2, 0, bf.Key(0)),
            "per_client: expected a whole number >= 1",
        ),
        (lambda: sparse_regression(bf.Key(0), block=50), "block in 1..6"),
        (lambda: bf.digits(test=0), "test in 1..1796"),
    ],
)
def test_bad_arguments_are_refused(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()


def test_embedded_and_drawn_sets():
    train, test = bf.digits()
    assert (len(train), len(test)) == (1437, 360)
    assert train.inputs.shape[1:] == (8, 8)
    truth = sparse_regression(bf.Key(0, "truth"), samples=2000)
    assert int(truth.support.sum()) == 16
    solved = torch.linalg.lstsq(truth.data.inputs, truth.data.targets).solution.T
    assert float((solved - truth.weights).abs().max()) < 0.02
    data = blobs(bf.Key(0, "blobs"))
    assert data.targets.bincount().tolist() == [134, 133, 133]

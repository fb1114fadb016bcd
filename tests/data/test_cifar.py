"""The binary versions of CIFAR-10 and CIFAR-100, from files of a few records."""

import numpy as np
import pytest
import torch

import bayesfed as bf
from bayesfed.errors import DataError

BATCHES = [f"data_batch_{i}.bin" for i in range(1, 6)]


def write(path, labels, highest, seed, rows=3):
    """Write records and return (pixels, last label byte)."""
    random = np.random.default_rng(seed)
    records = random.integers(0, 256, (rows, labels + 3072)).astype(np.uint8)
    records[:, :labels] = random.integers(0, highest + 1, (rows, labels))
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(records.tobytes())
    return records[:, labels:], records[:, labels - 1]


def write_cifar10(folder):
    return {
        name: write(folder / name, 1, 9, seed, rows=2 + seed)
        for seed, name in enumerate([*BATCHES, "test_batch.bin"])
    }


def write_cifar100(folder):
    return {
        name: write(folder / name, 2, 99, seed)
        for seed, name in enumerate(["train.bin", "test.bin"])
    }


def is_exactly(data, parts):
    pixels, labels = (np.concatenate(column) for column in zip(*parts, strict=True))
    images = torch.from_numpy(pixels).reshape(-1, 3, 32, 32).float() / 255
    return torch.equal(data.inputs, images) and torch.equal(
        data.targets, torch.from_numpy(labels).long()
    )


@pytest.mark.parametrize("parent", [False, True])
def test_cifar10_reads_back_exactly(tmp_path, parent):
    home = tmp_path / "cifar-10-batches-bin"
    written = write_cifar10(home)
    train, test = bf.data.cifar10(str(tmp_path) if parent else home)
    assert is_exactly(train, [written[name] for name in BATCHES])
    assert is_exactly(test, [written["test_batch.bin"]])
    assert train.inputs.shape == (20, 3, 32, 32)
    assert train.inputs.dtype == torch.float32
    assert train.targets.dtype == torch.int64
    assert 0 <= float(train.inputs.min()) < 0.01 < 0.99 < float(train.inputs.max()) <= 1


@pytest.mark.parametrize("parent", [False, True])
def test_cifar100_reads_back_the_fine_labels(tmp_path, parent):
    home = tmp_path / "cifar-100-binary"
    written = write_cifar100(home)
    train, test = bf.data.cifar100(tmp_path if parent else home)
    assert is_exactly(train, [written["train.bin"]])
    assert is_exactly(test, [written["test.bin"]])


def test_pixels_lie_where_the_format_says(tmp_path):
    """Red, green, blue planes, each row by row: byte 1024 c + 32 y + x of an image."""
    write_cifar100(tmp_path)
    raw = bytearray(2 + 3072)
    raw[:2] = 7, 42
    raw[2 + 1024 * 1 + 32 * 5 + 9] = 255
    (tmp_path / "test.bin").write_bytes(raw)
    _, test = bf.data.cifar100(tmp_path)
    assert test.targets.tolist() == [42]
    assert test.inputs.nonzero().tolist() == [[0, 1, 5, 9]]
    assert float(test.inputs.sum()) == 1


def test_what_was_read_is_free_of_the_files(tmp_path):
    write_cifar10(tmp_path)
    train, _ = bf.data.cifar10(tmp_path)
    before = train.inputs.clone()
    for name in BATCHES:
        (tmp_path / name).write_bytes(bytes(2 * 3073))
    assert torch.equal(train.inputs, before)
    train.inputs.zero_()


def test_missing_files_are_named(tmp_path):
    with pytest.raises(
        DataError,
        match=(
            r"data_batch_1.bin, .*test_batch.bin, here or in cifar-10-batches-bin, found no "
            r"data_batch_1.bin, "
        ),
    ):
        bf.data.cifar10(tmp_path)
    with pytest.raises(
        DataError,
        match=r"binary version, cifar-100-binary.tar.gz, from the data set's own page, https://",
    ):
        bf.data.cifar100(tmp_path / "nowhere")
    home = tmp_path / "cifar-10-batches-bin"
    write_cifar10(home)
    (home / "data_batch_4.bin").unlink()
    for folder in (home, tmp_path):
        with pytest.raises(
            DataError,
            match=(
                r"cifar-10-batches-bin: expected data_batch_1.bin.*, found no "
                r"data_batch_4.bin; try the binary version"
            ),
        ):
            bf.data.cifar10(folder)


@pytest.mark.parametrize("change", [-1, 1, -3 * 3074])
def test_wrong_sizes_name_the_file_and_both_numbers(tmp_path, change):
    write_cifar100(tmp_path)
    raw = (tmp_path / "test.bin").read_bytes()
    (tmp_path / "test.bin").write_bytes(raw[:change] if change < 0 else raw + bytes(change))
    with pytest.raises(
        DataError,
        match=(
            r"test.bin: expected a positive multiple of 3074 bytes, a record each, found "
            rf"{3 * 3074 + change};"
        ),
    ):
        bf.data.cifar100(tmp_path)


def test_the_other_data_sets_records_are_refused(tmp_path):
    write_cifar10(tmp_path)
    write(tmp_path / "data_batch_2.bin", 2, 99, 0)
    with pytest.raises(
        DataError, match="data_batch_2.bin: expected a positive multiple of 3073 bytes"
    ):
        bf.data.cifar10(tmp_path)


def test_labels_out_of_range_are_refused(tmp_path):
    write_cifar10(tmp_path)
    (tmp_path / "data_batch_3.bin").write_bytes(bytes([10]) + bytes(3072))
    with pytest.raises(DataError, match="data_batch_3.bin: expected labels from 0 to 9, found 10"):
        bf.data.cifar10(tmp_path)

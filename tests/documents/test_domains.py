"""Domains made of one data set: what is moved, what stays, and how they are dealt."""

import pytest
import torch

import bayesfed as bf
from bayesfed.data import by_domain
from bayesfed.errors import ArgumentError, DataError
from benchmarks.parts.fslora.domains import dihedral, permutations

KEY = bf.Key(0, "transformed")


def images(count=70, side=4, *channels):
    inputs = torch.rand(count, *channels, side, side, generator=KEY.generator())
    return bf.Dataset(inputs, torch.arange(count) % 3, ("a", "b", "c"))


@pytest.mark.parametrize("channels", [(), (3,)])
def test_dihedral_has_sixteen_distinct_moves_dealt_evenly(channels):
    data = images(70, 4, *channels)
    moved = dihedral(data, KEY)
    counts = [len(rows) for rows in by_domain(moved.domains).values()]
    assert (len(counts), min(counts), max(counts)) == (16, 4, 5)
    assert torch.equal(moved.targets, data.targets)
    assert moved.classes == data.classes
    one = data.inputs[:1].expand(64, *data.inputs.shape[1:])
    alike = dihedral(bf.Dataset(one, torch.zeros(64, dtype=torch.long)), KEY)
    assert len({tuple(row.flatten().tolist()) for row in alike.inputs}) == 16
    by_name = dict(zip(alike.domains, alike.inputs, strict=True))
    assert torch.equal(by_name["rotated-0"], one[0])
    assert torch.equal(by_name["mirrored-rotated-0"], one[0].flip(-1))
    assert torch.equal(by_name["rotated-180-inverted"], 1 - one[0].flip(-1).flip(-2))
    assert len(set(dihedral(data, KEY, inverted=False).domains)) == 8


@pytest.mark.parametrize("shape", [(6,), (4, 4), (2, 3, 3)])
def test_permutations_are_fixed_by_their_key_and_move_whole_pixels(shape):
    inputs = (
        torch.arange(float(torch.Size(shape).numel()))
        .reshape(1, *shape)
        .repeat(30, *[1] * len(shape))
    )
    train, test = (
        permutations(bf.Dataset(inputs[:count], torch.zeros(count, dtype=torch.long)), 3, KEY)
        for count in (30, 9)
    )
    rows = dict(zip(train.domains, train.inputs, strict=True))
    assert sorted(rows) == ["permutation-00", "permutation-01", "permutation-02"]
    assert all(
        torch.equal(row, rows[name]) for name, row in zip(test.domains, test.inputs, strict=True)
    )
    for row in rows.values():
        assert torch.equal(row.flatten().sort().values, inputs[0].flatten())
        assert not torch.equal(row, inputs[0])
        if len(shape) == 3:
            assert torch.equal(row[1] - row[0], torch.full((3, 3), 9.0))


def test_rows_may_be_mixed_or_one_domain_a_client():
    data = dihedral(images(96), KEY)
    apart = bf.federate(data, by_domain(data.domains))
    assert len(apart) == 16
    assert all(len(set(part.domains)) == 1 for part in apart.values())
    mixed = bf.federate(data, bf.iid(len(data), 2, KEY))
    assert all(len(set(part.domains)) > 8 for part in mixed.values())


def test_rows_that_cannot_be_moved_are_refused():
    with pytest.raises(DataError, match="square images"):
        dihedral(bf.Dataset(torch.rand(4, 3, 5), torch.zeros(4).long()), KEY)
    with pytest.raises(DataError, match="from 0 to 1"):
        dihedral(bf.Dataset(2 + torch.rand(4, 3, 3), torch.zeros(4).long()), KEY)
    assert (
        len(
            dihedral(
                bf.Dataset(2 + torch.rand(4, 3, 3), torch.zeros(4).long()), KEY, inverted=False
            )
        )
        == 4
    )
    with pytest.raises(DataError, match="rows"):
        permutations(bf.Dataset(torch.rand(4, 1, 1, 2, 2), torch.zeros(4).long()), 2, KEY)
    with pytest.raises(ArgumentError, match="count"):
        permutations(images(), 0, KEY)
    assert len(dihedral(images()[:0], KEY)) == 0

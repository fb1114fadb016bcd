"""Corruptions keep labels, grow with severity and stay in range; label shift has the shares that
are asked for.
"""

import pytest
import torch

import bayesfed as bf
from bayesfed.data.corrupted import STRENGTHS
from bayesfed.errors import ArgumentError, DataError
from bayesfed.keys import Key


@pytest.mark.parametrize("corruption", STRENGTHS)
def test_severity_grows_and_labels_stay(digits, corruption):
    _, test = digits
    inputs = test.inputs.reshape(-1, 8, 8)[:60]
    data = bf.Dataset(inputs / inputs.max(), test.targets[:60])
    made = [bf.data.corrupted(data, corruption, severity) for severity in range(1, 6)]
    assert all(
        one.targets.equal(data.targets) and one.inputs.shape == data.inputs.shape for one in made
    )
    assert all(float(one.inputs.min()) >= 0 and float(one.inputs.max()) <= 1 for one in made)
    distances = [float((one.inputs - data.inputs).square().mean()) for one in made]
    # Places and directions are drawn anew, so that neighbours may change places.
    assert 0 < distances[0] < distances[2] < distances[4]
    assert bf.data.corrupted(data, corruption, 3).inputs.equal(made[2].inputs)
    colour = bf.Dataset(data.inputs[:, None].expand(-1, 3, -1, -1), data.targets)
    if corruption != "noise":
        assert torch.allclose(
            bf.data.corrupted(colour, corruption, 3, key=Key(0, "corrupted")).inputs[:, 1],
            made[2].inputs,
            atol=1e-6,
        )


def test_a_rotation_by_ninety_degrees_is_torchs():
    from bayesfed.data.corrupted import _rotated

    image = torch.rand(1, 1, 6, 6, generator=Key(0, "image").generator())
    turned = _rotated(image, 90.0, Key(1).generator())
    assert any(
        torch.allclose(turned, torch.rot90(image, turns, (-2, -1)), atol=1e-5) for turns in (1, 3)
    )


def test_shifted_labels_have_their_shares():
    data = bf.Dataset(torch.zeros(300, 2), torch.arange(300) % 3)
    shifted = bf.data.label_shifted(data, [0.5, 0.25, 0.0], Key(0))
    assert torch.bincount(shifted.targets, minlength=3).tolist() == [100, 50, 0]
    with pytest.raises(ArgumentError, match="label_shifted, shares"):
        bf.data.label_shifted(data, [0.0, 0.0, 0.0], Key(0))
    few = bf.Dataset(torch.zeros(102, 2), (torch.arange(102) >= 2).long())
    with pytest.raises(
        ArgumentError, match=r"rows for a share of 0.1 of class 1, found classes of \[2, 100\] rows"
    ):
        bf.data.label_shifted(few, [0.9, 0.1], Key(0))
    with pytest.raises(DataError, match="labels 0 to 1"):
        bf.data.label_shifted(data, [0.5, 0.5], Key(0))


def test_what_is_no_image_is_refused(digits):
    image = bf.Dataset(torch.rand(4, 5, 5), torch.zeros(4, dtype=torch.long))
    pairs = bf.data.out_of_distribution(image, Key(0))
    assert set(pairs) == {"inverted", "flipped", "shuffled", "noise"}
    assert torch.allclose(
        pairs["shuffled"].flatten(1).sort().values, image.inputs.flatten(1).sort().values
    )
    with pytest.raises(ArgumentError, match="'blur'"):
        bf.data.corrupted(image, "fog")
    with pytest.raises(ArgumentError, match="1 to 5"):
        bf.data.corrupted(image, "blur", 6)
    with pytest.raises(ArgumentError, match="1 to 5"):
        bf.data.corrupted(image, "blur", 2.0)
    assert len(bf.data.corrupted(image[:0], "rotation", 1)) == 0
    with pytest.raises(DataError, match="images"):
        bf.data.corrupted(bf.Dataset(torch.rand(4, 5), torch.zeros(4)), "blur")
    with pytest.raises(DataError, match="from 0 to 1"):
        bf.data.corrupted(bf.Dataset(3 * image.inputs, image.targets), "blur")

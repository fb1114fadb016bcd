"""A vector of one value whose length is not known, of which nothing can be summed."""

import pytest
import torch

from bayesfed.inference.exact.placed import Level


def test_a_level_has_parts_and_no_sum():
    level = Level(0.2)
    part = level[3:6]
    assert torch.equal(part, torch.full((3,), 0.2, dtype=torch.float64))
    assert len(level) > 1 << 40
    assert level[1 << 50 : (1 << 50) + 2].shape == (2,)
    # The sum of an expanded tensor of 2^40 entries did not end.
    with pytest.raises(AttributeError):
        level.sum()
    with pytest.raises(TypeError):
        torch.sum(level)

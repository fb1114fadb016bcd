"""The step from a row of a grid to the next, against the whole table of the step and against one
axis at a time.
"""

import pytest
import torch

from bayesfed.models.random_fields.transfer_matrix import Transfer, contract


@pytest.mark.parametrize("width", [1, 2, 5, 6])
@pytest.mark.parametrize("strongest", [2.0, 900.0])
def test_a_step_is_the_product_with_the_whole_table(width, strongest):
    torch.manual_seed(0)
    across = torch.randn(3, width, dtype=torch.float64)
    across[1, -1] = strongest
    transfer = Transfer(
        torch.randn(2, 4, width, dtype=torch.float64),
        torch.zeros(4, width - 1, dtype=torch.float64),
        across,
    )
    # Beyond e^600 in all, tables of half a row would overflow.
    assert (transfer.halves is None) == (strongest > 600 and width > 2)
    weights = torch.rand(2, 2**width, dtype=torch.float64)
    for row in range(3):
        exponents = (transfer.bits * across[row].clamp(max=600.0)) @ transfer.bits.T
        torch.testing.assert_close(
            transfer.step(weights, row), weights @ exponents.exp(), rtol=1e-10, atol=0.0
        )
        one_by_one = weights
        for axis, factor in enumerate(across[row].clamp(max=600.0).exp().tolist()):
            one_by_one = contract(one_by_one, factor, axis)
        torch.testing.assert_close(transfer.step(weights, row), one_by_one, rtol=1e-10, atol=0.0)

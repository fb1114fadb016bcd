"""Inputs that predict nothing are refused: rows that are not finite, one row without a batch."""

import pytest
import torch

import bayesfed as bf
from bayesfed.errors import ArgumentError
from tests.support import recipes


@pytest.mark.parametrize("method", ["laplace", "swag"])
def test_inputs_of_a_posterior_are_rows_of_numbers(method):
    if method == "laplace":
        algorithm = bf.laplace(recipes.net())
        result = bf.run(algorithm, recipes.rows(), rounds=1, progress=False)
    else:
        tiny = recipes.tiny_recipes()[method]()
        result = bf.run(tiny.algorithm, tiny.pool(), rounds=4, progress=False)
    row = recipes.rows()["client-0"].inputs[0]
    with pytest.raises(ArgumentError, match=r"\(B, 6\), found one row .* try inputs\[None\]"):
        result.predictive(row)
    assert result.predictive(row[None]).mean.shape == (1, 3)
    holed = torch.stack([row, row])
    holed[1, 2] = float("nan")
    with pytest.raises(ArgumentError, match="finite values, found NaN or Inf in 1 row, first 1"):
        result.predictive(holed)

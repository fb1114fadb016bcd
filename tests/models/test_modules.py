"""Questions about a network that are answered by running it or by looking at its tensors."""

import pytest
import torch
from torch import nn

from bayesfed.errors import DataError
from bayesfed.models.modules import check_last, last_layer, tied
from bayesfed.trees import wide


class Backwards(nn.Module):
    """Register the layers in another order than they are used in."""

    def __init__(self):
        super().__init__()
        self.out, self.hidden = nn.Linear(4, 2), nn.Linear(3, 4)

    def forward(self, x):
        return self.out(self.hidden(x)).softmax(1)


X = torch.zeros(5, 3)


def test_the_last_layer_is_the_last_that_runs():
    assert last_layer(Backwards(), X) == "out"
    assert last_layer(nn.Sequential(nn.Linear(3, 2), nn.Softmax(1)), X) == "0"
    assert last_layer(nn.Flatten(), X) == ""
    net = Backwards()
    check_last(net, {}, "out", X, where="here")
    check_last(net, {}, "hidden", X[:0], where="here")
    with pytest.raises(DataError, match="here: expected the layer registered last, 'hidden'"):
        check_last(net, {}, "hidden", X, where="here")


def test_ties_and_widths_are_those_of_the_tensors():
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2))
    assert tied(net) == frozenset()
    net[1].weight = net[0].weight
    assert tied(net) == {"0.weight", "1.weight"}
    assert not wide({"a": torch.zeros(2), "b": torch.zeros(2, dtype=torch.long)})
    assert wide({"a": torch.zeros(2), "b": torch.zeros(2, dtype=torch.float64)})

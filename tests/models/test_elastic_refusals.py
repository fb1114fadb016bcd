"""Elastic width: networks whose channels cannot be followed, and which operation is named."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import bayesfed as bf
from bayesfed.errors import ArgumentError
from bayesfed.keys import Key
from bayesfed.models import channel_graph

KEY = Key(0, "elastic")


class Functional(nn.Module):
    """One hidden layer of 4 x 6 x 6 and any function before the last."""

    def __init__(self, function, last=4, **layers):
        super().__init__()
        self.conv, self.last, self.function = nn.Conv2d(2, 4, 3), nn.Linear(last, 3), function
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x):
        return self.last(self.function(self, self.conv(x)))


REFUSED = {
    "cat": (
        Functional(lambda net, x: torch.cat([x, x], 1).mean((2, 3)), 8),
        r"channel_graph, cat: expected an operation with a rule",
    ),
    "constant": (
        Functional(lambda net, x: x.view(-1, 144), 144),
        "view: expected a reshape that fits any width, found the constant 144",
    ),
    "constants": (
        Functional(lambda net, x: x.reshape((x.shape[0], 144)), 144),
        "reshape: expected a reshape that fits any width",
    ),
    "order": (
        Functional(lambda net, x: x.mean(3).flatten(0, 1), 6),
        "flatten: expected hidden channels one after the other",
    ),
    "split": (
        Functional(lambda net, x: x.reshape(-1, 2, 2, 36).mean((2, 3)), 2),
        "reshape: expected hidden channels one after the other",
    ),
    "mean": (
        Functional(lambda net, x: x.mean(1).mean(2), 6),
        "mean: expected a mean over pictures, found one over hidden channels",
    ),
    "all": (
        Functional(lambda net, x: x.mean((2, 3)) / x.sum()),
        "sum: expected a mean over pictures",
    ),
    "pool": (
        Functional(lambda net, x: functional.avg_pool1d(x.flatten(1), 36)),
        "avg_pool1d: expected pooling of pictures",
    ),
    "softmax": (
        Functional(lambda net, x: x.mean((2, 3)).softmax(1)),
        "channel_graph, softmax: expected an operation with a rule",
    ),
    "slice": (
        Functional(lambda net, x: x.mean((2, 3))[:, :2], 2),
        "getitem: expected an operation with a rule",
    ),
    "chunk": (
        Functional(lambda net, x: x.mean((2, 3)).chunk(2, 1)[0], 2),
        "chunk: expected .* found several results",
    ),
    "layer": (
        Functional(lambda net, x: net.norm(x.mean((2, 3))), norm=nn.LayerNorm(4)),
        r"channel_graph, 'norm' \(LayerNorm\): expected an operation with a rule",
    ),
    "grouped": (
        Functional(
            lambda net, x: net.grouped(x).mean((2, 3)), grouped=nn.Conv2d(4, 4, 3, groups=2)
        ),
        (
            r"'grouped' \(Conv2d\): expected a convolution of one group, or a depthwise "
            r"nn.Conv, found 2 groups over 4 channels"
        ),
    ),
    "weight": (
        Functional(
            lambda net, x: functional.linear(x.mean((2, 3)), net.other.weight * 2),
            other=nn.Linear(4, 4),
        ),
        "linear: expected a parameter as weight",
    ),
    "paces": (
        Functional(
            lambda net, x: x.flatten(1) + net.other(x).flatten(1),
            144,
            other=nn.Conv2d(4, 6, (3, 1)),
        ),
        "add: expected channels that line up, found channels of 36 and of 24 entries side by side",
    ),
    "branch": (
        Functional(lambda net, x: x.mean((2, 3)) if x.sum() > 0 else x.sum((2, 3))),
        "net: expected a network whose steps do not depend",
    ),
    "sample": (
        Functional(lambda net, x: x.flatten(1), 5),
        r"channel_graph, 'last' \(Linear\): expected a network that takes the sample",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_followed_is_refused(name):
    net, words = REFUSED[name]
    with pytest.raises(ArgumentError, match=words):
        channel_graph(net, torch.zeros(1, 2, 8, 8))


def test_errors_name_the_module_that_calls():
    net = nn.Sequential(Functional(lambda net, x: torch.cat([x, x], 1).mean((2, 3)), 8))
    with pytest.raises(ArgumentError, match="channel_graph, cat in '0': "):
        channel_graph(net, torch.zeros(1, 2, 8, 8))
    hooked = bf.mlp([4, 3, 2], KEY)
    hooked[2].register_forward_hook(lambda module, given, output: output)
    with pytest.raises(ArgumentError, match=r"'2' \(ReLU\): .* found a module with hooks"):
        channel_graph(hooked, torch.zeros(1, 4))
    with pytest.raises(
        ArgumentError,
        match=r"channel_graph, sample: expected a batch \(B, ...\), B > 0, found \(0, 4\)",
    ):
        channel_graph(hooked, torch.zeros(0, 4))

"""Networks and inputs that tests of thin layers share."""

import torch
from torch import nn

from bayesfed.geometry import FixedRank
from bayesfed.keys import Key
from bayesfed.models import mlp
from bayesfed.trees import parameters, size

DOUBLE = torch.float64
SPLITS = ["spatial", "pufferfish"]


def randn(*shape, name="x", dtype=torch.float32):
    return torch.randn(*shape, generator=Key(0, name).generator(), dtype=dtype)


def close(left, right, tolerance=1e-5):
    torch.testing.assert_close(
        left, right, rtol=tolerance, atol=tolerance * float(right.detach().abs().max())
    )


def net(dtype=torch.float32):
    return mlp([12, 9, 4], Key(0, "net")).to(dtype)


def images(dtype=DOUBLE):
    """Convolve twice, then one linear layer: every kind the package's networks have."""
    layers = [
        nn.Conv2d(2, 6, 3, padding=1),
        nn.Tanh(),
        nn.Conv2d(6, 8, 3, stride=2, padding=1, padding_mode="circular"),
        nn.Tanh(),
    ]
    whole = nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 9, 3)).to(dtype)
    with torch.no_grad():
        for name, value in whole.named_parameters():
            value.copy_(randn(*value.shape, name=name, dtype=dtype) * value[0].numel() ** -0.5)
    return whole


class Residual(nn.Module):
    """A block beside its 1 x 1 shortcut."""

    def __init__(self, before, after, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1)
        self.shortcut = nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x):
        return torch.tanh(self.conv2(torch.tanh(self.conv1(x))) + self.shortcut(x))


def residual(dtype=DOUBLE):
    net = nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        Residual(6, 8, 2),
        nn.Flatten(),
        nn.Linear(8 * 9, 12),
        nn.Linear(12, 4),
    )
    net = net.to(dtype)
    with torch.no_grad():
        for name, value in net.named_parameters():
            value.copy_(
                randn(*value.shape, name=name, dtype=dtype) * max(value[0].numel(), 1) ** -0.5
            )
    return net


def millions(net, digits):
    return round(size(parameters(net)) / 1e6, digits)


def matrices(net):
    """The weights of linear layers and convolutions as matrices, by layer."""
    return {
        name: layer.weight.detach().flatten(1)
        for name, layer in net.named_modules()
        if isinstance(layer, nn.Linear | nn.Conv2d)
    }


def error_at(spectrum, rank):
    """Return the Frobenius norm of what a spectrum leaves out at a rank."""
    return float((spectrum.values[rank:].double().square().sum() + spectrum.rest**2).sqrt())


def point_of(layer):
    """Return the weight matrix of a layer of fixed rank."""
    return FixedRank(layer.u, layer.s, layer.v)


def grads(leaves):
    """Return the gradients that backward left in leaves."""
    return {name: leaf.grad for name, leaf in leaves.items()}

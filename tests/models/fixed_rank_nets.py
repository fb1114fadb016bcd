"""Networks and inputs that tests of layers of fixed rank share."""

import torch
from torch import nn

from bayesfed.keys import Key
from bayesfed.models import (
    mlp,
)

DOUBLE = torch.float64


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

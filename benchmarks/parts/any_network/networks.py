"""Twelve small networks of different kinds for 8 x 8 images, as `benchmarks/any_network.py` trains
them.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention


class Images(nn.Module):
    """Layers on images ``(B, 1, 8, 8)``, for rows of 64 pixels."""

    def __init__(self, *layers: nn.Module) -> None:
        """Put the layers in a row."""
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, rows: Tensor) -> Tensor:
        """Return the logits."""
        result: Tensor = self.layers(rows.reshape(len(rows), 1, 8, 8))
        return result


class Recurrent(nn.Module):
    """A recurrent cell that reads an image line by line, and a head on its last output."""

    def __init__(self, cell: type[nn.GRU] | type[nn.LSTM]) -> None:
        """Make the cell."""
        super().__init__()
        self.cell, self.head = cell(8, 32, batch_first=True), nn.Linear(32, 10)

    def forward(self, rows: Tensor) -> Tensor:
        """Return the logits."""
        result: Tensor = self.head(self.cell(rows.reshape(len(rows), 8, 8))[0][:, -1])
        return result


class Attention(nn.Module):
    """One block of attention between the lines of an image, with learned positions."""

    def __init__(self) -> None:
        """Make the layers."""
        super().__init__()
        self.embed, self.norm, self.head = nn.Linear(8, 32), nn.LayerNorm(32), nn.Linear(256, 10)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.positions = nn.Parameter(0.1 * torch.randn(8, 32))

    def forward(self, rows: Tensor) -> Tensor:
        """Return the logits."""
        tokens = self.embed(rows.reshape(len(rows), 8, 8)) + self.positions
        mixed = self.norm(tokens + self.attention(tokens, tokens, tokens, need_weights=False)[0])
        result: Tensor = self.head(mixed.flatten(1))
        return result


class Transformer(nn.Module):
    """A layer of a transformer with rotary positions, whose frequencies are a constant buffer."""

    frequencies: Tensor

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        """Make the layers."""
        super().__init__()
        self.heads, half = heads, width // heads // 2
        self.embed, self.projections, self.out = (
            nn.Linear(8, width),
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
        )
        self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down, self.head = (
            nn.Linear(width, 2 * width),
            nn.Linear(2 * width, width),
            nn.Linear(width, 10),
        )
        self.register_buffer("frequencies", 1 / 100 ** (torch.arange(half) / half))

    def turned(self, tokens: Tensor) -> Tensor:
        """Rotate pairs of features by angles that grow with the position."""
        angle = torch.arange(tokens.shape[-2])[:, None] * self.frequencies
        left, right = tokens.chunk(2, -1)
        return torch.cat(
            [left * angle.cos() - right * angle.sin(), left * angle.sin() + right * angle.cos()], -1
        )

    def forward(self, rows: Tensor) -> Tensor:
        """Return the logits."""
        hidden = self.embed(rows.reshape(len(rows), 8, 8))
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.projections(self.first_norm(hidden)).chunk(3, -1)
        )
        mixed = (
            scaled_dot_product_attention(self.turned(query), self.turned(key), value)
            .transpose(1, 2)
            .flatten(2)
        )
        hidden = hidden + self.out(mixed)
        hidden = hidden + self.down(torch.relu(self.up(self.second_norm(hidden))))
        result: Tensor = self.head(hidden.mean(1))
        return result


class Tied(nn.Module):
    """A classifier on an autoencoder's code, in which two layers share a weight."""

    def __init__(self) -> None:
        """Make the layers."""
        super().__init__()
        self.encode, self.first, self.second, self.head = (
            nn.Linear(64, 32),
            nn.Linear(32, 32),
            nn.Linear(32, 32),
            nn.Linear(32, 10),
        )
        self.second.weight = self.first.weight

    def forward(self, rows: Tensor) -> Tensor:
        """Return the logits."""
        code = torch.relu(self.encode(rows.flatten(1)))
        result: Tensor = self.head(torch.relu(self.second(torch.relu(self.first(code)))))
        return result


class Bag(nn.Module):
    """An image as a bag of (pixel, grey level) words, with an embedding of 1,088 words."""

    def __init__(self) -> None:
        """Make the layers."""
        super().__init__()
        self.words, self.hidden, self.head = (
            nn.EmbeddingBag(64 * 17, 32, mode="sum"),
            nn.Linear(32, 32),
            nn.Linear(32, 10),
        )

    def forward(self, rows: Tensor) -> Tensor:
        """Return the logits."""
        words = (rows.flatten(1) * 16).round().long() + 17 * torch.arange(64)
        result: Tensor = self.head(torch.relu(self.hidden(torch.relu(self.words(words)))))
        return result


class Residual(nn.Module):
    """Two convolutions with group norms, added to their input."""

    def __init__(self, channels: int) -> None:
        """Make the layers."""
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.first_norm, self.second_norm = nn.GroupNorm(4, channels), nn.GroupNorm(4, channels)

    def forward(self, images: Tensor) -> Tensor:
        """Return images of the same shape."""
        hidden = torch.relu(self.first_norm(self.first(images)))
        return torch.relu(images + self.second_norm(self.second(hidden)))


def separable(inputs: int, outputs: int) -> list[nn.Module]:
    """Return a depthwise and a pointwise convolution with norms, as MobileNet has them."""
    depthwise = [
        nn.Conv2d(inputs, inputs, 3, padding=1, groups=inputs),
        nn.GroupNorm(4, inputs),
        nn.ReLU(),
    ]
    return [*depthwise, nn.Conv2d(inputs, outputs, 1), nn.GroupNorm(4, outputs), nn.ReLU()]


def convolution(inputs: int, outputs: int) -> list[nn.Module]:
    """Return a convolution, a batch norm without running statistics, and a pool."""
    return [
        nn.Conv2d(inputs, outputs, 3, padding=1),
        nn.BatchNorm2d(outputs, track_running_stats=False),
        nn.ReLU(),
        nn.MaxPool2d(2),
    ]


def perceptron(*widths: int) -> nn.Module:
    """Return a multilayer perceptron."""
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def transposed() -> nn.Module:
    """Return a network with a transposed convolution."""
    grow = nn.ConvTranspose2d(8, 16, 3, stride=2, padding=1, output_padding=1)
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 32),
        nn.ReLU(),
        nn.Unflatten(1, (8, 2, 2)),
        grow,
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256, 10),
    )


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "MLP": lambda: perceptron(64, 128, 64, 10),
    "small MLP, 400 rows": lambda: perceptron(64, 20, 10),
    "CNN, batch norm": lambda: Images(
        *convolution(1, 16), *convolution(16, 32), nn.Flatten(), nn.Linear(128, 10)
    ),
    "transposed convolution": transposed,
    "residual": lambda: Images(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        Residual(16),
        nn.MaxPool2d(2),
        Residual(16),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 10),
    ),
    "GRU": lambda: Recurrent(nn.GRU),
    "LSTM": lambda: Recurrent(nn.LSTM),
    "attention": Attention,
    "transformer, rotary": Transformer,
    "tied": Tied,
    "embedding bag": Bag,
    "separable": lambda: Images(
        *[nn.Conv2d(1, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU()],
        *separable(16, 32),
        nn.MaxPool2d(2),
        *separable(32, 64),
        *[nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(256, 10)],
    ),
}


def made(name: str, seed: int) -> nn.Module:
    """Return a network with its first values from a seed, without changing torch's generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return NETWORKS[name]()

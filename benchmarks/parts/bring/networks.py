"""Networks and rows of other people: those of transformers made small, others as torchvision, timm
and PyG write them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import bayesfed as bf

ROWS = 96
Inputs = Tensor | Mapping[str, Tensor] | tuple[Tensor, ...]


class Brought(NamedTuple):
    """What somebody brings: network, inputs, targets, and words of why it is refused, by method;
    "" stands for every method. Where there is none, it runs. The likelihood is that of all methods.
    """

    net: Callable[[], nn.Module]
    inputs: Inputs
    targets: Tensor
    refused: Mapping[str, str] = {}
    likelihood: bf.models.Likelihood = bf.Categorical()


class Frozen(nn.Module):
    """FrozenBatchNorm2d of torchvision: statistics and affine are buffers."""

    weight: Tensor
    bias: Tensor
    mean: Tensor
    var: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        for name, value in (("weight", 1.0), ("bias", 0.0), ("mean", 0.0), ("var", 1.0)):
            self.register_buffer(name, torch.full((channels,), value))

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs."""
        scale = self.weight * (self.var + 1e-5).rsqrt()
        return x * scale[:, None, None] + (self.bias - self.mean * scale)[:, None, None]


class Norm2d(nn.LayerNorm):
    """LayerNorm2d of timm, over channels."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs."""
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


class Residual(nn.Module):
    """A block of a residual network."""

    def __init__(self, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(8, 8, 3, padding=1, bias=False), norm(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 8, 3, padding=1, bias=False), norm(8)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs."""
        return torch.relu(x + self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))))


class Images(nn.Module):
    """A residual network, with a head for pixels or for rows, and covariates where there are."""

    def __init__(
        self,
        norm: Callable[[int], nn.Module],
        pixels: bool = False,
        more: int = 0,
        auxiliary: bool = False,
    ):
        super().__init__()
        self.auxiliary = nn.Conv2d(8, 2, 1) if auxiliary else None
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), Residual(norm))
        self.pixels = pixels
        self.fc = nn.Conv2d(8, 2, 1) if pixels else nn.Linear(8 + more, 2)

    def forward(self, image: Tensor, covariates: Tensor | None = None) -> Any:
        """Return the outputs."""
        seen = self.stem(image)
        if self.pixels:
            found = {"out": self.fc(seen)}
            return found if self.auxiliary is None else {**found, "aux": self.auxiliary(seen)}
        pooled = seen.mean((2, 3))
        return self.fc(pooled if covariates is None else torch.cat([pooled, covariates], 1))


class Graphs(nn.Module):
    """Two convolutions on graphs, and a mean over their nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.lin = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        """Return the outputs."""
        hidden = torch.relu(adjacency @ self.conv1(x))
        found: Tensor = self.lin(torch.relu(adjacency @ self.conv2(hidden)).mean(1))
        return found


def _transformer(kind: str, tags: bool = False) -> nn.Module:
    hf: Any = importlib.import_module("transformers")

    torch.manual_seed(0)
    small: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    if kind == "gpt2":
        gpt2 = hf.GPT2Config(vocab_size=30, n_embd=16, n_layer=1, n_head=2, pad_token_id=0)
        made = hf.GPT2ForSequenceClassification(gpt2)
    elif kind == "vit":
        vit = hf.ViTConfig(**small, intermediate_size=32, image_size=8, patch_size=4)
        made = hf.ViTForImageClassification(vit)
    else:
        bert = hf.BertConfig(vocab_size=30, **small, intermediate_size=32)
        made = (hf.BertForTokenClassification if tags else hf.BertForSequenceClassification)(bert)
    network: nn.Module = made
    return network


def brought() -> dict[str, Brought]:
    """Return what people bring, by name."""
    generator = torch.Generator().manual_seed(0)
    targets = torch.arange(ROWS) % 2
    images = torch.randn(ROWS, 3, 8, 8, generator=generator) + 1.5 * targets.view(-1, 1, 1, 1)
    # The word that tells comes last, where GPT-2 reads.
    ids = torch.randint(3, 30, (ROWS, 6), generator=generator)
    ids[:, -2:] = 1 + targets[:, None]
    mask = torch.ones_like(ids)
    text = {"input_ids": ids, "attention_mask": mask}
    tags = ids % 2
    tags[:, 0] = -100
    pixels = (images.mean(1) > 0).long()
    pixels[:, 0] = 255
    adjacency = torch.eye(5).repeat(ROWS, 1, 1)
    nodes = torch.randn(ROWS, 5, 4, generator=generator) + targets.view(-1, 1, 1)
    covariates = torch.randn(ROWS, 2, generator=generator)
    running = {"": "running statistics|static"}
    several_outputs = {"": "one tensor of outputs.*returning\\(net, 'out'\\)"}
    by_place = {"": "Labels\\("}
    labels = {"": "integer labels|class labels, whose accuracy"}

    def seeded(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        def made() -> nn.Module:
            torch.manual_seed(0)
            return make()

        return made

    def group(channels: int) -> nn.Module:
        return nn.GroupNorm(2, channels)

    vit = {"pixel_values": images}
    mixed = (images, covariates)
    several = torch.stack([targets, 1 - targets], 1).float()
    return {
        "bert": Brought(lambda: _transformer("bert"), text, targets),
        "gpt2": Brought(lambda: _transformer("gpt2"), text, targets),
        "vit": Brought(lambda: _transformer("vit"), vit, targets),
        "resnet, group norm": Brought(seeded(lambda: Images(group)), images, targets),
        "resnet, batch norm": Brought(
            seeded(lambda: Images(nn.BatchNorm2d)), images, targets, running
        ),
        "resnet, frozen batch norm": Brought(seeded(lambda: Images(Frozen)), images, targets),
        "convnet, timm's norm": Brought(seeded(lambda: Images(Norm2d)), images, targets),
        "image and covariates": Brought(seeded(lambda: Images(group, more=2)), mixed, targets),
        "graphs": Brought(seeded(Graphs), {"x": nodes, "adjacency": adjacency}, targets),
        "segmentation": Brought(
            seeded(lambda: Images(group, pixels=True)),
            images,
            pixels,
            likelihood=bf.models.Labels(axis=1, ignored=255),
        ),
        "segmentation, two heads": Brought(
            seeded(lambda: Images(group, pixels=True, auxiliary=True)),
            images,
            pixels,
            several_outputs,
        ),
        "segmentation, by its name": Brought(
            seeded(lambda: bf.models.returning(Images(group, pixels=True, auxiliary=True), "out")),
            images,
            pixels,
            likelihood=bf.models.Labels(axis=1, ignored=255),
        ),
        "token tags": Brought(
            lambda: _transformer("bert", tags=True), text, tags, likelihood=bf.models.Labels()
        ),
        "token tags as one label": Brought(
            lambda: _transformer("bert", tags=True), text, tags, by_place
        ),
        "multi-label": Brought(seeded(lambda: Images(group)), images, several, labels),
        "counts": Brought(
            seeded(lambda: Images(group)),
            images,
            targets * 7,
            {"": "0 to 1, the network's outputs"},
        ),
        "survival": Brought(seeded(lambda: Images(group)), images, several * 3.5, labels),
    }

"""Networks of other people: those of transformers made small, others as torchvision, timm and PyG
write them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Norm = Callable[[int], nn.Module]
SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
WORDS = {"vocab_size": 30, "intermediate_size": 32, "pad_token_id": 0, **SMALL}
PIXELS = {"image_size": 8, "patch_size": 4, "intermediate_size": 32, **SMALL}
TEXTS, TAGS = "ForSequenceClassification", "ForTokenClassification"
IMAGES = "ForImageClassification"
LAYERS = {"n_layer": 1, "n_head": 2, "pad_token_id": 0}
STAGES = {"depths": [1, 1], "hidden_sizes": [8, 16]}
# Name of the class without its ending, and its settings where the small ones do not do.
OWN: dict[str, dict[str, Any]] = {
    "DistilBert": {"vocab_size": 30, "dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 32},
    "Albert": {**WORDS, "embedding_size": 8},
    "Electra": {**WORDS, "embedding_size": 8},
    "GPT2": {"vocab_size": 30, "n_embd": 16, "eos_token_id": 1, "bos_token_id": 1, **LAYERS},
    "Llama": {**WORDS, "num_key_value_heads": 2, "eos_token_id": 1, "bos_token_id": 1},
    "ViT": PIXELS,
    "ConvNext": {"patch_size": 2, "num_stages": 2, **STAGES},
    "ResNet": {"embedding_size": 8, "layer_type": "basic", **STAGES},
}


def transformer(kind: str, task: str = TEXTS) -> nn.Module:
    """Return a network of transformers for two classes."""
    hf: Any = importlib.import_module("transformers")
    config = getattr(hf, f"{kind}Config")(**OWN.get(kind, WORDS))
    network: nn.Module = getattr(hf, f"{kind}{task}")(config)
    return network


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


class OverChannels(nn.Module):
    """LayerNorm2d and RmsNorm2d of timm: a norm of the last axis, over channels."""

    def __init__(self, norm: Norm, channels: int) -> None:
        super().__init__()
        self.norm = norm(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs."""
        found: Tensor = self.norm(x.movedim(1, -1)).movedim(-1, 1)
        return found


NORMS: dict[str, Norm] = {
    "group": lambda channels: nn.GroupNorm(2, channels),
    "batch": nn.BatchNorm2d,
    "batch of its own": lambda channels: nn.BatchNorm2d(channels, track_running_stats=False),
    "frozen": Frozen,
    "instance": lambda channels: nn.InstanceNorm2d(channels, affine=True),
    "layer": lambda channels: OverChannels(nn.LayerNorm, channels),
    "rms": lambda channels: OverChannels(nn.RMSNorm, channels),
}


class Residual(nn.Module):
    """A block of a residual network."""

    def __init__(self, norm: Norm, groups: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(8, 8, 3, padding=1, bias=False, groups=groups)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1, bias=False, groups=groups)
        self.bn1, self.bn2 = norm(8), norm(8)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs."""
        return torch.relu(x + self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))))


class Images(nn.Module):
    """A residual network, with a head for pixels or for rows, another beside it where one is named,
    and covariates where there are.
    """

    def __init__(
        self,
        norm: str = "group",
        wide: int = 2,
        *,
        more: int = 0,
        groups: int = 1,
        heads: tuple[str, ...] = (),
        boxes: int = 0,
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), Residual(NORMS[norm], groups))
        self.heads, self.boxes = heads, boxes
        self.fc: nn.Module = nn.Linear(8 + more, wide)
        if heads:
            self.fc = nn.Conv2d(8, max(1, boxes) * 2, 1)
        if len(heads) > 1:
            self.beside = nn.Conv2d(8, 4, 1)

    def forward(self, image: Tensor, covariates: Tensor | None = None) -> Any:
        """Return the outputs."""
        seen = self.stem(image)
        if self.heads:
            found = self.fc(seen)
            if self.boxes:
                # As torchvision's detectors: scores of each box, (B, A, C).
                found = found.mean((2, 3)).unflatten(1, (self.boxes, 2))
            several = (found, self.beside(seen)) if len(self.heads) > 1 else (found,)
            return dict(zip(self.heads, several, strict=True))
        pooled = seen.mean((2, 3))
        return self.fc(pooled if covariates is None else torch.cat([pooled, covariates], 1))


class Graphs(nn.Module):
    """Two layers on graphs, which sum over neighbours or attend to them, and a mean over nodes."""

    def __init__(self, attends: bool = False) -> None:
        super().__init__()
        self.conv1, self.conv2, self.lin = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 2)
        self.score = nn.Linear(8, 1) if attends else None

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        """Return the outputs."""
        hidden = self.conv1(x)
        if self.score is not None:
            weights = self.score(hidden).mT.masked_fill(adjacency == 0, -torch.inf)
            adjacency = weights.softmax(-1)
        hidden = torch.relu(adjacency @ hidden)
        found: Tensor = self.lin(torch.relu(adjacency @ self.conv2(hidden)).mean(1))
        return found


class Words(nn.Module):
    """Embedded words, read by a layer, and a head of their mean."""

    def __init__(self, reads: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.words, self.reads, self.fc = nn.Embedding(30, 8), reads(), nn.Linear(8, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return the outputs."""
        found = self.reads(self.words(input_ids))
        read = found[0] if isinstance(found, tuple) else found
        counted: Tensor = (read * attention_mask[..., None]).sum(1)
        outputs: Tensor = self.fc(counted / attention_mask.sum(1, keepdim=True))
        return outputs


def series() -> nn.Module:
    """Return convolutions over a series of three channels."""
    layers = nn.Conv1d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten()
    net = nn.Sequential(*layers)
    net.add_module("fc", nn.Linear(8, 2))
    return net


def table(wide: int = 2) -> nn.Module:
    """Return a network of a table's columns."""
    net = nn.Sequential(nn.Linear(4, 16), nn.LayerNorm(16), nn.SiLU())
    net.add_module("fc", nn.Linear(16, wide))
    return net

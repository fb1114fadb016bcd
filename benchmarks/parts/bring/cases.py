"""What people bring: 48 networks with their rows, as a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

import bayesfed as bf
from parts.bring.networks import (
    IMAGES,
    TAGS,
    Graphs,
    Images,
    Words,
    series,
    table,
    transformer,
)

ROWS = 96
Inputs = Tensor | Mapping[str, Tensor] | tuple[Tensor, ...]


class Brought(NamedTuple):
    """What somebody brings: network, inputs, targets, likelihood, and words of why it is refused,
    by method; "" stands for every method. Where there is none, it runs.
    """

    net: Callable[[], nn.Module]
    inputs: Inputs
    targets: Tensor
    likelihood: bf.models.Likelihood = bf.Categorical()
    refused: Mapping[str, str] = {}


# Which of two kinds each row is of: what a model has to tell.
KINDS = torch.arange(ROWS) % 2
RUNNING = {"": "running statistics|static"}
SEVERAL = {"": r"one tensor of outputs.*returning\(net, '(out|cls_logits)'\)"}
NOTHING = {"fed_lora": "expected a layer to replace, found none"}
DEPTHWISE = {"fed_lora": "a convolution of one group.*try a predicate that leaves it out"}
BY_PLACE = bf.models.Labels(axis=1, ignored=255)


def brought() -> dict[str, Brought]:
    """Return what people bring, by name."""
    generator = torch.Generator().manual_seed(0)

    def noise(*shape: int) -> Tensor:
        return torch.randn(ROWS, *shape, generator=generator)

    targets, up = KINDS, KINDS.float()
    images = noise(3, 8, 8) + 1.5 * up.view(-1, 1, 1, 1)
    columns, signals = noise(4) + 1.5 * up[:, None], noise(3, 9) + up.view(-1, 1, 1)
    # The word that tells comes last, where GPT-2 reads.
    ids = torch.randint(3, 30, (ROWS, 6), generator=generator)
    ids[:, -2:] = 1 + targets[:, None]
    text = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    tags, pixels = ids % 2, (images.mean(1) > 0).long()
    tags[:, 0], pixels[:, 0] = -100, 255
    nodes, covariates = noise(5, 4) + up.view(-1, 1, 1), noise(2)
    ring = torch.eye(5) + torch.eye(5).roll(1, 0)
    graphs = {"x": nodes, "adjacency": ring.repeat(ROWS, 1, 1)}
    boxes = targets[:, None].expand(-1, 4).contiguous()
    both = torch.stack([up, 1 - up], 1)
    counts = torch.poisson(1 + 6 * up, generator=generator)[:, None]
    exposed = torch.cat([counts, torch.ones(ROWS, 1)], 1)
    numbers = 2 * up[:, None] + 0.3 * noise(1)
    times = torch.stack([(1 + 4 * up) * noise().exp(), (torch.arange(ROWS) % 5 > 0).float()], 1)
    ordered = (targets + (torch.arange(ROWS) % 4 == 3)).clamp(max=2)
    likelihoods, labels, pictured = bf.models, {"": "integer labels|class labels"}, partial(Images)
    mixed = likelihoods.Several((bf.Categorical(), bf.Normal()), (2, 1))
    outcomes = torch.cat([up[:, None], numbers], 1)
    detected = partial(Images, heads=("cls_logits", "bbox_regression"), boxes=4)
    segmented = partial(Images, heads=("out", "aux"))
    by_token = likelihoods.Labels()
    bert = partial(transformer, "Bert", TAGS)
    return {
        # transformers
        "bert": Brought(partial(transformer, "Bert"), text, targets),
        "distilbert": Brought(partial(transformer, "DistilBert"), text, targets),
        "roberta": Brought(partial(transformer, "Roberta"), text, targets),
        "albert": Brought(partial(transformer, "Albert"), text, targets),
        "electra": Brought(partial(transformer, "Electra"), text, targets),
        "gpt2": Brought(partial(transformer, "GPT2"), text, targets),
        "llama": Brought(partial(transformer, "Llama"), text, targets),
        "vit": Brought(partial(transformer, "ViT", IMAGES), {"pixel_values": images}, targets),
        "convnext": Brought(
            partial(transformer, "ConvNext", IMAGES), images, targets, refused=DEPTHWISE
        ),
        "transformers' resnet": Brought(
            partial(transformer, "ResNet", IMAGES), images, targets, refused=RUNNING
        ),
        "token tags": Brought(bert, text, tags, by_token),
        "token tags of gpt2": Brought(partial(transformer, "GPT2", TAGS), text, tags, by_token),
        "token tags as one label": Brought(bert, text, tags, refused={"": r"Labels\("}),
        # torchvision's and timm's
        "resnet, group norm": Brought(pictured, images, targets),
        "resnet, batch norm": Brought(partial(Images, "batch"), images, targets, refused=RUNNING),
        "resnet, statistics of a batch": Brought(
            partial(Images, "batch of its own"), images, targets
        ),
        "resnet, frozen batch norm": Brought(partial(Images, "frozen"), images, targets),
        "resnet, instance norm": Brought(partial(Images, "instance"), images, targets),
        "convnet, timm's layer norm": Brought(partial(Images, "layer"), images, targets),
        "convnet, timm's rms norm": Brought(partial(Images, "rms"), images, targets),
        "depthwise convolutions": Brought(
            partial(Images, groups=8), images, targets, refused=DEPTHWISE
        ),
        "image and covariates": Brought(partial(Images, more=2), (images, covariates), targets),
        "the same by name": Brought(
            partial(Images, more=2), {"covariates": covariates, "image": images}, targets
        ),
        "segmentation": Brought(partial(Images, heads=("out",)), images, pixels, BY_PLACE),
        "segmentation, two heads": Brought(segmented, images, pixels, BY_PLACE, SEVERAL),
        "segmentation, by its name": Brought(
            lambda: bf.models.returning(segmented(), "out"), images, pixels, BY_PLACE
        ),
        "detection": Brought(detected, images, boxes, by_token, SEVERAL),
        "detection, by its name": Brought(
            lambda: bf.models.returning(detected(), "cls_logits"), images, boxes, by_token
        ),
        # Graphs, texts, series and tables
        "graphs": Brought(Graphs, graphs, targets),
        "graphs, attention": Brought(partial(Graphs, attends=True), graphs, targets),
        "words, mean": Brought(partial(Words, nn.Identity), text, targets, refused=NOTHING),
        "words, lstm": Brought(
            partial(Words, lambda: nn.LSTM(8, 8, batch_first=True)), text, targets, refused=NOTHING
        ),
        "words, gru": Brought(
            partial(Words, lambda: nn.GRU(8, 8, batch_first=True)), text, targets, refused=NOTHING
        ),
        "words, attention": Brought(
            partial(Words, lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)),
            text,
            targets,
            refused={"fed_lora": "out_proj.*try a predicate that leaves it out"},
        ),
        "series": Brought(series, signals, targets),
        "table": Brought(table, columns, targets),
        # Targets
        "multi-label as classes": Brought(pictured, images, both, refused=labels),
        "multi-label": Brought(pictured, images, both, likelihoods.Bernoulli()),
        "counts as classes": Brought(
            pictured,
            images,
            counts[:, 0].long(),
            refused={"": "0 to 1, the network's outputs"},
        ),
        "counts": Brought(partial(Images, wide=1), images, counts, likelihoods.Poisson()),
        "counts, exposure": Brought(
            table, columns, exposed, likelihoods.NegativeBinomial(exposure=True)
        ),
        "survival as classes": Brought(pictured, images, times, refused=labels),
        "survival": Brought(pictured, images, times, likelihoods.Weibull()),
        "survival, by interval": Brought(
            table, columns, times, likelihoods.PiecewiseExponential((3.0,))
        ),
        "ordered classes": Brought(table, columns, ordered, likelihoods.Ordinal()),
        "numbers": Brought(partial(table, 1), columns, numbers, likelihoods.StudentT()),
        "numbers, own noise": Brought(pictured, images, numbers, bf.Normal(sd=None)),
        "several outcomes": Brought(partial(table, 3), columns, outcomes, mixed),
    }

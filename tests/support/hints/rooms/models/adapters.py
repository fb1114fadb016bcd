"""Messages of `bayesfed.models.adapters`."""

import tempfile
from pathlib import Path

import torch
from torch import nn

import bayesfed as bf
from bayesfed.models import adapters, importance_sketch, load_peft, lora_rank, merged, save_peft
from bayesfed.models.adapters.lora_layers import LoraLinear
from bayesfed.models.adapters.sketching import slice_norms
from bayesfed.trees import parameters
from tests.adapters.test_peft import CONFIG, WEIGHTS, configured, weighted

COMPLETE = ("bayesfed/models/adapters",)
KEY = bf.Key(0)
PREFIX = "base_model.model."


def net():
    """Return a network without adapters."""
    return bf.mlp([4, 5, 3], KEY)


def adapted(**settings):
    """Return a network with adapters."""
    return bf.lora(net(), 2, KEY, **settings)


def written(made=None):
    """Return a folder of adapters."""
    folder = Path(tempfile.mkdtemp())
    save_peft(adapted() if made is None else made, None, folder)
    return folder


def loaded(change=lambda folder: None):
    """Load adapters from a folder that was changed."""
    folder = written()
    change(folder)
    return load_peft(net(), folder)


def pickled(folder):
    """Leave weights as older `peft` wrote them."""
    (folder / WEIGHTS).rename((folder / WEIGHTS).with_suffix(".bin"))


def renamed(folder):
    """Add weights of a layer that the network has not."""
    weighted(
        folder, lambda tensors: tensors.update({f"{PREFIX}no.lora_B.weight": torch.zeros(5, 2)})
    )


def bare(folder):
    """Add weights under another name than those of `peft`."""
    weighted(folder, lambda tensors: tensors.update({"1.lora_B.weight": torch.zeros(5, 2)}))


def of_head(*head):
    """Write adapters and a layer that is trained whole."""
    layers = {"head": nn.Linear(3, 2), "other_head": nn.Linear(2, 2), "first": nn.Linear(3, 3)}
    first = lambda name, module: name == "first.weight"  # noqa: E731
    return written(bf.lora(nn.ModuleDict(layers), 1, KEY, where=first, head=head))


def of_scales(*scales):
    """Return a network with adapters of scales."""
    made = adapted()
    for layer, scale in zip(adapters(made).values(), scales, strict=True):
        layer.scale = scale
    return made


def of_pictures(*names):
    """Write adapters of a convolution and a linear layer."""
    layers = nn.Sequential(nn.Conv2d(1, 2, 2), nn.Flatten(), nn.Linear(8, 3))
    return written(bf.lora(layers, 1, KEY, where=lambda name, module: name in names))


BASE = {name: leaf + 1 for name, leaf in parameters(adapted()).items() if ".base." in name}
ALONE = bf.lora(nn.Linear(3, 2), 1, KEY)
B, A = torch.zeros(3, 2), torch.zeros(2, 4)
CASES = [
    (
        lambda: of_pictures("0.weight", "2.weight"),
        "merged(net, tree), or a predicate that leaves them out of lora",
        lambda: of_pictures("2.weight"),
    ),
    (
        lambda: bf.lora(adapted(), 2, KEY),
        "merged(net)",
        lambda: bf.lora(merged(adapted()), 2, KEY),
    ),
    (lambda head: adapted(head=head), ["none"]),
    (lambda: lora_rank(net()), "lora(net, 8, key)", lambda: lora_rank(bf.lora(net(), 3, KEY))),
    (
        lambda: LoraLinear(nn.Linear(4, 3), B, torch.zeros(3, 4), 1.0),
        "lora(net, rank, key)",
        adapted,
    ),
    (lambda dropout: LoraLinear(nn.Linear(4, 3), B, A, 1.0, dropout), 1.0),
    (lambda: loaded(renamed), "the network that was adapted", loaded),
    (lambda: loaded(lambda folder: configured(folder, r=3)), "a leaf of this shape", loaded),
    # `peft`, which takes seconds to import, merges as `merged` does.
    (
        lambda: loaded(lambda folder: configured(folder, use_dora=True)),
        "merging it into the weights with peft",
        lambda: merged(adapted()),
    ),
    (
        lambda: loaded(lambda folder: (folder / CONFIG).write_text("")),
        "save_peft",
        loaded,
    ),
    (lambda: loaded(pickled), "peft's save_pretrained of today", loaded),
    (lambda: loaded(lambda folder: (folder / WEIGHTS).unlink()), "save_peft", loaded),
    (lambda: loaded(bare), "save_peft", loaded),
    (
        lambda: save_peft(adapted(), BASE, tempfile.mkdtemp()),
        "merged(net, tree)",
        lambda: merged(adapted(), BASE),
    ),
    (
        lambda: written(ALONE),
        "lora(nn.Sequential(merged(net)), 8, key)",
        lambda: written(bf.lora(nn.Sequential(merged(ALONE)), 2, KEY)),
    ),
    (
        lambda: written(of_scales(1.0, 2.0)),
        "lora(merged(net), 8, key)",
        lambda: written(bf.lora(merged(of_scales(1.0, 2.0)), 2, KEY)),
    ),
    (
        lambda: of_head("head"),
        "lora's head=[...] of such modules alone, trained whole",
        lambda: of_head("other_head"),
    ),
    (lambda floor: importance_sketch(torch.ones(3), 2, KEY, floor=floor), 1.5),
    (
        lambda: importance_sketch(-torch.ones(2), 1, KEY),
        "slice_norms(b, a)",
        lambda: importance_sketch(slice_norms(B + 1, A + 1), 1, KEY),
    ),
]

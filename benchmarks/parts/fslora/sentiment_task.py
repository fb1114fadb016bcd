"""The texts and the pretrained network of `fslora.py`: four domains' sentiment, MiniLM, and its
lower layers' states computed once.

Where only the top is adapted, what lies below never changes: a row is then its states before the
first adapted layer, ``(L, 385)``, or before the last layer's output, ``(L, 1921)``, the mask in the
last column, and the network is what is from there on. Logits are those of the whole network.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from tqdm import tqdm

import bayesfed as bf
from bayesfed.data import by_domain
from bayesfed.federated.engine.metrics import score
from bayesfed.models.nets.text import TextClassifier, by_name

Model = Callable[[Tensor], Tensor]
_CHUNK = 64


class Tail(nn.Module):
    """The last layers of a BERT, the mean over tokens and the classifier.

    Parameters
    ----------
    whole
        A `text_classifier`, whose layers and classifier are shared.
    layers
        How many.
    """

    def __init__(self, whole: TextClassifier, layers: int) -> None:
        super().__init__()
        self.name = f"{layers}"
        self.layers: Any = nn.ModuleList(list(_layers(whole))[-layers:])
        self.classifier = whole.classifier

    def forward(self, rows: Tensor) -> Tensor:
        """Map states with their masks, ``(B, L, width + 1)``, to logits. Padding, half of the rows,
        goes into attention alone.
        """
        states, mask = _used(rows)
        there = mask.bool()
        kept = states[there]
        for layer in self.layers:
            own = layer.attention.self
            heads = (own.num_attention_heads, -1)
            queries, keys, values = (
                _padded(linear(kept), there).unflatten(-1, heads).transpose(1, 2)
                for linear in (own.query, own.key, own.value)
            )
            seen = scaled_dot_product_attention(queries, keys, values, there[:, None, None])
            seen = layer.attention.output(seen.transpose(1, 2)[there].flatten(1), kept)
            kept = layer.output(layer.intermediate(seen), seen)
        return _logits(self.classifier, _padded(kept, there), mask)

    def below(self, whole: TextClassifier, tokens: Tensor) -> Tensor:
        """Return the states that come in, ``(B, L, width)``."""
        states = whole.encoder(**by_name(tokens), output_hidden_states=True).hidden_states
        found: Tensor = states[-1 - len(self.layers)]
        return found


class Output(nn.Module):
    """The second half of the last layer's feed-forward part, the mean over tokens and the
    classifier: what `last_output` adapts, and above.
    """

    def __init__(self, whole: TextClassifier) -> None:
        super().__init__()
        self.name = "output"
        self.output: Any = _layers(whole)[-1].get_submodule("output")
        self.classifier = whole.classifier

    def forward(self, rows: Tensor) -> Tensor:
        """Map what goes into it, what it is added to and masks, ``(B, L, 4 width + width + 1)``, to
        logits.
        """
        states, mask = _used(rows)
        width = self.classifier.in_features
        return _logits(
            self.classifier, self.output(states[..., :-width], states[..., -width:]), mask
        )

    def below(self, whole: TextClassifier, tokens: Tensor) -> Tensor:
        """Return the states that come in, ``(B, L, 4 width + width)``."""
        found = list[Tensor]()
        hook = self.output.register_forward_pre_hook(
            lambda module, given: found.append(torch.cat(given, -1))
        )
        try:
            whole.encoder(**by_name(tokens))
        finally:
            hook.remove()
        return found[0]


def _padded(kept: Tensor, there: Tensor) -> Tensor:
    """Return tokens ``(T, width)`` where they are in their rows, ``(B, L, width)``."""
    rows = kept.new_zeros(*there.shape, kept.shape[-1])
    return rows.masked_scatter(there[..., None], kept)


def _used(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Cut rows after their longest; return states and mask."""
    mask = rows[..., -1]
    used = int(mask.any(0).nonzero().max()) + 1
    return rows[:, :used, :-1], mask[:, :used]


def _logits(classifier: nn.Module, states: Tensor, mask: Tensor) -> Tensor:
    found: Tensor = classifier((states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))
    return found


@dataclass(frozen=True)
class Rows:
    """Rows, and the domain of each."""

    data: bf.Dataset
    domains: Sequence[str]

    def parts(self) -> dict[str, bf.Dataset]:
        """Return the rows of each domain."""
        return {name: self.data[rows] for name, rows in by_domain(self.domains).items()}


@dataclass(frozen=True)
class Task:
    """The network that is adapted, without adapters, and its rows."""

    net: nn.Module
    train: Rows
    test: Rows

    def scores(self, model: Model) -> dict[str, float]:
        """Return what a model is scored by: its accuracy on the test rows of each domain."""
        return {name: score(model, data) for name, data in self.test.parts().items()}


def last_output(name: str, module: nn.Module) -> bool:
    """Choose the second layer of the feed-forward part: below it nothing needs a gradient."""
    return name.endswith("output.dense.weight") and "attention" not in name


def task(settings: dict[str, Any], folder: Path, cache: Path, *, held_out: bool = False) -> Task:
    """Return a scale's network and rows, the same for every seed; with `held_out` the rows that are
    scored are taken from the training rows.
    """
    model = bf.data.minilm_folder()
    whole = bf.models.text_classifier(model, 2, bf.Key(0, "classifier"), dropout=0.0)
    train, test = bf.data.sentiment(folder, threshold=settings["threshold"]).split(
        settings["tested"], bf.Key(0, "test")
    )
    if held_out:
        train, test = train.split(settings["tested"], bf.Key(0, "held out"))
    top: Tail | Output | None = Output(whole) if settings.get("where") == "last output" else None
    if top is None and settings["layers"]:
        top = Tail(whole, settings["layers"])
    rows = []
    for name, texts, count in (
        ("train", train, settings["rows"]),
        ("test", test, settings["scored"]),
    ):
        chosen = texts[
            torch.cat(
                [
                    _some(part, count, bf.Key(0, name, domain))
                    for domain, part in by_domain(texts.domains).items()
                ]
            )
        ]
        tokens = bf.data.tokenised(chosen, model, length=settings["length"], cache=cache)
        data = (
            tokens
            if top is None
            else bf.Dataset(states_of(whole, tokens.inputs, top, cache, name), tokens.targets)
        )
        rows.append(Rows(data, chosen.domains))
    return Task(whole if top is None else top, rows[0], rows[1])


def _some(rows: Tensor, count: int, key: bf.Key) -> Tensor:
    """Return at most so many rows, drawn; all of them for a count of 0."""
    return rows[torch.randperm(len(rows), generator=key.generator())[: count or None]]


def _layers(whole: TextClassifier) -> nn.ModuleList:
    found = whole.encoder.get_submodule("encoder.layer")
    if not isinstance(found, nn.ModuleList):
        raise TypeError("a BERT has a list of layers")
    return found


@torch.no_grad()
def states_of(
    whole: TextClassifier, tokens: Tensor, top: Tail | Output, cache: Path, name: str
) -> Tensor:
    """Return the states that come into the top, their masks in the last column, from the cache if
    they were computed before.
    """
    digest = hashlib.blake2b(
        tokens.contiguous().numpy().data, digest_size=8, key=top.name.encode()
    ).hexdigest()
    file = cache / f"states_{digest}.safetensors"
    if file.exists():
        return load_file(file)["states"]
    mask = tokens[:, 1]
    width = top.below(whole, tokens[:1]).shape[-1]
    states = torch.zeros(*mask.shape, width + 1)
    states[..., -1] = mask.float()
    for part in tqdm(
        mask.sum(1).argsort().split(_CHUNK), f"frozen layers, {name} rows", unit="batch"
    ):
        used = int(mask[part].sum(1).max())
        states[part, :used, :width] = top.below(whole, tokens[part, :, :used])
    largest = (top(states[:_CHUNK]) - whole(tokens[:_CHUNK])).abs().max()
    if not largest < 1e-4:
        raise RuntimeError(
            f"logits of the last layers are off by {float(largest):.1e}: these layers are "
            "not a BERT's"
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file({"states": states}, file.with_suffix(".part"))
    file.with_suffix(".part").replace(file)
    return states

"""A text classifier on a pretrained encoder: the mean of the tokens' states, then one linear layer.

    net = text_classifier(minilm_folder(), 2, key)
    net = lora(net, 64, key, where=query_value, head=["classifier"])

Inputs are tokens ``(B, 2, L)``, of pairs ``(B, 3, L)``, as returned by `bayesfed.data.tokenised`.

References
----------
Reimers and Gurevych (2019), Sentence-BERT: mean pooling over the mask.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bayesfed.data.texts.pretrained import model_folder, offline
from bayesfed.errors import ArgumentError, DataError, LocalText, needs
from bayesfed.errors.checks import check, checked, number, whole
from bayesfed.keys import Key
from bayesfed.models.nets.building_blocks import initialised

# Rows of similar length that are run together without gradients, since padding costs time.
_CHUNK = 64
_ROWS = ("input_ids", "attention_mask", "token_type_ids")
_QUERY_VALUE = ("query", "value", "q_proj", "v_proj", "q_lin", "v_lin")


class TextClassifier(nn.Module):
    """Logits ``(B, C)`` of tokens ``(B, 2, L)``, of pairs ``(B, 3, L)``: a linear layer on the mean
    of an encoder's last states.

    Parameters
    ----------
    encoder
        Called with `input_ids` and `attention_mask`, ``(B, L)``, and of pairs `token_type_ids`;
        returns an object with `last_hidden_state`, ``(B, L, width)``. Not copied.
    classifier
        Linear layer from the encoder's width to C.
    """

    def __init__(self, encoder: nn.Module, classifier: nn.Linear) -> None:
        super().__init__()
        self.encoder = encoder
        self.classifier = classifier

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of each row. Columns that are padding in all rows are left out."""
        lengths = tokens[:, 1].sum(1)
        if torch.is_grad_enabled() or len(tokens) <= _CHUNK:
            pooled = self._pooled(tokens)
        else:
            order = lengths.argsort(stable=True)
            pooled = torch.cat([self._pooled(tokens[part]) for part in order.split(_CHUNK)])[
                order.argsort()
            ]
        logits: Tensor = self.classifier(pooled)
        return logits

    def _pooled(self, tokens: Tensor) -> Tensor:
        used = tokens[:, 1].any(0).nonzero()
        tokens = tokens[:, :, : int(used.max()) + 1 if len(used) else 1]
        states = self.encoder(**by_name(tokens)).last_hidden_state
        weights = tokens[:, 1, :, None].to(states)
        pooled: Tensor = (states * weights).sum(1) / weights.sum(1).clamp(min=1)
        return pooled


def by_name(tokens: Tensor) -> dict[str, Tensor]:
    """Return the rows of tokens as an encoder's arguments."""
    return dict(zip(_ROWS, tokens.unbind(1), strict=False))


@checked()
def text_classifier(
    encoder: str | Path | nn.Module, classes: int, key: Key, *, dropout: float = 0.0
) -> TextClassifier:
    """Return a classifier on a pretrained encoder, in training mode.

    Parameters
    ----------
    encoder
        A folder with a transformers model as safetensors, such as `minilm_folder`, or the name of a
        model in Hugging Face's cache. Nothing is downloaded or unpickled, and no code from the
        folder is run; a layer that pools the first token is left out. Or a transformers encoder,
        which is used as it is, its own dropout included.
    classes
        C, the number of classes.
    key
        Random key of the linear layer, whose name is ``classifier``.
    dropout
        Dropout probability of an encoder from a folder, in place of the one in its settings. With 0
        nothing is drawn, so clients may train in threads.

    Raises
    ------
    MissingExtraError
        If transformers is not installed.
    ArgumentError
        If there are fewer than two classes, or `dropout` is outside [0, 1).
    DataError
        If no model is found, or weights are missing from its file.
    """
    check("text_classifier, classes", classes, whole(2, "2"))
    check("text_classifier, dropout", dropout, number("[0, 1)", "0.1"))
    body = encoder if isinstance(encoder, nn.Module) else _loaded(model_folder(encoder), dropout)
    width = getattr(getattr(body, "config", None), "hidden_size", None)
    if not isinstance(width, int):
        raise ArgumentError(
            "text_classifier",
            "an encoder with config.hidden_size",
            type(body).__name__,
            "a BertModel",
        )
    head = initialised(nn.utils.skip_init(nn.Linear, width, classes), key)
    return TextClassifier(body, head).train()


def query_value(name: str, module: nn.Module) -> bool:
    """Select the weights of attention's query and value layers, as the BERT, LLaMA and DistilBERT
    families name them: a ``where`` for `lora`.
    """
    path, _, leaf = name.rpartition(".")
    return (
        leaf == "weight"
        and path.rpartition(".")[2] in _QUERY_VALUE
        and isinstance(module, nn.Linear)
    )


def _loaded(folder: Path, dropout: float) -> nn.Module:
    """Load an encoder from a folder."""
    transformers = needs("transformers", "lora")
    safely: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    config = offline(
        "a model's settings",
        folder,
        lambda: transformers.AutoConfig.from_pretrained(folder, **safely),
    )
    for name, value in config.to_dict().items():
        if "drop" in name and isinstance(value, float):
            setattr(config, name, dropout)
    with _without_bar():
        body, loading_info = offline(
            "a model's weights as safetensors",
            folder,
            lambda: transformers.AutoModel.from_pretrained(
                folder, config=config, use_safetensors=True, output_loading_info=True, **safely
            ),
        )
    pooler = getattr(body, "pooler", None)
    if missing := sorted(
        name for name in loading_info["missing_keys"] if not name.startswith("pooler.")
    ):
        # Transformers would go on with random numbers in their place.
        raise DataError(
            LocalText(folder),
            "all weights of the model",
            f"no {missing[:3]}",
            "the published files",
        )
    if isinstance(pooler, nn.Module):
        body.pooler = None
    whole: nn.Module = body.float()
    return whole


@contextmanager
def _without_bar() -> Iterator[None]:
    """Show no progress bar while weights are loaded."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()

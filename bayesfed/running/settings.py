"""What results depend on, as small tables and files: settings of an algorithm, read off the values
that it is made of, and versions of packages.
"""

from __future__ import annotations

import json
import platform
from ast import literal_eval
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bayesfed.data.files import write_whole
from bayesfed.federated import Algorithm
from bayesfed.federated.engine.settings import Described

PACKAGES = ("bayesfed", "torch", "pyro-ppl", "numpy", "scipy", "networkx", "arviz", "safetensors")
Setting = bool | int | float | str
"""Value of a setting, as every tracker takes it."""


def settings_of(algorithm: Algorithm) -> dict[str, Setting]:
    """Return the settings of an algorithm: numbers, words and the names of parts, by their paths.

    The local step, server, link and layers of every phase are read. What is None is left out, and
    so are keys (noise that protects clients is drawn from one). A part that is used in two places
    is described in the first.

    Parameters
    ----------
    algorithm
        Any algorithm.

    Returns
    -------
    dict
        For example ``{"algorithm": "fed_avg", "train.local": "Descent", "train.local.steps": 50,
        "train.local.optimiser": "Sgd", ...}``.
    """
    described = Described(once=True)
    for phase in algorithm.phases:
        parts = {part: getattr(phase, part) for part in ("local", "server", "link")}
        parts |= {f"layers.{layer.owner}": layer for layer in phase.layers}
        for name, part in parts.items():
            described.add(f"{phase.name}.{name}", part)
    found = {name: _plain(text) for name, text in described.entries.items()}
    return {"algorithm": algorithm.name} | {
        name: value for name, value in found.items() if value not in ("None", "Key")
    }


def _plain(text: str) -> Setting:
    """Return the number or word that a text is, or the text itself."""
    try:
        value = literal_eval(text)
    except (ValueError, SyntaxError):
        return text
    return value if isinstance(value, Setting) else text


def read_json(path: Path) -> Any:
    """Return what a JSON file has."""
    return json.loads(path.read_text(encoding="utf-8"))


def write_json(path: Path, content: object) -> None:
    """Write a JSON file as a whole."""
    write_whole(path, json.dumps(content, indent=1, default=str).encode())


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that results depend on."""
    return {"python": platform.python_version(), "platform": platform.platform()} | {
        name: installed(name) or "not installed" for name in PACKAGES
    }


def installed(package: str) -> str:
    """Return the version of a package, or nothing if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def note_versions(path: Path) -> None:
    """Add the versions of today to those of a folder, if they differ from the last ones."""
    path.mkdir(parents=True, exist_ok=True)
    kept = path / "versions.json"
    earlier: list[dict[str, str]] = read_json(kept) if kept.is_file() else []
    if earlier[-1:] != [versions()]:
        write_json(kept, [*earlier, versions()])

"""Settings of an algorithm as a flat table, read off the values that it is made of."""

from __future__ import annotations

from ast import literal_eval

from bayesfed.federated import Algorithm
from bayesfed.federated.engine.settings import Described

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

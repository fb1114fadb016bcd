"""A program's settings: ``settings.toml`` in its folder of `parts`, in which a case says only what
differs.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def settings_of(room: str, name: str = "settings") -> dict[str, Any]:
    """Return what a file of settings has."""
    return tomllib.loads(
        (Path(__file__).parents[1] / room / f"{name}.toml").read_text(encoding="utf-8")
    )


def resolved(
    cases: Mapping[str, Mapping[str, Any]], name: str, base: Mapping[str, Any]
) -> dict[str, Any]:
    """Return all settings of a case: those that all share, those of the case it is like,
    its own.
    """
    own = dict(cases[name])
    return {**(resolved(cases, own.pop("like"), base) if "like" in own else base), **own}

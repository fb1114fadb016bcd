"""`citation`: the BibTeX entries to cite for a method."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from importlib.resources import files

from bayesfed.algorithms.registry import method, methods
from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import checked
from bayesfed.federated import Algorithm, Phase

# Papers of what a method can be combined with: rules of fusion, wrappers, rules of `robust`, power
# control.
_RULES: dict[str, tuple[str, ...]] = {
    "PVI": ("ashman2022partitioned",),
    "ProductOfExperts": ("hinton2002training",),
    "private": ("mcmahan2018learning",),
    "secure": ("bonawitz2017practical", "bell2020secure"),
    "on_devices": ("li2023anycostfl",),
    "robust": ("yin2018byzantine", "blanchard2017machine"),
    "Median": ("yin2018byzantine",),
    "TrimmedMean": ("yin2018byzantine",),
    "Krum": ("blanchard2017machine",),
    "FedAvgM": ("hsu2019measuring",),
    "FedAdagrad": ("reddi2021adaptive",),
    "FedAdam": ("reddi2021adaptive",),
    "FedYogi": ("reddi2021adaptive",),
    "Gbma": ("sery2020analog",),
    "ChannelInversion": ("xing2021federated",),
}
# Wrappers, by what they leave in an algorithm.
_AROUND = {"private": "private", "devices": "on_devices", "SummedServer": "secure"}


@checked()
def citation(algorithm: Algorithm | str) -> str:
    """Return the BibTeX entries to cite for a method, its own paper first.

    Parameters
    ----------
    algorithm
        An algorithm, or the name of a recipe (``"fed_avg"``), of a rule (``"PVI"``, ``"Krum"``) or
        of a wrapper (``"private"``). For an algorithm, the papers of its parts come after its own:
        its rule of fusion, the optimiser of its server, `robust` and its rule, `private`, `secure`,
        `on_devices`, the power control of `OverTheAir`.

    Raises
    ------
    ArgumentError
        If there is no such recipe, whose nearest name the message gives, or an entry is missing.
    """
    name = algorithm if isinstance(algorithm, str) else algorithm.name
    registered = method(name)
    if registered is None and name not in _RULES:
        known = [*methods(), *_RULES]
        close = get_close_matches(name, known, n=1, cutoff=0.4)
        hint = repr(close[0]) if close else ", ".join(map(repr, known))
        raise ArgumentError("citation", "a recipe or a rule", repr(name), hint)
    keys = list(registered.cites if registered else _RULES[name])
    if not isinstance(algorithm, str):
        keys += [key for part in _parts(algorithm) for key in _RULES.get(part, ())]
    entries = _entries() | (_read(registered.bibtex) if registered else {})
    if missing := [key for key in keys if key not in entries]:
        hint = "recipe(cites=..., bibtex=...)"
        raise ArgumentError(
            f"citation of {name!r}", "a BibTeX entry for each key", f"none for {missing}", hint
        )
    return "\n\n".join(entries[key] for key in dict.fromkeys(keys))


def _parts(value: object) -> Iterator[str]:
    """Yield the names of what an algorithm's servers, layers and links are made of, the innermost
    first.
    """
    if isinstance(value, Algorithm):
        for phase in value.phases:
            yield from _parts(phase)
    elif isinstance(value, Phase):
        yield from _parts(value.server)
        for layer in reversed(value.layers):
            yield from _parts(layer)
            yield _AROUND.get(layer.owner, "")
        yield from _parts(value.link)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from _parts(getattr(value, field.name))
        yield _AROUND.get(type(value).__name__, type(value).__name__)


def _entries() -> dict[str, str]:
    """Return the entries of `references.bib` by key."""
    return _read(
        files("bayesfed.algorithms").joinpath("references.bib").read_text(encoding="utf-8")
    )


def _read(text: str) -> dict[str, str]:
    return {
        entry.group(1): entry.group(0)
        for entry in re.finditer(r"^@\w+\{(\w+),$.*?^\}$", text, re.MULTILINE | re.DOTALL)
    }

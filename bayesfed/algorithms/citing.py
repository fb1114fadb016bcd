"""What to cite for a method: BibTeX of the papers that it is from."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from importlib.resources import files

from bayesfed.errors import ArgumentError, complain
from bayesfed.federated.core.algorithm import Algorithm

# Papers by `Algorithm.name`, the method's own first, then what it is built from.
_KEYS: dict[str, tuple[str, ...]] = {
    "anycost_fl": ("li2023anycostfl",),
    "batch_statistics": ("diao2021heterofl",),
    "bayesian_lora": ("fang2025federated", "hu2021lora", "bingham2019pyro"),
    "conjugate": ("bishop2006pattern",),
    "d_turbo_vbi": ("xia2024bayesian",),
    "dssm": ("ji2022dynamic",),
    "fed_avg": ("mcmahan2017communication",),
    "fed_hm": ("yao2021fedhm",),
    "fed_hq": ("chen2021dynamic",),
    "fed_l1": ("yang2020proxsgd", "xue2023riemannian"),
    "fed_lora": ("zhang2024towards", "hu2021lora"),
    "fed_mid": ("yuan2021federated", "xue2023riemannian"),
    "fed_paq": ("reisizadeh2020fedpaq",),
    "fed_prox": ("li2020federated",),
    "fed_prune": ("han2015learning", "xue2023riemannian"),
    "fed_rlr": ("xue2023riemannian",),
    "fed_stack_lora": ("wang2024flora", "hu2021lora"),
    "federated_svi": ("bingham2019pyro",),
    "ffa_lora": ("sun2024improving", "hu2021lora"),
    "flex_lora": ("bai2024federated", "hu2021lora"),
    "fs_lora": ("fang2025federated", "hu2021lora"),
    "hetero_fl": ("diao2021heterofl",),
    "hetero_lora": ("cho2024heterogeneous", "hu2021lora"),
    "qsgd": ("alistarh2017qsgd",),
    "split_mix": ("hong2022efficient",),
    "stc": ("sattler2020robust",),
    "uveqfed": ("shlezinger2021uveqfed",),
}
# What a method is combined with, where that is a method of its own: rules of fusion, what is put around a method, rules of `robust`, the air.
_RULES: dict[str, tuple[str, ...]] = {
    "PVI": ("ashman2022partitioned",),
    "ProductOfExperts": ("hinton2002training",),
    "private": ("mcmahan2018learning",),
    "on_devices": ("li2023anycostfl",),
    "robust": ("yin2018byzantine", "blanchard2017machine"),
    "Median": ("yin2018byzantine",),
    "TrimmedMean": ("yin2018byzantine",),
    "Krum": ("blanchard2017machine",),
    "Gbma": ("sery2020analog",),
    "ChannelInversion": ("xing2021federated",),
}
# By the server or link that it leaves in an algorithm.
_AROUND = {"Noised": "private", "Cell": "on_devices"}


def citation(algorithm: Algorithm | str) -> str:
    """Return the BibTeX entries to cite for a method, its own paper first.

    Parameters
    ----------
    algorithm
        An algorithm, or the name of a recipe (``"fed_avg"``), of a rule (``"PVI"``, ``"Krum"``) or of what is put around a recipe (``"private"``). Of
        an algorithm, the papers of all that it is put together from come along: its rule of fusion, `robust` and its rule, `private`, `on_devices`,
        the power control of `OverTheAir`.

    Raises
    ------
    ArgumentError
        If there is no such recipe; the message names the nearest one.
    """
    name = algorithm if isinstance(algorithm, str) else algorithm.name
    known = {**_KEYS, **_RULES}
    if name not in known:
        close = get_close_matches(name, known, n=1, cutoff=0.4)
        hint = repr(close[0]) if close else ", ".join(map(repr, known))
        raise ArgumentError(complain("citation", expected="a recipe or a rule", actual=repr(name), hint=hint))
    keys = list(known[name])
    if not isinstance(algorithm, str):
        keys += [key for part in _parts(algorithm) for key in _RULES.get(part, ())]
    entries = _entries()
    return "\n\n".join(entries[key] for key in dict.fromkeys(keys))


def _parts(algorithm: Algorithm) -> Iterator[str]:
    """Yield names of what an algorithm's servers and links are put together from, the innermost first."""
    for phase in algorithm.phases:
        for whole, inner, parts in ((phase.server, "server", ("fusion", "rule")), (phase.link, "link", ("power",))):
            nested: list[object] = [whole]
            while (within := getattr(nested[-1], inner, None)) is not None:
                nested.append(within)
            for one in reversed(nested):
                yield _AROUND.get(type(one).__name__, "")
                yield from (type(getattr(one, part, None)).__name__ for part in parts)


def _entries() -> dict[str, str]:
    """Return the entries of the file that is shipped, by key."""
    text = files("bayesfed.algorithms").joinpath("references.bib").read_text(encoding="utf-8")
    return {entry.group(1): entry.group(0) for entry in re.finditer(r"^@\w+\{(\w+),$.*?^\}$", text, re.MULTILINE | re.DOTALL)}

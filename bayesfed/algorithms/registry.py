"""The one registration of a method: its name, its function and what to cite. Citations, the command
line, tests and the reference read it.

A recipe is registered where it is written::

    @recipe(cites=("mcmahan2017communication",))
    def fed_avg(net, *, training=Training(), ...): ...

Recipes of this package are also listed in `algorithms/__init__.pyi`, from which `bayesfed` and
`bayesfed.algorithms` import them at first use.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from importlib.resources import files
from typing import ParamSpec

from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import Role, checked, checked_class, number, whole
from bayesfed.errors.nearness import nearest
from bayesfed.federated import Algorithm, Phase
from bayesfed.federated.clients import one_thread

Arguments = ParamSpec("Arguments")


# What the arguments of recipes must be, by their names.
ROLES: dict[str, Role] = {
    "ratios": Role(
        lambda value: isinstance(value, list | tuple),
        "a list of ratios, the largest first",
        "[1.0, 0.5, 0.25]",
    ),
    "observations": whole(1, "len(train)"),
    "statistics": Role(
        callable, "a function of a client's rows", "lambda rows: {'h': rows.targets.sum()}"
    ),
    "samples": whole(1, "3"),
    "draws": whole(1, "10"),
    "begin": whole(0, "20"),
    "every": whole(1, "1"),
    "field": Role(callable, "a function of the round", "lambda round: -1.5, or ramp(-1.5, 30)"),
    "strength": number("[0, inf)", "0.01"),
    "participation": number("(0, 1]", "1.0, or that of `fraction`"),
}


@checked_class()
@dataclass(frozen=True)
class Method:
    """A registered recipe.

    Parameters
    ----------
    name
        Name of the recipe, and of the algorithms that it returns.
    make
        The function that returns an `Algorithm`.
    cites
        Keys of BibTeX entries, the method's own paper first.
    bibtex
        Those entries, for methods outside of this package; its own are in `references.bib`.
    """

    name: str
    make: Callable[..., Algorithm]
    cites: tuple[str, ...]
    bibtex: str = ""


_REGISTERED: dict[str, Method] = {}


@checked()
def recipe(
    *, cites: tuple[str, ...] = (), bibtex: str = "", **roles: Role
) -> Callable[[Callable[Arguments, Algorithm]], Callable[Arguments, Algorithm]]:
    """Register a function that returns an `Algorithm` as a recipe, under its own name.

    Parameters
    ----------
    cites
        Keys of the BibTeX entries to cite, the method's own paper first.
    bibtex
        Those entries, for methods outside of this package.
    **roles
        What arguments must be, by their names, where a call is to be refused otherwise. Methods of
        this package need none for arguments of `ROLES`. Others are checked by their annotations.

    Raises
    ------
    ArgumentError
        If a method of this package has that name. A name from elsewhere may be registered again, as
        a notebook does that runs twice.
    """

    def registered(make: Callable[Arguments, Algorithm]) -> Callable[Arguments, Algorithm]:
        name = make.__name__
        other = _REGISTERED.get(name)
        if other and other.make.__module__ != make.__module__ and _is_shipped(other.make):
            raise ArgumentError(
                "recipe",
                "a name of its own",
                f"{name!r}, which {other.make.__module__} has",
                "another name",
            )
        entry, every = make, roles
        if _is_shipped(make):
            # The state before round 0 has the same bits on any number of cores. Methods of others
            # may use the names of `ROLES` for something else.
            entry, every = one_thread()(make), ROLES | roles
        entry = checked(**every)(entry) if every else entry
        _REGISTERED[name] = Method(name, entry, cites, bibtex)
        return entry

    return registered


def _is_shipped(make: Callable[..., Algorithm]) -> bool:
    return make.__module__.partition(".")[0] == __name__.partition(".")[0]


def methods() -> Mapping[str, Method]:
    """Return every registered recipe by name: those of this package, and those that were imported
    from elsewhere.

    Examples
    --------
    >>> sorted(methods())[:2]
    ['anycost_fl', 'batch_statistics']
    >>> methods()["fed_avg"].cites
    ('mcmahan2017communication',)
    """
    from bayesfed import algorithms

    for name in vars(algorithms)["__all__"]:
        # Importing a recipe registers it.
        getattr(algorithms, name)
    return dict(sorted(_REGISTERED.items()))


def method(name: str) -> Method | None:
    """Return one registered recipe; None if there is none of that name."""
    from bayesfed import algorithms

    if name in vars(algorithms)["__all__"]:
        getattr(algorithms, name)
    return _REGISTERED.get(name)


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
        close = nearest(name, known)
        raise ArgumentError(
            "citation",
            "a recipe or a rule",
            repr(name),
            repr(close) if close else ", ".join(map(repr, known)),
        )
    keys = list(registered.cites if registered else _RULES[name])
    if not isinstance(algorithm, str):
        keys += [key for part in _parts(algorithm) for key in _RULES.get(part, ())]
    entries = _entries() | (_read(registered.bibtex) if registered else {})
    if missing := [key for key in keys if key not in entries]:
        raise ArgumentError(
            f"citation of {name!r}",
            "a BibTeX entry for each key",
            f"none for {missing}",
            "recipe(cites=..., bibtex=...)",
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

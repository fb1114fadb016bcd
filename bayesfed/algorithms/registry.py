"""The one registration of a method: its name, its function and what to cite. Citations, the command
line, tests and the reference read it.

A recipe is registered where it is written::

    @recipe(cites=("mcmahan2017communication",))
    def fed_avg(net, *, training=Training(), ...): ...

Recipes of this package are also listed in `algorithms/__init__.pyi`, from which `bayesfed` and
`bayesfed.algorithms` import them at first use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ParamSpec

from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import (
    CALLABLE,
    checked,
    checked_class,
    number,
    whole,
)
from bayesfed.errors.roles import Role
from bayesfed.federated import Algorithm

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
        CALLABLE.fits, "a function of a client's rows", "lambda rows: {'h': rows.targets.sum()}"
    ),
    "samples": whole(1, "3"),
    "draws": whole(1, "10"),
    "begin": whole(0, "20"),
    "every": whole(1, "1"),
    "field": Role(
        CALLABLE.fits, "a function of the round", "lambda round: -1.5, or ramp(-1.5, 30)"
    ),
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
            actual = f"{name!r}, which {other.make.__module__} has"
            raise ArgumentError("recipe", "a name of its own", actual, "another name")
        # Methods of others may use the names of `ROLES` for something else.
        every = ROLES | roles if _is_shipped(make) else roles
        entry = checked(said=None, **every)(make) if every else make
        _REGISTERED[name] = Method(name, entry, cites, bibtex)
        return entry

    return registered


def _is_shipped(make: Callable[..., Algorithm]) -> bool:
    return make.__module__.partition(".")[0] == __name__.partition(".")[0]


def methods() -> Mapping[str, Method]:
    """Return every registered recipe by name: those of this package, and those that were imported
    from elsewhere.
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

"""The hints of roles and annotations: every role of every function that is `@checked`."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import bayesfed
from bayesfed.errors.checks import ITSELF
from bayesfed.errors.roles import Role
from tests.support.hints.world import evaluated

# Hints in words, which nothing can evaluate, and what they say.
WORDS = {
    "torch.as_tensor(evidence), or observed={name: state} for states that were seen": "what was "
    "given, or another argument",
    "torch.as_tensor(log_weights)": "what was given",
    "observed={name: 0}; a state is its place in the tables": "a variable of a graph beside it",
    "the number of sizes": "it is counted in an argument beside it",
    "fading(key, client, round)": "a method of an argument beside it",
    "inf": "a default as it is printed: infinity",
    "leaving this client out of the round": "a weight of zero, told to who wrote the layer",
    "FactorGraph.from_networkx(graph), or a support's lower(shape)": "a graph of networkx",
    "device.distance_m(key, client, round)": "a method of an argument beside it",
    "pandas.DataFrame([{'x': 1.0}])": "a frame of a package that is an extra",
    "result.snapshot.memories['name']": "what a site of any name keeps",
    "experiment.parts": "those of the experiment that is run",
}
# What `shown` and `hint_of` say of a default or an annotation: they name a class or a function.
NAMED = re.compile(
    r"(?:(?:an? |the (?:function|class) )\w+(?: or |, each (?:value )?)?)+|an instance of its class"
)


@dataclass(frozen=True)
class Wanted:
    """A role of a parameter, and where it is checked."""

    where: str
    role: Role
    annotation: str
    # Whether the parameter is ``*values``, of which a hint shows one.
    several: bool = False

    @property
    def in_words(self) -> bool:
        """Whether the hint names a type, a class or a function, or is in `WORDS`."""
        hint = self.role.hint
        return hint in WORDS or bool(NAMED.fullmatch(hint))

    def problem(self) -> str:
        """Return what is wrong with the hint; empty if each of its expressions fits the role."""
        if self.role.hint in (self.annotation, self.annotation.removesuffix(" | None")):
            return f"{self.where}: {self.role.hint!r} is the annotation, and no value"
        if self.in_words:
            return ""
        try:
            values = evaluated(self.role.hint)
        except Exception as problem:
            return f"{self.where}: {self.role.hint!r} ends in {type(problem).__name__}: {problem}"
        if not values:
            return f"{self.where}: {self.role.hint!r} has no expression, and is not in WORDS"
        # A call of the function itself has worked.
        whole = self.where.partition(",")[0].rpartition(".")[2]
        wrong = [
            text
            for text, value in values
            if not (
                text.startswith(f"{whole}(")
                or _fits(self.role, value)
                or (self.several and _fits(self.role, [value]))
            )
        ]
        return f"{self.where}: {wrong} of {self.role.hint!r} are refused too" if wrong else ""


def wanted() -> Iterator[Wanted]:
    """Yield every role that is checked, but `ITSELF`."""
    for where, function in sorted(_checked().items()):
        closed = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        parameters = inspect.signature(function).parameters
        for name, role in closed["every"].cell_contents():
            if role is not ITSELF and name in parameters:
                parameter = parameters[name]
                several = parameter.kind is parameter.VAR_POSITIONAL
                yield Wanted(f"{where}, {name}", role, str(parameter.annotation), several)


def _fits(role: Role, value: Any) -> bool:
    try:
        return bool(role.fits(value))
    except (TypeError, RuntimeError):
        return False


def _checked() -> dict[str, FunctionType]:
    found: dict[str, FunctionType] = {}
    for one in pkgutil.walk_packages(bayesfed.__path__, "bayesfed."):
        if one.name.endswith("__main__"):
            continue
        try:
            module = importlib.import_module(one.name)
        except ImportError:
            # An extra that is not installed.
            continue
        for value in vars(module).values():
            inside = vars(value).values() if isinstance(value, type) else (value,)
            for part in (getattr(one, "__func__", one) for one in inside):
                if isinstance(part, FunctionType) and "every" in part.__code__.co_freevars:
                    name = value.__qualname__ if isinstance(value, type) else part.__qualname__
                    made = part.__name__ == "__init__" or not isinstance(value, type)
                    found[f"{part.__module__}.{name if made else part.__qualname__}"] = part
    return found

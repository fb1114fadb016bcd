"""Calls that are wrong in one argument: of another type, shape or range, misspelt, swapped."""

from __future__ import annotations

import inspect
import itertools
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch

import bayesfed as bf
from bayesfed.errors import BayesfedError
from tests.support.doors.given import BESIDE, of
from tests.support.doors.meanings import HANDED, MEANINGS


class Stranger:
    """An object of nobody's."""


@dataclass(frozen=True)
class Call:
    """A call of a public callable, and what is wrong with it."""

    name: str
    parameter: str
    kind: str
    function: Callable[..., Any]
    arguments: dict[str, Any]

    def __str__(self) -> str:
        given = self.arguments.get(self.parameter)
        return f"{self.name}, {self.parameter}, {self.kind}: {str(given)[:60]!r}"


# Names of the rooms that were once names of the package.
BELOW = (
    *("algorithms.Factors", "algorithms.Method", "algorithms.Points", "algorithms.Tangents"),
    *("algorithms.epsilon", "data.cifar10", "federated.FedBuff", "federated.Ivon"),
    *("models.Channels", "models.SpikeAndSlab"),
)


def callables() -> dict[str, Callable[..., Any]]:
    """Return the public callables by name."""
    found = {name: getattr(bf, name) for name in dir(bf) if not name.startswith("_")}
    found |= {name.rpartition(".")[2]: attrgetter(name)(bf) for name in BELOW}
    return {name: one for name, one in found.items() if callable(one) and name not in HANDED}


def right(name: str, function: Callable[..., Any]) -> dict[str, Any]:
    """Return the arguments that a callable needs."""
    return {**BESIDE.get(name, {})} | {
        parameter.name: of(name, parameter.name)
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }


def wrong_calls() -> Iterator[Call]:
    """Yield the wrong calls of every public callable."""
    for name, function in callables().items():
        given = right(name, function)
        parameters = inspect.signature(function).parameters.values()
        for parameter in parameters:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            text = str(parameter.annotation)
            value = given.get(parameter.name, parameter.default)
            for kind, other in values(text, value):
                if type(other) is type(value) and other == () == value:
                    continue
                yield Call(name, parameter.name, kind, function, {**given, parameter.name: other})
            if parameter.kind is not parameter.POSITIONAL_ONLY:
                rest = {key: one for key, one in given.items() if key != parameter.name}
                for misspelt in (f"{parameter.name}s", parameter.name.swapcase()):
                    wrong = {**rest, misspelt: value}
                    yield Call(name, parameter.name, "misspelt", function, wrong)
        needed = list(given)
        for left, other in itertools.pairwise(needed):
            swapped = {**given, left: given[other], other: given[left]}
            yield Call(name, left, "swapped", function, swapped)


def values(annotation: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield arguments that cannot be meant where one of this annotation is taken."""
    yield "type", Stranger()
    if "str" not in annotation and "Path" not in annotation and "Hashable" not in annotation:
        yield "type", "nonsense"
    if "None" not in annotation and value is not None:
        yield "type", None
    if isinstance(value, torch.Tensor):
        yield "shape", torch.zeros(1, 1, 1, 1, 1)
        yield "shape", torch.tensor(0.0)
    elif isinstance(value, list | tuple):
        yield "shape", [[[]]]
        yield "shape", type(value)()
    elif "Sequence" not in annotation and "tuple" not in annotation:
        yield "shape", [value]
        yield "shape", torch.zeros(2, 2)
    if "float" in annotation or "int" in annotation:
        yield "range", math.nan
        yield "range", -math.inf
        yield "range", -3
        if "float" not in annotation:
            yield "range", 0.5
    elif "Literal" in annotation:
        yield "range", "nonsense"


def outcome(call: Call) -> str:
    """Make a call: "refused" by an error of the package, "meant" as `MEANINGS` says, "silent", or
    the error that is none of the package.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call.function(**call.arguments)
    except BayesfedError:
        return "refused"
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"
    return "meant" if f"{call.name}.{call.parameter} {call.kind}" in MEANINGS else "silent"

"""Checks of the arguments of public functions, so that a wrong one is named where it was given and
not where it first does harm.

A `Role` says what an argument must be and what to pass instead; `checked` makes a function check
its arguments by the roles of their names and by their annotations, and name the nearest keyword if
it has none of that name. An argument that may be None, by its default or its annotation, is not
checked if it is.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from typing import Any, ParamSpec, TypeVar, get_args

import torch
from torch import Tensor

from bayesfed.errors import ArgumentError, KeywordError
from bayesfed.errors.examples import PLAIN, is_expression, make_example
from bayesfed.errors.nearness import nearest
from bayesfed.errors.roles import Role as Role  # noqa: PLC0414 passed on
from bayesfed.errors.roles import an, annotated, role_of

Arguments = ParamSpec("Arguments")
Value = TypeVar("Value")
LONGEST = 60
WHOLE, NUMBER = role_of(int), role_of(float)
# What a keyword of other libraries is called here.
ELSEWHERE = {
    **dict.fromkeys(
        ("lr", "learning_rate", "optimizer", "optim", "momentum"),
        "training=Training(optimiser=Sgd(0.1))",
    ),
    **dict.fromkeys(
        ("steps", "epochs", "local_epochs", "local_steps", "batch_size", "optimiser", "schedule"),
        "training=Training(steps=50)",
    ),
    **dict.fromkeys(("mu", "lam", "lambda_", "regularization"), "strength=0.01"),
    **dict.fromkeys(("loss", "criterion", "loss_fn"), "likelihood=Categorical()"),
    **dict.fromkeys(("num_rounds", "n_rounds", "global_rounds"), "rounds=10"),
    **dict.fromkeys(("test_data", "test_set", "validation"), "test=data"),
    **dict.fromkeys(("device", "cuda"), "data.to('cuda')"),
}
# What to pass for a kind, by its name in an annotation.
HINTS = {
    "Predictor": "result.model",
    "Algorithm": "fed_avg(net)",
    "Callback": "evaluate(test)",
    "Capacity": "fixed(sorted(clients), 2) or dynamic(2) or by_device(...)",
    "Codec": "Cast(16), Coded(TopK(0.1))",
    "Dataset": "Dataset(inputs, targets)",
    "Declared": "declare(net)",
    "Elbo": "Trace_ELBO()",
    "FlexibleMap": "public_settings(net, public, key)",
    "Key": "Key(0, 'purpose')",
    "LeafCodec": "TopK(0.1) or Qsgd(8)",
    "Likelihood": "Categorical(), or Normal(sd=1.0) for numbers",
    "Link": "Digital(), or OverTheAir(snr_db=20.0)",
    "Module": "mlp([64, 32, 10], Key(0))",
    "Optimiser": "Sgd(0.05), Adam(1e-3)",
    "Planner": "Planner(shrunk_shares(...), deadline_s=5.0)",
    "PowerControl": "Gbma(), or ChannelInversion(0.3)",
    "Predicate": "lambda name, module: name.endswith('weight')",
    "Schedule": "cosine(0.1, rounds)",
    "Server": "Average(), or an instance of its class",
    "ServerOptimiser": "FedAdam(0.01), FedAvgM()",
    "Training": "Training(steps=50, batch_size=64)",
    "WeightPrior": "Gaussian(1.0), or declare for a Prior",
}
OF_TRAINING = {
    **dict.fromkeys(
        ("lr", "learning_rate", "optimizer", "optim", "momentum"), "optimiser=Sgd(0.1)"
    ),
    "local_epochs": "epochs=1.0",
}


def a(kind: type | tuple[type, ...], expected: str, hint: str) -> Role:
    """Return the role of an instance of a class."""
    return Role(lambda value: isinstance(value, kind), expected, hint)


def whole(least: int, hint: str, most: float = math.inf) -> Role:
    """Return the role of a whole number from `least` to `most`."""
    return Role(
        lambda value: WHOLE.fits(value) and least <= int(value) <= most,
        f"a whole number >= {least}" if most == math.inf else f"an integer from {least} to {most}",
        hint,
    )


def one_of(words: Any, hint: str = "") -> Role:
    """Return the role of one of some words or numbers, or of those of a `Literal`."""
    known = get_args(words) or words
    expected = f"one of {', '.join(map(repr, known)) or 'none'}"
    return Role(lambda value: value in known, expected, hint or repr(known[0]), known)


def number(interval: str, hint: str, words: str = "") -> Role:
    """Return the role of a number in an interval, ``"(0, 1]"`` or ``"[0, inf)"``, and in words, if
    they say it better.
    """
    low, high = map(float, interval[1:-1].split(","))

    def fits(value: Any) -> bool:
        return (
            NUMBER.fits(value)
            and (low < value or (interval[0] == "[" and low == value))
            and (value < high or (interval[-1] == "]" and value == high))
        )

    return Role(fits, words or f"a number in {interval}", hint)


# A standard deviation, a scale, a precision or a temperature.
SCALE = number("(0, inf)", "1.0")
SHARE = number("(0, 1]", "0.1", "a share above 0 and at most 1")
PART = number("(0, 1)", "0.2", "a number between 0 and 1")
POSITIVE = number("(0, inf)", "1.0", "a positive finite number")
NOT_NEGATIVE = number("[0, inf)", "0.0", "a finite number from 0 up")
COUNT = whole(1, "10")
# What a function checks itself, in words of its own.
ITSELF = Role(lambda value: True, "anything")
LABELS = Role(
    lambda value: (
        isinstance(value, Tensor)
        and value.ndim == 1
        and value.dtype != torch.bool
        and bool((value == value.round()).all())
    ),
    "class labels (N,), a tensor of whole numbers",
    "train.targets",
)


def checked(
    said: Mapping[str, str] | None = None, /, **roles: Role
) -> Callable[[Callable[Arguments, Value]], Callable[Arguments, Value]]:
    """Return a decorator that checks the arguments of a function.

    Parameters
    ----------
    said
        What to pass in place of keywords that the function does not have. Default: `ELSEWHERE`.
    **roles
        Role of each argument by its name. All are also checked by their annotations, but those
        that the function checks `ITSELF`.
    """

    def decorated(function: Callable[Arguments, Value]) -> Callable[Arguments, Value]:
        signature = inspect.signature(function)
        optional = {
            name
            for name, parameter in signature.parameters.items()
            if parameter.default is None or "None" in str(parameter.annotation)
        }

        @functools.cache
        def every() -> list[tuple[str, Role]]:
            # Read at the first call: annotations may name what is imported later.
            by_annotation = [
                (name, replace(role, hint=_hint_of_role(signature.parameters[name], role)))
                for name, role in annotated(function).items()
                if roles.get(name) is not ITSELF
            ]
            return [*roles.items(), *by_annotation]

        @wraps(function)
        def called(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Value:
            # A class may have the constructor of its base.
            made = function.__name__ == "__init__"
            where = type(args[0]).__name__ if made else function.__qualname__
            try:
                given = signature.bind(*args, **kwargs).arguments
            except TypeError as problem:
                said_of = ELSEWHERE if said is None else said
                known = {name: role.hint for name, role in reversed(every())}
                hints = {name: known.get(name, "") for name in missing(signature, args, kwargs)}
                raise wrong_call(where, signature, kwargs, said_of, problem, hints) from None
            for name, role in every():
                if name in given and not (given[name] is None and name in optional):
                    check(f"{where}, {name}", given[name], role)
            return function(*args, **kwargs)

        return called

    return decorated


def checked_class(
    said: Mapping[str, str] = ELSEWHERE, **roles: Role
) -> Callable[[type[Value]], type[Value]]:
    """Return a decorator of a class, outside of `dataclass`, that checks the keywords and, as
    `checked`, the arguments with which it is made.
    """

    def decorated(kind: type[Value]) -> type[Value]:
        type.__setattr__(kind, "__init__", checked(said, **roles)(kind.__init__))
        return kind

    return decorated


def check(where: str, value: object, role: Role) -> None:
    """Raise `ArgumentError` unless a value fits its role."""
    try:
        fits = role.fits(value)
    except (TypeError, RuntimeError):
        # Something that cannot be compared with what is expected.
        fits = False
    if not fits:
        raise ArgumentError(where, role.expected, shown(value), role.tried(value))


def wrong_call(
    where: str,
    signature: inspect.Signature,
    kwargs: Mapping[str, object],
    said: Mapping[str, str],
    problem: TypeError,
    hints: Mapping[str, str],
) -> KeywordError:
    """Return the error of a call with a keyword that is no parameter, or that lacks an argument,
    gives one twice or gives too many; `hints` say what to pass for those that are missing.
    """
    names = [name for name in signature.parameters if name != "self"]
    free = any(one.kind is one.VAR_KEYWORD for one in signature.parameters.values())
    unknown = next((name for name in kwargs if name not in names and not free), None)
    if unknown is None:
        # Of several ways the first; words are none.
        ways = {name: hint.partition(" or ")[0].strip(",") for name, hint in hints.items()}
        lacking = [f"{name}={way if is_expression(way) else '...'}" for name, way in ways.items()]
        hint = ", ".join(lacking) or "each argument by its name"
        return KeywordError(where, ", ".join(names), problem, hint)
    # The nearest names, or those of which it is the initials: lr, bs.
    short = [name for name in names if re.sub(r"(\w)[^_]*_?", r"\1", name) == unknown]
    near = nearest(unknown, names, 2) or " or ".join(short)
    # A hint of this very name, else the names that are near, else a hint of a name that is near.
    told = unknown if unknown in said else nearest(unknown, said)
    known = told and (unknown in said or not near)
    hint = said[told] if known else near or " or ".join(names[:3])
    of, given, _ = hint.partition("=")
    if given and of not in names:
        hint += " of run" if of in ("rounds", "test") else " of a recipe"
    return KeywordError(where, f"keywords among {', '.join(names)}", unknown, hint)


def missing(
    signature: inspect.Signature, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> list[str]:
    """Return the names of the arguments without which a call cannot be; none of another call."""
    try:
        given = signature.bind_partial(*args, **kwargs).arguments
    except TypeError:
        return []
    return [
        name
        for name, one in signature.parameters.items()
        if one.default is one.empty
        and one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
        and name not in given
    ]


def hint_of(parameter: inspect.Parameter) -> str:
    """Return what to pass for a parameter: of its kind, its default, or an example of its
    annotation.
    """
    text = str(parameter.annotation)
    words = re.findall(r"\w+", text)
    kind = next((hint for word, hint in HINTS.items() if word in words), "")
    if text.startswith("Sequence") and not kind:
        kind = PLAIN.get(words[1], "")
    if kind and text.startswith(("Sequence", "tuple")):
        return f"[{kind.partition(', or ')[0]}, ...]"
    if kind and text.startswith("Mapping"):
        return f"{{'name': {kind}}}"
    if text.startswith("Callable"):
        return make_example(text, _hint_of_kind)
    # A dataclass shows what makes a default as `<factory>`.
    known = parameter.default is not None and repr(parameter.default) != "<factory>"
    known = known and parameter.default is not parameter.empty
    if kind:
        return kind
    return shown(parameter.default) if known else make_example(text, _hint_of_kind)


def _hint_of_role(parameter: inspect.Parameter, role: Role) -> str:
    """Return what to pass for a parameter; the words of a type that is a few words."""
    hint = hint_of(parameter)
    if role.words and not is_expression(hint):
        return " or ".join(map(repr, role.words[:2]))
    return hint


def _hint_of_kind(name: str) -> str:
    """Return the first way of a hint of a kind; "" for a kind without one."""
    return HINTS.get(name, "").partition(" or ")[0].strip(",").partition(", ")[0]


def shown(value: object) -> str:
    """Return a value in a few words: a class as such, long values by their type."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if value is None or isinstance(value, str | int | float):
        return repr(value)
    if callable(value) and hasattr(value, "__qualname__"):
        return f"the function {value.__qualname__}"
    if isinstance(value, Tensor):
        return f"a tensor {tuple(value.shape)} of {str(value.dtype).removeprefix('torch.')}"
    text = repr(value) if isinstance(value, list | tuple | dict) else ""
    return text if text and len(text) <= LONGEST else an(type(value).__name__)

"""Words for what a file may say, for what it says and for what is wrong with it, by the types of
signatures.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from bayesfed.errors.checks import ELSEWHERE, OF_TRAINING
from bayesfed.errors.nearness import nearest
from bayesfed.running.experiments import names
from bayesfed.running.experiments.experiment import Settings
from bayesfed.running.experiments.kinds import MAPPINGS, POOL, forms, keys, ready

# What was expected, what was found and what to try.
Parts = tuple[str, str, str]
_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text in quotes",
    Path: "text in quotes or a path in quotes",
    Any: "any value",
}
_EXAMPLES = {bool: "true", int: "10", float: "0.1", str: '"..."', Path: '"data"'}
_SEVERAL = {int: "8, 4", float: "1.0, 0.5"}
_FOUND = {**_WORDS, str: "text", list: "a list", dict: "a table"}


def words(hint: Any) -> str:
    """Return what a value of a type looks like in a file."""
    if typing.get_origin(hint) is Annotated:
        says = typing.get_args(hint)[1]
        if isinstance(says, str):
            return says
        listed = ", ".join(one for one in keys(says) if one not in POOL)
        return f"a table with keys of {says.__name__}: {listed}"
    whole = Path in names.members(hint)
    return " or ".join(dict.fromkeys(_words(one, whole) for one in forms(hint)))


def _words(form: Any, whole: bool) -> str:  # noqa: PLR0911
    origin, inner = typing.get_origin(form), typing.get_args(form)
    if isinstance(form, dict):
        if whole:
            return " or ".join(f'{{ kind = "{one}" }}' for one in form)
        if len(form) == 1:
            return f"a table with the keys of {next(iter(form))}"
        return _one_of(form) + ", as text or as { kind = ..., ... }"
    if origin is Literal:
        return _one_of(inner)
    if origin in MAPPINGS:
        return f"a table of names, each {words(inner[1])}"
    if origin is tuple and ... not in inner:
        return f"a list of {len(inner)}: " + ", ".join(words(one) for one in inner)
    return _WORDS[form] if origin is None else f"a list, each {words(inner[0])}"


def _one_of(said: Iterable[str]) -> str:
    return "one of " + ", ".join(f'"{one}"' for one in said)


def example(hint: Any, raw: Any = None) -> str:  # noqa: PLR0911
    """Return a value that would do, made of the one that was written where that can be."""
    form = forms(hint)[0]
    origin, inner = typing.get_origin(form), typing.get_args(form)
    if typing.get_origin(hint) is Annotated or form is Any:
        return "`bayesfed list`"
    if isinstance(form, dict):
        number = isinstance(raw, int | float) and not isinstance(raw, bool)
        for kind, (made_by, _) in form.items() if number else ():
            first = next(iter(names.parameters(made_by).values()), None)
            if first is not None and first.annotation is float:
                return f'{{ kind = "{kind}", {first.name} = {raw} }}'
        return f'"{next(iter(form))}"'
    if origin is Literal:
        return f'"{inner[0]}"'
    if origin in MAPPINGS:
        return "{ ... }"
    if origin is not None:
        several = _SEVERAL.get(inner[0]) or example(inner[0])
        return f"[{several if raw is None or isinstance(raw, str | dict | list) else raw}]"
    return str(max(1, round(raw))) if form is int and isinstance(raw, float) else _EXAMPLES[form]


def shown(raw: Any) -> str:
    """Return a value as the file has it, shortened, and what it is."""
    text = (
        str(raw).lower()
        if isinstance(raw, bool)
        else f'"{raw}"'
        if isinstance(raw, str)
        else str(raw)
    )
    text = text if len(text) <= 60 else text[:57] + "..."
    return f"{text} ({_FOUND.get(type(raw), type(raw).__name__)})"


def in_a_file(hint: str) -> str:
    """Add to a hint that calls a function what stands for the call in a file: what is a number or
    text there becomes a key.
    """
    calls = re.finditer(r"(?<!\w)(\w+)\(([^()]*)", hint)
    if (call := next((one for one in calls if one[1] in ready()), None)) is None:
        return hint
    keys, said = iter(names.parameters(names.public()[call[1]])), [f'kind = "{call[1]}"']
    arguments = call[2].split(",")
    for argument in arguments:
        key, _, value = argument.rpartition("=")
        key = key.strip() or next(keys, "")
        if re.fullmatch(r"""-?[\d.]+(e-?\d+)?|'.*'|".*\"""", value.strip()):
            said.append(f"{key} = {value.strip()}")
    if len(said) <= len(arguments):
        said.append("...")
    return f"{hint}, which is {{ {', '.join(said)} }} in a file"


def wrong(hint: Any, raw: Any) -> Parts:
    """Return the parts of the error of a value of another type."""
    expected, hints = words(hint), forms(hint)
    if isinstance(raw, str):
        literals = [
            one
            for form in hints
            if typing.get_origin(form) is Literal
            for one in typing.get_args(form)
        ]
        if near := nearest(raw, map(str, literals)):
            return expected, shown(raw), f'"{near}"'
        if re.fullmatch(r"-?[\d.]+(e-?\d+)?", raw) and not expected.startswith("a list"):
            return expected, shown(raw), f"{raw}, without quotes"
    return expected, shown(raw), example(hint, raw)


def unknown(name: str, made_by: Any, known: Sequence[str], file: Mapping[str, Any]) -> Parts:
    """Return the parts of the error of a key that a callable does not have."""
    recipe = file.get("recipe")
    kind = recipe.get("kind") if isinstance(recipe, dict) else recipe
    expected, hint = f"a key of {made_by.__name__}", ""
    if made_by is Settings:
        expected = "a key"
        if isinstance(kind, str) and name in keys(names.public().get(kind)):
            hint = f"`{name}` below [recipe]"
    elif name in (own := names.parameters(made_by)):
        hint = (
            f"a type of `{name}` in the signature"
            if own[name].annotation is object
            else "leaving it out, or Python: a file cannot write this one"
        )
    elif name in names.parameters(Settings):
        hint = f"`{name}` at the top of the file, above the first [table]"
    if known and not hint:
        said = (one[name].partition("=")[0] for one in (OF_TRAINING, ELSEWHERE) if name in one)
        elsewhere = next((one for one in said if one in known), known[0])
        hint = f"`{nearest(name, known) or elsewhere}`"
    return (
        f"{expected}: {', '.join(known) or 'no more keys'}",
        f"`{name}`",
        hint or "`bayesfed list`, which says what there is",
    )


def missing(name: str, made_by: Any) -> Parts:
    """Return the parts of the error of a key that is required."""
    hint = keys(made_by).get(name)
    wanted, near = (
        ("a Python value, which no file can write", "Python")
        if hint is None
        else (words(hint), f"{name} = {example(hint)}")
    )
    known = {"net": '[net] with kind = "mlp"', "count": "count = 2", "data": 'data = "digits"'}
    return f"`{name}`: {wanted}", "nothing", known.get(name, near)

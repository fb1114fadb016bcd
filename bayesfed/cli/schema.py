"""From the tables of a file to Python values: a function's signature says which keys there are, and its types what may stand behind them."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path as FilePath
from typing import Any, Literal

from bayesfed.cli import names
from bayesfed.cli.adapters import MISSING, Scope, adapter, given
from bayesfed.cli.experiment import ExperimentError, ExperimentFile, Settings
from bayesfed.cli.hints import LISTS, MAPPINGS, keys, members, options, ready, required, words, writable
from bayesfed.cli.lines import Path
from bayesfed.errors import BayesfedError
from bayesfed.models.priors.likelihoods import Likelihood

_NOT = object()


class Reader:
    """Read values out of an experiment file."""

    def __init__(self, file: ExperimentFile, scope: Scope) -> None:
        self.file, self.scope = file, scope

    def section(self, name: str) -> Any:
        """Return what a key at the top means, or its default.

        Raises
        ------
        ExperimentError
            If it is missing, or not what it should be.
        """
        hint, default = names.hint_of(Settings, name), names.parameters(Settings)[name].default
        if name in self.file.tree:
            return self.value(self.file.tree[name], hint, (name,))
        if default is inspect.Parameter.empty:
            raise self._missing(name, hint, ())
        return {} if repr(default) == "<factory>" else default

    def check_top(self) -> None:
        """Refuse keys that no experiment has."""
        self._check_keys(list(names.parameters(Settings)), self.file.tree, ())

    def value(self, raw: Any, hint: Any, path: Path) -> Any:
        """Return what a value of the file means as this type.

        Raises
        ------
        ExperimentError
            If it cannot be one.
        """
        kinds = members(hint)
        if raw == "none" and type(None) in kinds:
            return None
        for one in kinds:
            if (found := self._plain(raw, one, kinds, path)) is not _NOT:
                return found
        made = {name: (made_by, one) for one in kinds for name, made_by in options(one).items()}
        if made and isinstance(raw, str | dict):
            return self._made(raw, made, path)
        raise self._wrong(raw, hint, path)

    def _plain(self, raw: Any, hint: Any, kinds: Sequence[Any], path: Path) -> Any:  # noqa: PLR0911
        origin, inner = typing.get_origin(hint), typing.get_args(hint)
        if isinstance(raw, bool) or hint is bool:
            return raw if isinstance(raw, bool) and hint is bool else _NOT
        if hint is int or hint is float:
            return hint(raw) if isinstance(raw, int) or (isinstance(raw, float) and hint is float) else _NOT
        if isinstance(raw, str) and hint in (str, FilePath):
            return self._text(raw, FilePath in kinds)
        if origin is Literal:
            return raw if raw in inner else _NOT
        if isinstance(raw, list) and origin in LISTS and not options(hint):
            return self._list(raw, origin, inner, path)
        if isinstance(raw, dict) and origin in MAPPINGS and "kind" not in raw and inner[0] in (str, int) and not options(hint):
            return {_named(name, inner[0]): self.value(one, inner[1], (*path, name)) for name, one in raw.items()}
        return _NOT

    def _text(self, raw: str, is_path: bool) -> Any:
        if not is_path:
            return raw
        beside = self.file.path.parent / FilePath(raw).expanduser()
        return beside if beside.exists() else raw

    def _list(self, raw: list[Any], origin: Any, inner: tuple[Any, ...], path: Path) -> Any:
        if origin is tuple and ... not in inner:
            if len(raw) != len(inner):
                raise self.file.refuse(path, expected=f"a list of {len(inner)}", actual=f"one of {len(raw)}", hint=f"{len(inner)} values in [ ]")
            return tuple(self.value(one, hint, (*path, place)) for place, (one, hint) in enumerate(zip(raw, inner, strict=True)))
        found = [self.value(one, inner[0], (*path, place)) for place, one in enumerate(raw)]
        return tuple(found) if origin is tuple else found

    def choose(self, raw: Any, found: Mapping[str, Any], path: Path) -> tuple[Any, dict[str, Any]]:
        """Return what ``kind`` names, and the rest of the table.

        Raises
        ------
        ExperimentError
            If it names nothing, or there is none and more than one thing it could be.
        """
        listed = ", ".join(found)
        if not isinstance(raw, str | dict):
            raise self.file.refuse(path, expected=f"one of {listed}", actual=_shown(raw), hint=f'"{next(iter(found))}"')
        table = {"kind": raw} if isinstance(raw, str) else dict(raw)
        kind = table.pop("kind", next(iter(found)) if len(found) == 1 else None)
        at = (*path, "kind") if isinstance(raw, dict) and "kind" in raw else path
        if kind is None:
            raise self.file.refuse(at, expected=f'kind = "...", one of {listed}', actual="no `kind`", hint=f'kind = "{next(iter(found))}"')
        if not isinstance(kind, str) or kind not in found:
            python = isinstance(kind, str) and kind in names.public()
            hint = f"one of these; {kind} is for another place, or for Python alone" if python else f'"{_nearest(str(kind), found)}"'
            raise self.file.refuse(at, expected=f"one of {listed}", actual=_shown(kind), hint=hint if hint != '""' else "`bayesfed list`")
        return found[kind], table

    def _made(self, raw: Any, made: Mapping[str, tuple[Any, Any]], path: Path) -> Any:
        (made_by, hint), table = self.choose(raw, made, path)
        if names.is_itself(made_by, hint):
            self._check_keys([], table, path)
            return made_by
        return self.call(made_by, table, path)

    def call(self, made_by: Callable[..., Any], table: Mapping[str, Any], path: Path, *, left: Sequence[str] = ()) -> Any:
        """Call a function with the keys of a table; with parameters `left` open, return it as a function of these.

        Raises
        ------
        ExperimentError
            If keys are unknown, missing or wrong, or the function refuses what it is given.
        """
        self._check_keys([name for name in keys(made_by) if name not in left], table, path, made_by)
        found: dict[str, Any] = {}
        # The likelihood first: what the run works out for other arguments may hang on it.
        for name, one in sorted(names.parameters(made_by).items(), key=lambda pair: pair[0] != "likelihood"):
            if name in left:
                continue
            hint, optional = names.hint_of(made_by, name), one.default is not inspect.Parameter.empty
            value = self._argument(name, hint, table, path, optional, made_by)
            if value is MISSING and not optional:
                raise self._missing(name, hint, path)
            if value is not MISSING:
                found[name] = value
        if left:
            return partial(made_by, **found) if [*names.parameters(made_by)][: len(left)] == list(left) else _open(made_by, found, left)
        try:
            return made_by(**found)
        except ExperimentError:
            raise
        except BayesfedError as problem:
            text = _in_a_file(str(problem))
            if isinstance(problem.__cause__, FileNotFoundError):
                text += f"; paths begin at the folder of {self.file.path.name}, or where the command is run"
            raise ExperimentError(f"{self.file.where(path)}: {text}") from problem
        except (TypeError, ValueError, RuntimeError, ArithmeticError, LookupError, OSError) as problem:
            actual, hint = f"{type(problem).__name__}: {problem}", f"bayesfed list {getattr(made_by, '__name__', '')}"
            raise self.file.refuse(path, expected="arguments that fit together", actual=actual, hint=hint) from problem

    def _argument(self, name: str, hint: Any, table: Mapping[str, Any], path: Path, optional: bool, made_by: Any) -> Any:
        at = (*path, name)
        if name in table:
            value = self._read(name, hint, table[name], at)
        elif (known := self._known(name, hint, path, optional)) is not MISSING:
            return known
        elif optional or not _implied(name, hint):
            return MISSING
        else:
            return self.call(next(iter(options(hint).values())), {}, at)
        if isinstance(value, list | tuple) and name in ("ratios", "ranks", "nets", "nets_of"):
            self.scope.sizes = len(value)
        if Likelihood in members(hint):
            self.scope.likelihood = value
        return value

    def _known(self, name: str, hint: Any, path: Path, optional: bool) -> Any:
        try:
            return given(self.scope, name, hint, path, optional=optional)
        except BayesfedError as problem:
            raise ExperimentError(f"{self.file.where(path)}: {problem}") from problem

    def _read(self, name: str, hint: Any, raw: Any, path: Path) -> Any:
        if not (found := adapter(name, hint)):
            return self.value(raw, hint, path)
        try:
            return found.convert(self, raw, path)
        except ExperimentError:
            raise
        except BayesfedError as problem:
            raise ExperimentError(f"{self.file.where(path)}: {problem}") from problem

    def _check_keys(self, known: Sequence[str], table: Mapping[str, Any], path: Path, made_by: Any = None) -> None:
        for name in table:
            if name in known:
                continue
            of = f" of {made_by.__name__}" if made_by is not None else ""
            if made_by is not None and name in names.parameters(made_by):
                hint = "leaving it out, or Python: a file cannot write this one"
                raise self.file.refuse((*path, name), expected=f"a key{of}", actual=f"`{name}`, {words(names.hint_of(made_by, name))}", hint=hint)
            hint = self._elsewhere(name, known, path)
            listed = ", ".join(known) if known else "no more keys"
            raise self.file.refuse((*path, name), expected=f"a key{of}: {listed}", actual=f"`{name}`", hint=hint)

    def _elsewhere(self, name: str, known: Sequence[str], path: Path) -> str:
        if path and name in names.parameters(Settings):
            return f"`{name}` at the top of the file, above the first [table]"
        recipe = self.file.tree.get("recipe")
        kind = recipe.get("kind") if isinstance(recipe, dict) else recipe
        if not path and isinstance(kind, str) and kind in options(names.hint_of(Settings, "recipe")) and name in keys(names.public()[kind]):
            return f"`{name}` below [recipe]"
        if near := _nearest(name, known):
            return f"`{near}`"
        return "`bayesfed list`, which says what there is" if not known else f"`{known[0]}`"

    def _missing(self, name: str, hint: Any, path: Path) -> ExperimentError:
        wanted = words(hint, name=name) if writable(name, hint) else "a Python value, which no file can write"
        hint_text = {"net": '[net] with kind = "mlp"', "count": "count = 2"}.get(name, f"{name} = {_example(hint)}")
        return self.file.refuse((*path, name), expected=f"`{name}`: {wanted}", actual="nothing", hint=hint_text)

    def _wrong(self, raw: Any, hint: Any, path: Path) -> ExperimentError:
        wanted = words(hint, name=str(path[-1]) if path else "")
        near = ""
        if isinstance(raw, str):
            literals = [one for kind in members(hint) for one in typing.get_args(kind) if typing.get_origin(kind) is Literal]
            near = _nearest(raw, [str(one) for one in literals])
        number = _number(raw)
        hint_text = f'"{near}"' if near else f"{number:g}, without quotes" if number is not None else _example(hint, raw)
        return self.file.refuse(path, expected=wanted, actual=_shown(raw), hint=hint_text)


def _implied(name: str, hint: Any) -> bool:
    """Say whether there is one way to make a value and the run knows all that it needs."""
    from bayesfed.cli.adapters import is_given

    found = list(options(hint).values()) if not adapter(name, hint) else []
    return len(found) == 1 and all(is_given(one, names.hint_of(found[0], one)) for one in required(found[0]))


def _named(name: str, kind: type) -> Any:
    return int(name) if kind is int and name.lstrip("-").isdigit() else name


def _nearest(name: str, known: Any) -> str:
    lower = {one.lower().replace("-", "_"): one for one in known}
    found = get_close_matches(name.lower().replace("-", "_"), list(lower), n=1, cutoff=0.6)
    return lower[found[0]] if found else ""


def _number(raw: Any) -> float | None:
    try:
        return float(raw) if isinstance(raw, str) else None
    except ValueError:
        return None


def _shown(raw: Any) -> str:
    kind = {bool: "true or false", int: "a whole number", float: "a number", str: "text", list: "a list", dict: "a table"}
    shown = "true" if raw is True else "false" if raw is False else f'"{raw}"' if isinstance(raw, str) else str(raw)
    return f"{shown if len(shown) <= 60 else shown[:57] + '...'} ({kind.get(type(raw), type(raw).__name__)})"


def _example(hint: Any, raw: Any = None) -> str:
    for one in members(hint):
        if one is int and isinstance(raw, float):
            return str(max(1, round(raw)))
        if one in (bool, int, float, str, FilePath):
            return {bool: "true", int: "10", float: "0.1", str: '"..."', FilePath: '"data"'}[one]
        if typing.get_origin(one) is Literal:
            return f'"{typing.get_args(one)[0]}"'
        if typing.get_origin(one) in LISTS:
            inner = typing.get_args(one)[0]
            several = {int: "8, 4", float: "1.0, 0.5"}.get(inner) or _example(inner)
            return f"[{several if raw is None or isinstance(raw, str | dict | list) else raw}]"
        if found := options(one):
            return _numbered(found, raw) or f'"{next(iter(found))}"'
    return "{ ... }" if any(typing.get_origin(one) in MAPPINGS for one in members(hint)) else "`bayesfed list`"


def _numbered(found: Mapping[str, Any], raw: Any) -> str:
    """Return the first thing whose first key is a number, with this number: a learning rate that was written for an optimiser."""
    if isinstance(raw, bool) or not isinstance(raw, int | float):
        return ""
    first = {name: next(iter(keys(made_by)), "") for name, made_by in found.items()}
    fits = [name for name, key in first.items() if key and names.hint_of(found[name], key) is float]
    return f'{{ kind = "{fits[0]}", {first[fits[0]]} = {raw} }}' if fits else ""


def _open(made_by: Callable[..., Any], found: Mapping[str, Any], left: Sequence[str]) -> Callable[..., Any]:
    return lambda *given, **named: made_by(**found, **dict(zip(left, given, strict=False)), **named)


def _in_a_file(text: str) -> str:
    """Say a hint of Python's in the words of a file as well: what is a number or text there becomes a key."""
    called = re.search(r"; try .*?\b([A-Za-z_][A-Za-z_0-9]*)\(([^()]*)\)", text)
    if not called or called.group(1) not in ready():
        return text
    given = [part.strip() for part in called.group(2).split(",") if part.strip()]
    places = zip(names.parameters(names.public()[called.group(1)]), given, strict=False)
    pairs = [tuple(one.split("=", 1)) if re.match(r"\w+=", one) else (name, one) for name, one in places]
    said = [f"{name} = {one}" for name, one in pairs if re.fullmatch(r"-?[\d.]+(e-?\d+)?", one)]
    more = ["..."] if len(said) < max(1, len(given)) else []
    return f"{text}, which is {{ {', '.join([f'kind = {chr(34)}{called.group(1)}{chr(34)}', *said, *more])} }} in a file"

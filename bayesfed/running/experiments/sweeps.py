"""Sweeps: an experiment for each combination of values of some keys of a file."""

from __future__ import annotations

import itertools
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

from bayesfed.errors import ArgumentError
from bayesfed.errors.nearness import nearest
from bayesfed.running.experiments.experiment import ExperimentFile

SWEEP = "sweep"


def swept(file: ExperimentFile, settings: Sequence[str] = ()) -> list[ExperimentFile]:
    """Return the experiments of a file: one for each combination of the values of its table
    ``[sweep]`` and of `settings`, or the file itself if there are none.

    Parameters
    ----------
    settings
        ``KEY=VALUE[,VALUE...]``, such as "recipe.bits=4,8", "seeds=[0,1,2]" and
        "recipe.kind=fed_avg,fed_prox"; they come before those of the file. Values are those of
        TOML; what is none is text.

    Returns
    -------
    Experiments named after the file and their values, ``fed_paq-bits=4``. A single value of a key
    is no part of the name.

    Raises
    ------
    ArgumentError
        If a setting has no value, two have one key, or a key is in no table of the file.
    """
    chosen = {key: list(values) for key, values in file.tree.get(SWEEP, {}).items()}
    given = [_read(setting) for setting in settings]
    keys = [key for key, _ in given]
    if twice := next((key for key in keys if keys.count(key) > 1), None):
        values = [str(value) for key, several in given if key == twice for value in several]
        hint = f"--set {twice}={','.join(values)}"
        raise ArgumentError("compare, --set", "every key once", f"{twice!r} twice", hint)
    chosen |= dict(given)
    if not chosen:
        return [file]
    every = itertools.product(*chosen.values())
    return [_with(file, dict(zip(chosen, values, strict=True)), chosen) for values in every]


def _read(setting: str) -> tuple[str, list[Any]]:
    key, _, values = setting.partition("=")
    if not key.strip() or not values.strip():
        hint = "--set recipe.bits=4,8"
        raise ArgumentError("compare, --set", "KEY=VALUE[,VALUE...]", setting, hint)
    try:
        return key.strip(), tomllib.loads(f"values = [{values}]")["values"]
    except tomllib.TOMLDecodeError:
        return key.strip(), [value.strip() for value in values.split(",")]


def _with(
    file: ExperimentFile, values: Mapping[str, Any], chosen: Mapping[str, Sequence[Any]]
) -> ExperimentFile:
    tree = deepcopy({key: value for key, value in file.tree.items() if key != SWEEP})
    for key, value in values.items():
        *above, last = key.split(".")
        table: Any = tree
        for length, name in enumerate(above, 1):
            table = table.get(name)
            if not isinstance(table, dict):
                path = ".".join(above[:length])
                near = nearest(path, _tables(tree)) or "recipe"
                expected = f"a table {path!r} in {file.path.name}"
                hint = f"--set {near}.{last}=..."
                raise ArgumentError("compare, --set", expected, f"no such table: {key}", hint)
        table[last] = value
    several = [f"{key.split('.')[-1]}={values[key]}" for key in chosen if len(chosen[key]) > 1]
    name = re.sub(r"[^\w.=+-]", "_", "-".join([file.name, *several]))
    text = "".join(f"{_key(key)} = {_toml(value)}\n" for key, value in tree.items())
    return replace(file, path=file.path.with_name(f"{name}.toml"), text=text, tree=tree)


def _tables(tree: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield above + key
            yield from _tables(value, f"{above}{key}.")


def _key(name: str) -> str:
    return name if re.fullmatch(r"[\w-]+", name, re.ASCII) else json.dumps(name)


def _toml(value: Any) -> str:
    """Return a value as TOML on one line."""
    if isinstance(value, Mapping):
        parts = (f"{_key(key)} = {_toml(one)}" for key, one in value.items())
        return f"{{ {', '.join(parts)} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, (str, bool)):
        return json.dumps(value)
    return str(value)

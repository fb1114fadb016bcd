"""An experiment file: TOML text, what it says, and where in it a key stands."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from bayesfed.cli.lines import Path as KeyPath
from bayesfed.cli.lines import key_lines
from bayesfed.data.dataset import Dataset
from bayesfed.data.partition import Homes, Partition
from bayesfed.errors import ArgumentError, complain
from bayesfed.federated.clients.pools import InProcess
from bayesfed.federated.core.algorithm import Algorithm
from bayesfed.federated.core.protocols import Link
from bayesfed.federated.engine.reports import OnClientError
from bayesfed.federated.engine.samplers import Sampler, everyone
from bayesfed.wireless.devices import Device

Split = tuple[Dataset, Dataset]


class ExperimentError(ArgumentError):
    """An experiment file that says what cannot be; the message begins with the file and the line."""


@dataclass(frozen=True)
class Settings:
    """What an experiment file may say at its top: the schema of the file is the signature of this class, and below it those of what is named.

    Parameters
    ----------
    data
        Rows to train and to test on; of one set without test rows, a fifth of every class is held out (`split_rows` takes another share).
    recipe
        The method and its arguments.
    rounds
        How many to make.
    partition
        Who holds which rows; default: ten clients, dealt evenly.
    net
        The network. Recipes that build their own take none.
    link
        How payloads reach the server, for recipes that have a choice.
    seeds
        One run for each; a seed names the partition, the first weights and every draw.
    sampler
        Who takes part in a round.
    devices
        What clients compute and send with.
    pool
        How clients run on this machine.
    on_client_error, least
        As of `bayesfed.run`.
    draws
        Of a posterior, for the NLL and the calibration of every round.
    save_every
        Rounds between two checkpoints.
    """

    data: Split | Dataset
    recipe: Algorithm
    rounds: int
    partition: Partition | Homes | None = None
    net: nn.Module | None = None
    link: Link | None = None
    seeds: Sequence[int] = (0,)
    sampler: Sampler = everyone
    devices: dict[str, Device] = field(default_factory=dict)
    pool: InProcess | None = None
    on_client_error: OnClientError = "raise"
    least: int = 1
    draws: int = 20
    save_every: int = 1


@dataclass(frozen=True)
class ExperimentFile:
    """The text of an experiment and what `tomllib` makes of it.

    Parameters
    ----------
    path
        Where it is, for messages and for paths in it, which begin at its folder.
    """

    path: Path
    text: str
    tree: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Of the experiment: that of the file."""
        return self.path.stem

    @cached_property
    def lines(self) -> Mapping[KeyPath, int]:
        """The line of every key, by its path."""
        return key_lines(self.text)

    @property
    def digest(self) -> str:
        """Of what it says; comments and spaces do not count."""
        return hashlib.blake2b(json.dumps(self.tree, sort_keys=True, default=str).encode(), digest_size=8).hexdigest()

    def where(self, path: KeyPath) -> str:
        """Return file, line and name of a key, of the nearest one above it that is there."""
        known = next((path[:length] for length in range(len(path), 0, -1) if path[:length] in self.lines), ())
        name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")
        line = f", line {self.lines[known]}" if known else ""
        return f"{self.path.name}{line}{f', {name}' if name else ''}"

    def refuse(self, path: KeyPath, *, expected: object, actual: object, hint: str) -> ExperimentError:
        """Return the error that says what is wrong with a key."""
        return ExperimentError(complain(self.where(path), expected=expected, actual=actual, hint=hint))


def parse(text: str, path: str | Path = "experiment.toml") -> ExperimentFile:
    """Return an experiment from its text.

    Raises
    ------
    ExperimentError
        If it is not TOML; the message has the line.
    """
    path = Path(path)
    try:
        return ExperimentFile(path, text, tomllib.loads(text))
    except tomllib.TOMLDecodeError as problem:
        twice = any(word in str(problem) for word in ("twice", "overwrite", "Cannot mutate"))
        hint = "every key and every [table] once" if twice else "text in quotes, numbers without, tables as [name] or { key = value }"
        raise ExperimentError(complain(path.name, expected="a TOML file", actual=problem, hint=hint)) from problem


def read(path: str | Path) -> ExperimentFile:
    """Return the experiment of a file.

    Raises
    ------
    ExperimentError
        If there is no such file, or it is not text, not TOML or of something else.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as problem:
        raise ExperimentError(complain(str(path), expected="an experiment file", actual="no such file", hint=_instead(path))) from problem
    except IsADirectoryError as problem:
        raise ExperimentError(complain(str(path), expected="an experiment file", actual="a folder", hint=_instead(path / "x.toml"))) from problem
    except (OSError, UnicodeDecodeError) as problem:
        hint = "a text file in UTF-8 that may be read"
        raise ExperimentError(complain(str(path), expected="an experiment file", actual=problem, hint=hint)) from problem
    file = parse(text, path)
    if not {"data", "recipe", "rounds"} & file.tree.keys():
        actual = "none of them" if file.tree else "nothing in it"
        raise ExperimentError(complain(str(path), expected="an experiment file, with data, recipe and rounds", actual=actual, hint=_instead(path)))
    return file


def _instead(path: Path) -> str:
    """Name the experiments beside a path, here and in a folder ``experiments``, the nearest names first; or say how one begins."""
    places = dict.fromkeys([path.parent, Path(), Path("experiments"), Path("examples/experiments")])
    found = [one for place in places if place.is_dir() for one in sorted(place.glob("*.toml")) if _is_experiment(one)]
    if not found:
        return "`bayesfed list`, which says what a file may say; at the least rounds, data, [net] and [recipe]"
    close = sorted(dict.fromkeys(found), key=lambda one: -SequenceMatcher(None, one.stem, path.stem).ratio())
    return f"{' or '.join(map(str, close[:3]))}"


def _is_experiment(path: Path) -> bool:
    try:
        return {"data", "recipe"} <= tomllib.loads(path.read_text(encoding="utf-8")).keys()
    except (OSError, ValueError):
        return False

"""An experiment file: TOML text, its settings, and the places of its keys."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

from torch import nn

from bayesfed.data import Dataset
from bayesfed.data.partition import Homes, Partition
from bayesfed.errors import ArgumentError, BayesfedError, complain
from bayesfed.federated import Algorithm, Link, Sampler, everyone
from bayesfed.federated.engine.reports import OnClientError
from bayesfed.running.experiments import own
from bayesfed.running.experiments.regressions import RegressionOf
from bayesfed.running.scores import Further
from bayesfed.wireless import Device

Place = tuple[str | int, ...]

MARK = "a-mark-that-no-file-has"


def line_of(text: str, path: Place) -> int | None:
    """Return the line, from 1, of a key or of a table in an array of tables; None if the text does
    not have it there, as it has entries of other arrays.
    """
    *above, last = path
    if isinstance(last, str):
        # The first place where the key's name can be exchanged for the mark, so that the mark
        # stands where the key stood.
        for one in re.finditer(re.escape(last), text):
            if _has(text[: one.start()] + MARK + text[one.end() :], (*above, MARK)):
                return text.count("\n", 0, one.start()) + 1
        return None
    # The first header below which the mark falls into the entry.
    lines = text.splitlines()
    for number in range(1, len(lines) + 1):
        if _has("\n".join([*lines[:number], f"{MARK} = 0", *lines[number:]]), (*path, MARK)):
            return number
    return None


def _has(text: str, path: Place) -> bool:
    try:
        tree: Any = tomllib.loads(text)
        reduce(getitem, path, tree)
    except (tomllib.TOMLDecodeError, KeyError, IndexError, TypeError):
        return False
    return True


Split = tuple[Dataset, Dataset]


class ExperimentError(ArgumentError):
    """An experiment file that cannot be built; the message begins with the file and the line, which
    are attributes as well.

    Parameters
    ----------
    file, line, key
        Place of what is wrong; `line` is None where the file as a whole is.
    """

    def __init__(self, text: str, file: str = "", line: int | None = None, key: str = "") -> None:
        ValueError.__init__(self, text, file, line, key)
        self.file, self.line, self.key = file, line, key

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True)
class Settings:
    """Keys at the top of an experiment file: the signature of this class is the schema of the file,
    with those of what it names below.

    Parameters
    ----------
    data
        Rows to train and to test on. Of a single set a fifth of every class is held out;
        `split_rows` takes another share.
    recipe
        The method and its arguments.
    rounds
        Number of rounds. Methods that end by themselves, as `federated_svi` of a model alone, need
        none; it is the most then.
    partition
        Rows of each client. Default: ten clients of equal size.
    net
        The network. Recipes that build their own take none.
    link
        Way of the payloads to the server, for recipes that have a choice.
    seeds
        Seeds, one run for each; a seed names the partition, the first weights and every draw.
    sampler
        Clients that take part in a round.
    devices
        Devices that clients compute and send with.
    pool
        Workers that run the clients on this machine.
    on_client_error, least
        As in `bayesfed.run`.
    draws
        Number of posterior draws for NLL and calibration of every round.
    save_every
        Number of rounds between two checkpoints.
    own_rows
        Share of each client's rows that are held out to score what that client predicts with, its
        own model where the method is personal. Default: none, and no such scores.
    scores
        Further scores after the last round, of "calibration", "selective", "detection" (data of
        images) and "conformal" (with `own_rows`); see `bayesfed.running.scores`.
    regression
        A regression by formula, in place of `data`, `recipe` and `rounds`.
    """

    data: Split | Dataset
    recipe: Algorithm
    rounds: int | None = None
    partition: Partition | Homes | None = None
    net: nn.Module | None = None
    link: Link | None = None
    seeds: Sequence[int] = (0,)
    sampler: Sampler = everyone
    devices: dict[str, Device] = field(default_factory=dict)
    pool: dict[str, Any] = field(default_factory=dict)
    on_client_error: OnClientError = "raise"
    least: int = 1
    draws: int = 20
    save_every: int = 1
    own_rows: float = 0.0
    scores: Sequence[Further] = ()
    regression: RegressionOf | None = None


@dataclass(frozen=True)
class ExperimentFile:
    """Text of an experiment and its tree.

    Parameters
    ----------
    path
        Place of the file, for messages; paths in the file begin at its folder.
    """

    path: Path
    text: str
    tree: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Name of the experiment: that of the file."""
        return self.path.stem

    @property
    def digest(self) -> str:
        """Digest of the settings and of the user's own files that they name; comments and spaces do
        not count.
        """
        found = hashlib.blake2b(digest_size=8)
        found.update(json.dumps(self.tree, sort_keys=True, default=str).encode())
        for path in own.files(self.tree, self.path.parent):
            found.update(path.read_bytes())
        return found.hexdigest()

    def error(
        self,
        path: Place,
        expected: object = None,
        actual: object = None,
        hint: object = None,
        *,
        problem: BayesfedError | None = None,
    ) -> ExperimentError:
        """Return the error that says what is wrong with a key.

        Parameters
        ----------
        path
            Path of the key.
        expected, actual, hint
            The parts of `complain`; they replace those of `problem`.
        problem
            Error of whatever the key was given to. Its parts are taken over.
        """
        lines = (line_of(self.text, path[:length]) for length in range(len(path), 0, -1))
        line = next((number for number in lines if number is not None), None)
        key = "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in path)[1:]
        where = ", ".join(filter(None, [self.path.name, f"line {line}" if line else "", key]))
        if problem is not None and (told := problem.complaint) is not None:
            where = f"{where}: {told.where}"
            expected, actual, hint = told.expected, told.actual, hint or told.hint
        text = (
            f"{where}: {problem}" if expected is None else complain(where, expected, actual, hint)
        )
        return ExperimentError(text, self.path.name, line, key)


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
        hint = (
            "every key and every [table] once"
            if twice
            else "text in quotes, numbers without, tables as [name] or { key = value }"
        )
        raise ExperimentError(
            complain(path.name, "a TOML file", problem, hint), path.name
        ) from problem


def read(path: str | Path) -> ExperimentFile:
    """Return the experiment of a file.

    Raises
    ------
    ExperimentError
        If there is no such file, or it is not text, not TOML or no experiment.
    """
    path, expected = Path(path), "an experiment file"
    try:
        # Editors of Windows begin files with a byte order mark.
        text = path.read_text(encoding="utf-8-sig")
    except (FileNotFoundError, IsADirectoryError) as problem:
        actual, beside = ("a folder", path / "x") if path.is_dir() else ("no such file", path)
        raise ExperimentError(
            complain(str(path), expected, actual, _instead(beside)), path.name
        ) from problem
    except (OSError, UnicodeDecodeError) as problem:
        raise ExperimentError(
            complain(str(path), expected, problem, "a text file in UTF-8 that may be read"),
            path.name,
        ) from problem
    file = parse(text, path)
    if not {"data", "recipe", "rounds", "regression"} & file.tree.keys():
        actual = "none of them" if file.tree else "nothing in it"
        expected = f"{expected}, with data, recipe and rounds"
        raise ExperimentError(complain(str(path), expected, actual, _instead(path)), path.name)
    return file


def _instead(path: Path) -> str:
    """Return the experiments beside a path, here and in a folder ``experiments``, the nearest names
    first; or how one begins.
    """
    places = dict.fromkeys([path.parent, Path(), Path("experiments"), Path("examples/experiments")])
    files = dict.fromkeys(one for place in places for one in sorted(place.glob("*.toml")))
    close = sorted(
        filter(_is_experiment, files),
        key=lambda one: -SequenceMatcher(None, one.stem, path.stem).ratio(),
    )
    beginning = (
        "`bayesfed list`, which says what a file may say; at the least rounds, data, [net] and "
        "[recipe]"
    )
    return " or ".join(map(str, close[:3])) or beginning


def _is_experiment(path: Path) -> bool:
    try:
        return {"data", "recipe"} <= tomllib.loads(path.read_text(encoding="utf-8-sig")).keys()
    except (OSError, ValueError):
        return False

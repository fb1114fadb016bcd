"""The settings of a run as short texts by name, which a snapshot carries, so that a run is not
continued with others in silence.

Settings are numbers, names and choices: the fields of the dataclasses that an algorithm is made of
(`train.local.steps`, `train.layers.private.noise`), what its functions close over, the
architecture of networks and the values of their frozen parameters, the shapes of the state, the
sampler, and the clients with their numbers of rows. Not compared are trained values (the snapshot
has its own), attributes of classes that are no dataclasses, and what may change between two parts
of a run: the number of rounds, callbacks, pools and the policy on errors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from hashlib import blake2b
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from bayesfed.federated.clients import Roster
from bayesfed.federated.core import Algorithm, Profile
from bayesfed.federated.core.settings import settings_of_function
from bayesfed.keys import Key

# Longest text of a setting; longer ones are replaced by a digest.
LONGEST = 48
# Deepest nesting of values that is looked at.
DEPTH = 12
# Names of the settings that are not the algorithm's.
SAMPLER, CLIENTS, ROWS = "sampler", "clients", "rows of clients"
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def settings_of_run(
    algorithm: Algorithm, sampler: object, profiles: Sequence[Profile]
) -> dict[str, str]:
    """Return the settings of a run by name.

    Parameters
    ----------
    algorithm
        Algorithm of the run.
    sampler
        Sampler of the run.
    profiles
        Profiles of all clients of the pool.
    """
    described = _described(algorithm)
    described.add(SAMPLER, sampler)
    roster = Roster(profiles)
    described.entries[CLIENTS] = f"{len(roster)}: {_short(', '.join(roster.ordered))}"
    described.entries[ROWS] = _short(", ".join(map(str, roster.samples)))
    return dict(sorted(described.entries.items()))


def settings_of_algorithm(algorithm: Algorithm) -> dict[str, str]:
    """Return the settings of a run that are those of its algorithm, by name."""
    return dict(sorted(_described(algorithm).entries.items()))


def without_run(settings: Mapping[str, str]) -> dict[str, str]:
    """Return those of a run's settings that are its algorithm's."""
    own = re.compile(rf"({SAMPLER}|{CLIENTS}|{ROWS})($|[.\[])")
    return {name: text for name, text in settings.items() if not own.match(name)}


def _described(algorithm: Algorithm) -> Described:
    described = Described()
    for phase in algorithm.phases:
        for part in ("assign", "local", "server", "link"):
            described.add(f"{phase.name}.{part}", getattr(phase, part))
        if phase.layers:
            owners = ", ".join(layer.owner for layer in phase.layers)
            described.entries[f"{phase.name}.layers"] = _short(owners)
        for layer in phase.layers:
            described.add(f"{phase.name}.layers.{layer.owner}", layer)
    described.entries["phases"] = _short(", ".join(phase.name for phase in algorithm.phases))
    described.entries["state"] = _short(
        " ".join(f"{name}{tuple(leaf.shape)}" for name, leaf in sorted(algorithm.initial.items()))
    )
    return described


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return ``(before, now)`` of every setting that differs, by its name, those that say most
    first.

    Parts of a value that was replaced by one of another class are left out.
    """
    names = {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}
    kept = [
        name
        for name in names
        if not any(name != other and name.startswith((f"{other}.", f"{other}[")) for other in names)
    ]
    return {
        name: (before.get(name, "none"), now.get(name, "none")) for name in sorted(kept, key=_rank)
    }


def _rank(name: str) -> tuple[int, str]:
    # What a plan closes over is often what the local step has, and less plainly named.
    return (0 if "." not in name else 2 if ".assign." in name else 1), name


class Described:
    """Texts by name, and the values that are being looked at.

    Parameters
    ----------
    once
        Whether a part that is used in several places is described in the first alone.
    """

    def __init__(self, *, once: bool = False) -> None:
        self.entries: dict[str, str] = {}
        self._once, self._seen = once, list[object]()
        self._open: list[object] = []
        self._nets: dict[int, str] = {}

    def add(self, name: str, value: object, *, values: bool = True) -> None:
        """Enter a value and what it is made of. Of tensors only shapes are entered unless
        `values`.
        """
        if any(value is outer for outer in self._open) or len(self._open) > DEPTH:
            return
        self._open.append(value)
        try:
            self._enter(name, value, values)
        finally:
            self._open.pop()

    def _enter(self, name: str, value: object, values: bool) -> None:
        if value is None or isinstance(
            value, bool | int | float | complex | str | bytes | torch.dtype | torch.device
        ):
            self.entries[name] = _short(repr(value))
        elif isinstance(value, Key):
            # A key may be secret.
            self.entries[name] = "Key"
        elif isinstance(value, Tensor):
            self.entries[name] = f"{tuple(value.shape)}{' ' + _tensor(value) if values else ''}"
        elif isinstance(value, nn.Module):
            self.entries[name] = self._nets.setdefault(id(value), _net(value))
        elif isinstance(value, type):
            self.entries[name] = value.__qualname__
        elif isinstance(value, Mapping | list | tuple):
            if values or isinstance(value, tuple):
                parts = value.items() if isinstance(value, Mapping) else enumerate(value)
                for part, inner in parts:
                    self.add(f"{name}[{part}]", inner, values=values)
        else:
            self._object(name, value)

    def _object(self, name: str, value: object) -> None:
        if isinstance(value, partial):
            parts = {
                "": value.func,
                **{f"[{number}]": part for number, part in enumerate(value.args)},
                **{f".{part}": inner for part, inner in value.keywords.items()},
            }
            for suffix, part in parts.items():
                self.add(name + suffix, part)
        elif isinstance(value, MethodType):
            self.entries[name] = value.__func__.__qualname__
            self.add(f"{name}.self", value.__self__)
        elif isinstance(value, FunctionType):
            self.entries[name] = value.__qualname__
            settings = settings_of_function(value)
            if settings is None:
                # A function of the user's own: what it closes over, by the names of its variables.
                cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
                settings = {free: _content(cell) for free, cell in cells}
            for setting, inner in settings.items():
                # A cell may be empty, and a dictionary in it may be a cache.
                if inner is not None:
                    self.add(f"{name}.{setting}", inner, values=False)
        elif is_dataclass(value):
            self.entries[name] = type(value).__qualname__
            for part in () if self._once and self._met(value) else fields(value):
                if part.init and part.repr and part.compare:
                    self.add(f"{name}.{part.name}", getattr(value, part.name))
        else:
            self.entries[name] = type(value).__qualname__

    def _met(self, value: object) -> bool:
        met = any(value is one for one in self._seen)
        self._seen.append(value)
        return met


def _content(cell: Any) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _net(net: nn.Module) -> str:
    """Return a net's class, and a digest of its architecture and of the values of its frozen
    parameters.
    """
    text = [ADDRESS.sub("", repr(net))]
    for name, leaf in net.named_parameters():
        text.append(f"{name} {tuple(leaf.shape)} {'' if leaf.requires_grad else _tensor(leaf)}")
    return f"{type(net).__qualname__} {_digest(chr(10).join(text).encode())}"


def _tensor(leaf: Tensor) -> str:
    return _digest(leaf.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 24]}... {_digest(text.encode())}"


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=8).hexdigest()

"""The letters between server and clients: sealed messages of the wire format, which contain the
package's own messages.

========  ===========================  =============================================================
letter    from, to                     content
========  ===========================  =============================================================
Hello     server, node                 asks for its name
Name      client, server               its name, rows and device figures, and the fingerprint of its
                                       experiment with the digests of its parts
Question  server, client               a task, descriptions of its codecs, the slot of the valid
                                       memory, and the fingerprint of the server's experiment
Answer    client, server               the packed payload, figures, seconds; or the stage and public
                                       reason of a failure
========  ===========================  =============================================================

Reading checks everything: a letter that is damaged, of another kind or incomplete raises
`WireError`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from bayesfed.compress.described import describe, described
from bayesfed.compress.wire import MAX_BYTES, Leaf, seal, unseal
from bayesfed.errors import WireError
from bayesfed.federated import Link, Profile, Slot, Task
from bayesfed.federated.core import Info

VERSION = 3
# Longest digest or name of a part of an experiment, and most parts, in a letter.
LONGEST_PART, MOST_PARTS = 256, 256
# What error messages propose where both sides do not understand each other.
VERSIONS = "one version of bayesfed on both sides"
Fields = Mapping[str, str | int | float | bool]
# Largest size in bytes of a letter without the message in it.
ROOM = 1 << 26


@dataclass(frozen=True)
class Hello:
    """Ask a node for its name."""

    def write(self) -> bytes:
        """Return the letter."""
        return _sealed("hello", {})


@dataclass(frozen=True)
class Name:
    """The name and figures of a client.

    Parameters
    ----------
    profile
        Its name, number of rows and device figures.
    experiment
        The fingerprint of its experiment.
    parts
        Digests of the parts of its experiment, by name.
    """

    profile: Profile
    experiment: str
    parts: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def write(self) -> bytes:
        """Return the letter."""
        profile = self.profile
        fields: Fields = {
            "client": profile.name,
            "samples": profile.samples,
            "experiment": self.experiment,
            "figures": _text(profile.device),
            "parts": json.dumps(dict(self.parts)),
        }
        return _sealed("name", fields)


@dataclass(frozen=True)
class Question:
    """A task for a client.

    Parameters
    ----------
    task
        The task, without its link, which the client takes from its own experiment.
    slot
        The memory that is valid at the client; None for an empty memory.
    also
        Your own dataclasses among the codecs.
    experiment
        The fingerprint that the client's experiment must have; "" accepts any.
    """

    task: Task
    slot: Slot | None
    also: Iterable[type] = ()
    experiment: str = ""

    def write(self) -> bytes:
        """Return the letter.

        Raises
        ------
        ArgumentError
            If a codec cannot be described.
        """
        task, slot = self.task, self.slot
        fields: Fields = {
            "client": task.client,
            "round": task.round,
            "phase": task.phase,
            "seed": str(task.seed),
            "run": task.run,
            "slot_round": slot.round if slot else -1,
            "slot_phase": slot.phase if slot else "",
            "experiment": self.experiment,
        }
        codecs = {"down": describe(task.down, self.also), "up": describe(task.up, self.also)}
        return _sealed("question", fields, {"message": task.message, **codecs})


@dataclass(frozen=True)
class Answer:
    """A reply without the memory, which stays with the client; or the reason for a failure.

    Parameters
    ----------
    client, round, phase
        The exchange it answers.
    packed
        The packed payload.
    info
        The client's figures.
    seconds
        Time of the local step.
    remembers
        Whether the client has a memory of this exchange.
    stage, reason, field
        Stage and reason of a failure, and field of a refused message. An empty stage means no
        failure. The reason is what may leave the site (`bayesfed.errors.public_text`).
    """

    client: str
    round: int
    phase: str
    packed: bytes = b""
    info: Info = dataclasses.field(default_factory=dict)
    seconds: float = 0.0
    remembers: bool = False
    stage: str = ""
    reason: str = ""
    field: str = ""

    def write(self) -> bytes:
        """Return the letter."""
        fields = {name: value for name, value in vars(self).items() if name != "packed"}
        return _sealed("answer", fields | {"info": _text(self.info)}, {"packed": self.packed})


def read_request(
    letter: bytes, links: Mapping[str, Link], also: Iterable[type] = ()
) -> Hello | Question:
    """Read a letter of a server.

    Parameters
    ----------
    letter
        The letter.
    links
        The client's own links by phase.
    also
        Your own dataclasses among the codecs.

    Raises
    ------
    WireError
        If it is not a valid request, or its phase is not in the client's experiment.
    """
    kind, meta, sections = _opened(letter)
    if kind == "hello":
        return Hello()
    with _fields(kind, "question"):
        phase, slot = meta["phase"], Slot(int(meta["slot_round"]), str(meta["slot_phase"]))
        if phase not in links:
            raise WireError(
                "question",
                f"a phase among {sorted(links)}",
                repr(phase),
                "one experiment on both sides",
            )
        down, up = (described(sections[name], also) for name in ("down", "up"))
        task = Task(
            str(meta["client"]),
            int(meta["round"]),
            phase,
            int(meta["seed"]),
            sections["message"],
            down,
            up,
            links[phase],
            run=str(meta["run"]),
        )
        experiment = str(meta["experiment"])
    return Question(task, slot if slot.round >= 0 else None, experiment=experiment)


def read_reply(letter: bytes) -> Name | Answer:
    """Read a letter of a client.

    Raises
    ------
    WireError
        If it is not a valid reply.
    """
    kind, meta, sections = _opened(letter)
    if kind == "name":
        with _fields(kind, "name"):
            device = _figures(meta["figures"])
            if type(meta["samples"]) is not int or meta["samples"] < 0:
                raise ValueError(f"{meta['samples']!r} rows")
            profile = Profile(str(meta["client"]), meta["samples"], device)
            return Name(profile, str(meta["experiment"]), _parts(meta["parts"]))
    with _fields(kind, "answer"):
        info, seconds = _figures(meta["info"]), float(meta["seconds"])
        if type(meta["round"]) is not int or not seconds >= 0:
            raise ValueError("a round or seconds out of range")
        texts = {name: str(meta[name]) for name in ("client", "phase", "stage", "reason", "field")}
        return Answer(
            **texts,
            round=meta["round"],
            packed=sections["packed"],
            info=info,
            seconds=seconds,
            remembers=meta["remembers"] is True,
        )


@contextmanager
def _fields(kind: str, expected: str) -> Iterator[None]:
    """Raise `WireError` for a letter of another kind, or with missing or invalid fields."""
    if kind != expected:
        raise WireError("letter", f"kind {expected!r}", repr(kind), VERSIONS)
    try:
        yield
    except WireError:
        raise
    except (KeyError, ValueError, TypeError) as problem:
        raise WireError(
            "letter", f"the fields of {kind!r}", problem, "sending it again"
        ) from problem


def _sealed(kind: str, fields: Fields, sections: Mapping[str, bytes] | None = None) -> bytes:
    leaves = (Leaf(name, "u1", (len(part),), part) for name, part in (sections or {}).items())
    return seal(leaves, {"kind": kind, "version": VERSION, **fields})


def _opened(letter: bytes) -> tuple[str, dict[str, Any], dict[str, bytes]]:
    leaves, meta = unseal(letter, limit=MAX_BYTES + ROOM)
    if meta.get("version") != VERSION:
        raise WireError("letter", f"version {VERSION}", repr(meta.get("version")), VERSIONS)
    return str(meta.get("kind")), meta, {leaf.name: bytes(leaf.section) for leaf in leaves}


def _text(figures: Mapping[str, float]) -> str:
    # NaN, for example from a client without rows, is preserved.
    return json.dumps({name: float(value) for name, value in figures.items()})


def _parts(text: str) -> dict[str, str]:
    parts = json.loads(text)
    if not isinstance(parts, dict) or len(parts) > MOST_PARTS:
        raise ValueError(f"parts that are not at most {MOST_PARTS} by name")
    words = [word for pair in parts.items() for word in pair]
    if not all(isinstance(word, str) and len(word) <= LONGEST_PART for word in words):
        raise ValueError("parts that are no short texts")
    return parts


def _figures(text: str) -> dict[str, float]:
    figures = json.loads(text)
    if not isinstance(figures, dict):
        raise ValueError("figures without names")
    return {name: float(value) for name, value in figures.items()}

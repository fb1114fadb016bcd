"""The local steps of the four phases: what a client answers. Its keys are in a vault; only what the
wrapped step keeps is in its memory.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, fields, make_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesfed.algorithms.wrappers.secure_sums.fixed_point import SIGNED, WIRE, FixedPoint
from bayesfed.algorithms.wrappers.secure_sums.primitives import SECRET
from bayesfed.algorithms.wrappers.secure_sums.sessions import BOX, KEYS, PAIR, refusal, session_name
from bayesfed.algorithms.wrappers.secure_sums.vaults import Vault
from bayesfed.data import Dataset
from bayesfed.federated import Fit, LocalOptions
from bayesfed.federated.core import Around, options_of, unwired
from bayesfed.keys import Key
from bayesfed.trees import Tree, under

# Names in a client's memory: what the wrapped step keeps if the round is not lost, and the number
# of that round.
PENDING, SINCE = "secure/pending/", "secure/since"


# Records that were extended, by the method's own.
_extended: dict[type[LocalOptions], type[Any]] = {}


def told(record: type[LocalOptions]) -> type[Any]:
    """Return a method's record of options with what a client needs to weigh and to mask."""
    if record in _extended:
        return _extended[record]
    extra: list[tuple[str, type, Any]] = [
        ("secure_weight", float, field(default=-1.0)),
        ("secure_session", str, field(default="")),
        ("secure_partners", str, field(default="")),
    ]
    _extended[record] = made = make_dataclass(
        f"Secure{record.__name__}", extra, bases=(record,), frozen=True
    )
    return made


def settled(memory: Tree, lost: Collection[int]) -> Tree:
    """Return what the wrapped step keeps: what it made in the last round in which the client was
    summed, unless that round was lost.
    """
    if SINCE in memory and int(memory[SINCE]) not in lost:
        return under(memory, PENDING)
    return {
        name: leaf
        for name, leaf in memory.items()
        if name != SINCE and not name.startswith(PENDING)
    }


@dataclass(frozen=True)
class FixedPointLocal(Around):
    """A local step around another, whose payload is weighed, lifted and written as integers at the
    client. It returns no figures.

    Parameters
    ----------
    local
        The wrapped local step.
    point
        How numbers are written.
    """

    point: FixedPoint

    @property
    def options(self) -> type[LocalOptions]:
        """The options of the wrapped step, and those of secure sums."""
        return told(options_of(self.local))

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Fit, weigh, lift and round."""
        vector, kept = self._vector(message, memory, data, key, options)
        return Fit({"vector": self._written(vector)}, kept, {})

    def _vector(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> tuple[np.ndarray, Tree]:
        record = options_of(self.local)
        own = record(**{item.name: getattr(options, item.name) for item in fields(record)})
        fit = self.local.fit(message, memory, data, key, own)
        payload, _ = unwired(fit.payload)
        weight: float = options.secure_weight  # type: ignore[attr-defined]
        return self.point.encode(payload, weight), fit.memory

    def _written(self, vector: np.ndarray) -> Tensor:
        return torch.from_numpy(vector.view(SIGNED[self.point.bits])).to(WIRE[self.point.bits])


@dataclass(frozen=True)
class KeysLocal(Around):
    """The first phase: draw the keys of a session and send the public ones.

    Parameters
    ----------
    local
        The wrapped local step.
    vault
        Where clients keep their sessions.
    """

    vault: Vault

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Return the public keys. The memory of the last round in which the client took part is
        settled.
        """
        session = self.vault.add(client_of(key))
        return Fit({"keys": _tensor(session.public)}, settled(memory, message["lost"].tolist()), {})


@dataclass(frozen=True)
class SharesLocal(Around):
    """The second phase: share the secrets among the neighbours.

    Parameters
    ----------
    local
        The wrapped local step.
    vault
        Where clients keep their sessions.
    """

    vault: Vault

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Return a sealed pair of shares for each neighbour, and digests."""
        own, others = _rows(message, "session", KEYS)[0], _rows(message, "neighbours", KEYS)
        with self.vault.opened(client_of(key), session_name(own)) as session:
            sent = session.share(others, int(message["threshold"]))
        boxes, digests = (
            _tensor(sent.boxes).reshape(-1, BOX),
            _tensor(sent.digests).reshape(-1, PAIR),
        )
        return Fit({"boxes": boxes, "digests": digests, "seed": _tensor(sent.seed)}, memory, {})


@dataclass(frozen=True)
class MaskedLocal(FixedPointLocal):
    """The third phase: the wrapped step, whose integers are masked. What it keeps counts only once
    the round is known not to be lost.

    Parameters
    ----------
    local
        The wrapped local step.
    vault
        Where clients keep their sessions.
    """

    vault: Vault

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Fit, weigh, lift, round and mask."""
        vector, kept = self._vector(message, memory, data, key, options)
        partners: str = options.secure_partners  # type: ignore[attr-defined]
        number: str = options.secure_session  # type: ignore[attr-defined]
        with self.vault.opened(client_of(key), number) as session:
            masked = session.mask(vector, [flag == "1" for flag in partners], self.point.bits)
        pending = {f"{PENDING}{name}": leaf for name, leaf in kept.items()}
        since = {SINCE: torch.tensor(round_of(key))} if kept or memory else {}
        return Fit({"vector": self._written(masked)}, memory | pending | since, {})


@dataclass(frozen=True)
class OpenLocal(Around):
    """The fourth phase: give the shares that take the masks off the sum.

    Parameters
    ----------
    local
        The wrapped local step.
    vault
        Where clients keep their sessions.
    """

    vault: Vault

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Return one share for each neighbour, zeros where there is none to give."""
        own, boxes = _rows(message, "session", KEYS)[0], _rows(message, "boxes", BOX)
        with self.vault.opened(client_of(key), session_name(own)) as session:
            shares = session.open(message["active"].tolist(), message["dropped"].tolist(), boxes)
        return Fit(
            {
                "shares": _tensor(b"".join(share or bytes(SECRET) for share in shares)).reshape(
                    -1, SECRET
                )
            },
            memory,
            {},
        )


def client_of(key: Key) -> str:
    """Return the name of the client whose turn has this key."""
    return str(key.path[2])


def round_of(key: Key) -> int:
    """Return the number of the round of a turn."""
    return int(key.path[1])


def _rows(message: Tree, name: str, length: int) -> list[bytes]:
    """Return the rows of a leaf of bytes."""
    leaf = message[name]
    if leaf.dtype is not torch.uint8 or leaf.ndim != 2 or leaf.shape[1] != length or not len(leaf):
        raise refusal(
            f"rows of {length} bytes in leaf {name!r}", f"{leaf.dtype} {tuple(leaf.shape)}", "shape"
        )
    return [row.tobytes() for row in leaf.numpy()]


def _tensor(content: bytes) -> Tensor:
    return (
        torch.frombuffer(bytearray(content), dtype=torch.uint8)
        if content
        else torch.zeros(0, dtype=torch.uint8)
    )

"""The local steps of the four phases: what a client answers. Its keys are in a vault; only what the
wrapped step keeps is in its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesfed.algorithms.wrappers.secure_sums.primitives import LIMBS, SECRET, Bits, digest
from bayesfed.algorithms.wrappers.secure_sums.sessions import (
    BOX,
    KEYS,
    PAIR,
    Session,
    refusal,
    session_name,
)
from bayesfed.algorithms.wrappers.secure_sums.vaults import Vault
from bayesfed.data import Dataset
from bayesfed.federated import Fit, LocalOptions
from bayesfed.federated.core import Around
from bayesfed.keys import Key
from bayesfed.trees import Tree, under

# Names in a client's memory: what the wrapped step keeps if the round is not lost, and the number
# of that round.
PENDING, SINCE = "secure/pending/", "secure/since"


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
class SessionLocal(Around):
    """The second and the fourth phase: answer a question for shares, which leaves the memory as it
    is.

    Parameters
    ----------
    local
        The wrapped local step.
    vault
        Where clients keep their sessions.
    answer
        What a session answers to a message.
    """

    vault: Vault
    answer: Callable[[Session, Tree], Tree]

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Let the session that the message names answer."""
        own = _rows(message, "session", KEYS)[0]
        with self.vault.opened(client_of(key), session_name(own)) as session:
            return Fit(self.answer(session, message), memory, {})


def shares(session: Session, message: Tree) -> Tree:
    """Share the secrets of a session: a sealed pair of shares for each neighbour, and digests."""
    session.share(_rows(message, "neighbours", KEYS), int(message["threshold"]))
    return {
        "boxes": _tensor(b"".join(session.boxes)).reshape(-1, BOX),
        "digests": _tensor(session.digests).reshape(-1, PAIR),
        "seed": _tensor(digest(session.seed)),
    }


def opened(session: Session, message: Tree) -> Tree:
    """Give the shares that take the masks off the sum, zeros where there is none to give."""
    active, dropped = message["active"].tolist(), message["dropped"].tolist()
    given = session.open(active, dropped, _rows(message, "boxes", BOX))
    return {"shares": _tensor(b"".join(given)).reshape(-1, SECRET)}


@dataclass(frozen=True)
class MaskedLocal(Around):
    """The third phase: the integers of a `FixedPointLocal`, masked. What it keeps counts only once
    the round is known not to be lost.

    Parameters
    ----------
    local
        The local step in fixed point.
    vault
        Where clients keep their sessions.
    bits
        Bits of an integer.
    """

    vault: Vault
    bits: Bits

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Run the step, and mask."""
        fit = self.local.fit(message, memory, data, key, options)
        vector = fit.payload["vector"].numpy()
        partners: str = options.secure_partners  # type: ignore[attr-defined]
        name: str = options.secure_session  # type: ignore[attr-defined]
        with self.vault.opened(client_of(key), name) as session:
            flags = [flag == "1" for flag in partners]
            masked = session.mask(vector.view(LIMBS[self.bits]), flags, self.bits)
        payload = {"vector": torch.from_numpy(masked.view(vector.dtype))}
        if not (fit.memory or memory):
            return Fit(payload, {}, {})
        pending = {f"{PENDING}{name}": leaf for name, leaf in fit.memory.items()}
        since = {SINCE: torch.tensor(int(key.path[1]))}
        return Fit(payload, memory | pending | since, {})


def client_of(key: Key) -> str:
    """Return the name of the client whose turn has this key."""
    return str(key.path[2])


def _rows(message: Tree, name: str, length: int) -> list[bytes]:
    """Return the rows of a leaf of bytes."""
    leaf = message[name]
    if leaf.dtype is not torch.uint8 or leaf.ndim != 2 or leaf.shape[1] != length or not len(leaf):
        raise refusal(
            f"rows of {length} bytes in leaf {name!r}", f"{leaf.dtype} {tuple(leaf.shape)}", "shape"
        )
    return [row.tobytes() for row in leaf.numpy()]


def _tensor(content: bytes) -> Tensor:
    return torch.tensor(list(content), dtype=torch.uint8)

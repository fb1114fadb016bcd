"""The 26 ways in which a hostile client tries to spoil a round."""

from __future__ import annotations

import os
import pickle
import struct
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bayesfed.compress.wire import Leaf, pack, seal, unseal
from bayesfed.errors import BayesfedError, WireError
from bayesfed.testing.law import law
from tests.support.hostile.pool import Arrivals
from tests.support.hostile.turn import Turn

TRAP = os.path.join(tempfile.gettempdir(), "bayesfed-read-a-pickle")


@dataclass(frozen=True)
class Case:
    """One way to spoil a round.

    Parameters
    ----------
    name
        Short name of the case.
    act
        Makes the hostile answers of a turn.
    cast
        Whether the server may take the answer after a cast.
    counts
        Whether the client's honest answer counts nevertheless.
    """

    name: str
    act: Callable[[Turn], Arrivals]
    cast: bool = False
    counts: bool = False


def cases() -> list[Case]:
    """Return the 26 cases."""
    listed = [
        Case("one NaN", lambda turn: _with_number(turn, float("nan"))),
        Case("one Inf", lambda turn: _with_number(turn, float("inf"))),
        Case("values 1e12", lambda turn: turn.with_leaf(lambda leaf: torch.full_like(leaf, 1e12))),
        Case("one row", lambda turn: turn.with_leaf(_shorter)),
        Case("a scalar", lambda turn: turn.with_leaf(lambda leaf: leaf.sum())),
        Case("a leading dimension", lambda turn: turn.with_leaf(lambda leaf: leaf[None].clone())),
        Case("transposed", lambda turn: turn.with_leaf(_transposed)),
        Case("empty", lambda turn: turn.with_leaf(lambda leaf: leaf[:0].clone())),
        Case(
            "complex",
            lambda turn: turn.rewritten(
                lambda leaf: replace(leaf, dtype="c8", section=bytes(leaf.section) * 2)
            ),
        ),
        Case("integers", lambda turn: _as_another(turn, lambda leaf: (16 * leaf).round().long())),
        Case("booleans", lambda turn: _as_another(turn, lambda leaf: leaf > 0)),
        Case("float64", _as_float64, cast=True),
        Case("a leaf missing", lambda turn: turn.sending(_without(turn))),
        Case("a leaf more", lambda turn: turn.sending(_with_stranger(turn))),
        *(
            Case(f"weight {weight:g}", _declaring(weight))
            for weight in (-99.0, 1e18, float("nan"), 0.0)
        ),
        Case("another shape declared", lambda turn: turn.rewritten(_taller)),
        Case("truncated", lambda turn: turn.raw(turn.reply.packed[:-3])),
        Case(
            "garbage",
            lambda turn: turn.raw(turn.key.child("garbage").numpy().bytes(len(turn.reply.packed))),
        ),
        Case("a pickle", lambda turn: turn.raw(pickle.dumps(Trap(TRAP)))),
        Case("an unknown type", lambda turn: turn.rewritten(lambda leaf: replace(leaf, dtype="O"))),
        Case(
            "a header bomb",
            lambda turn: turn.rewritten(
                lambda leaf: replace(leaf, shape=(1 << 20, 1 << 20), section=b"")
            ),
        ),
        Case(
            "a duplicate",
            lambda turn: [*turn.raw(turn.reply.packed), *turn.raw(turn.reply.packed)],
            counts=True,
        ),
        Case("a stale one", lambda turn: turn.raw(turn.before.packed)),
    ]
    law(len(listed) == 26, f"{len(listed)} cases")
    return listed


@dataclass(frozen=True)
class Trap:
    """An object whose pickle makes a directory when it is read."""

    path: str

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return os.mkdir, (self.path,)


def _with_number(turn: Turn, number: float) -> Arrivals:
    """Put NaN or infinity where the codec stores a number, so that the rest of the message stays
    valid.
    """
    tree, meta = turn.decoded()
    leaves, _ = unseal(turn.message)
    for place, leaf in enumerate(leaves):
        for kind in ("<d",) if leaf.dtype == "f8" else ("<f", "<e"):
            bits = struct.pack(kind, number)
            for offset in range(min(len(leaf.section), 12)):
                section = (
                    bytes(leaf.section[:offset]) + bits + bytes(leaf.section[offset + len(bits) :])
                )
                if len(section) == len(leaf.section):
                    message = seal(
                        [*leaves[:place], replace(leaf, section=section), *leaves[place + 1 :]],
                        meta,
                    )
                    if _refused_for(turn, message) == "values":
                        return turn.sending(message)
    spoilt = tree[turn.leaf()].clone().float().contiguous()
    spoilt.view(-1)[0] = number
    return turn.sending(pack({**tree, turn.leaf(): spoilt}, meta))


def _refused_for(turn: Turn, message: bytes) -> str:
    try:
        turn.task.up.decode(message, turn.key)
    except WireError as problem:
        return problem.field
    except BayesfedError:
        return ""
    return ""


def _shorter(leaf: Tensor) -> Tensor:
    """Return the first row, of a single row the first entry."""
    return (leaf[:1] if len(leaf) > 1 else leaf[..., :1]).clone()


def _transposed(leaf: Tensor) -> Tensor:
    """Return the transpose, or a single column if the transpose has the same shape."""
    return (
        leaf.mT.contiguous()
        if leaf.ndim > 1 and leaf.shape != leaf.mT.shape
        else leaf.reshape(-1, 1).clone()
    )


def _as_another(turn: Turn, change: Callable[[Tensor], Tensor]) -> Arrivals:
    """Send a leaf of another dtype; as plain values if the codec would turn it into floats."""
    tree, meta = turn.decoded()
    spoilt = {**tree, turn.leaf(): change(tree[turn.leaf()])}
    message = turn.written(spoilt, meta)
    try:
        if turn.task.up.decode(message, turn.key)[0][turn.leaf()].is_floating_point():
            message = pack(spoilt, meta)
    except BayesfedError:
        pass
    return turn.sending(message)


def _as_float64(turn: Turn) -> Arrivals:
    tree, meta = turn.decoded()
    return turn.sending(
        pack(
            {
                name: leaf.double() if leaf.is_floating_point() else leaf
                for name, leaf in tree.items()
            },
            meta,
        )
    )


def _without(turn: Turn) -> bytes:
    tree, meta = turn.decoded()
    return turn.written({name: leaf for name, leaf in tree.items() if name != turn.leaf()}, meta)


def _with_stranger(turn: Turn) -> bytes:
    tree, meta = turn.decoded()
    return turn.written({**tree, "stranger": torch.ones(2)}, meta)


def _declaring(weight: float) -> Callable[[Turn], Arrivals]:
    return lambda turn: turn.declaring(weight)


def _taller(leaf: Leaf) -> Leaf:
    return replace(leaf, shape=(leaf.shape[0] + 1, *leaf.shape[1:]) if leaf.shape else (2,))

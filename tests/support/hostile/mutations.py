"""Mutants: messages with a change, which a decoder must refuse or read as their header promises.

With the old digest every change must be refused. With a valid digest, as a hostile sender would
write it, a mutant must be refused or be read as what its header promises: finite leaves of these
names and shapes. For codecs whose messages have the layout of `bayesfed.compress.wire`. To run
mutants on a codec of your own::

    tally = check_mutants(codec, [codec.encode(tree, {}, key) for tree in trees], key, count=10_000)
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesfed.compress.codecs import Codec
from bayesfed.compress.wire import DIGEST, Leaf, digest_of, seal, unseal
from bayesfed.errors import WireError
from bayesfed.keys import Key
from bayesfed.testing.law import law, refuses
from bayesfed.trees import Tree
from tests.support.codecs.damage import damaged, survives

KINDS = ("flip", "cut", "splice", "length", "insert", "delete", "section", "promise")
# Numbers at the limits of integer types and of readers.
_EDGES = (
    0,
    1,
    2,
    127,
    128,
    255,
    256,
    65535,
    65536,
    1 << 20,
    1 << 31,
    (1 << 32) - 1,
    1 << 40,
    (1 << 63) - 1,
    1 << 64,
    10**30,
)


@dataclass(frozen=True)
class Mutant:
    """A changed message.

    Parameters
    ----------
    kind
        The kind of change, one of `KINDS`.
    resealed
        Whether its digest is valid.
    message
        The bytes.
    """

    kind: str
    resealed: bool
    message: bytes


def check_mutants(
    codec: Codec, messages: Sequence[bytes], key: Key, *, count: int = 1000, stream: int = 0
) -> Counter[tuple[str, str]]:
    """Decode `count` mutants of messages of a codec, and return how many of each kind were
    "refused" and how many were "read".

    Parameters
    ----------
    codec
        The codec to check.
    messages
        Valid messages, at least two so that they can be spliced.
    key
        The key they were written with.
    count
        Number of mutants.
    stream
        Number of the random stream; each gives other mutants.

    Raises
    ------
    LawError
        If a mutant raises anything but `WireError`, is read although its digest is wrong, or is
        read as something other than its header promises.
    """
    tally = Counter[tuple[str, str]]()
    for mutant in mutants(messages, key.child("mutants", stream), count):
        what, decode = (
            f"{mutant.kind} of {len(mutant.message)} bytes",
            partial(codec.decode, mutant.message, key),
        )
        if mutant.resealed:
            read = survives(decode, partial(_as_promised, mutant.message), what)
        else:
            refuses(decode, WireError, what)
            read = False
        tally[mutant.kind, "read" if read else "refused"] += 1
    return tally


def mutants(messages: Sequence[bytes], key: Key, count: int) -> Iterator[Mutant]:
    """Yield `count` mutants of all `KINDS` in turn. None of them equals one of the messages.

    ========= ======================================================================================
    flip      one to three bits are flipped
    cut       the end or the beginning is missing
    splice    the front of one message and the back of another
    length    the length of the header is changed, or a number in the header
    insert    some bytes are inserted
    delete    some bytes are deleted
    section   one section is `damaged` or exchanged with another, and the header is updated
    promise   a shape, dtype or name that is not the section's; everything else is valid
    ========= ======================================================================================

    The first six have the old digest and a valid one in turn; the last two always have a valid one.
    """
    random, known, number = key.numpy(), set(messages), 0
    while number < count:
        kind, resealed = KINDS[number % len(KINDS)], bool(number // len(KINDS) % 2)
        message, other = (messages[int(random.integers(len(messages)))] for _ in range(2))
        if kind in {"section", "promise"}:
            changed, resealed = _rewritten(kind, message, other, random), True
        else:
            changed = _changed(kind, message, other, random)
            changed = reseal(changed[:-DIGEST]) if resealed else changed
        if changed not in known:
            yield Mutant(kind, resealed, changed)
            number += 1


def reseal(body: bytes) -> bytes:
    """Return the body with its valid digest."""
    return body + digest_of(body)


def _as_promised(message: bytes, decoded: tuple[Tree, Mapping[str, Any]]) -> bool:
    leaves, _ = unseal(message)
    tree = decoded[0]
    law(
        [leaf.name for leaf in leaves] == list(tree),
        f"leaves {list(tree)} came of a header of {[leaf.name for leaf in leaves]}",
    )
    return all(
        tuple(tree[leaf.name].shape) == leaf.shape and _is_sound(tree[leaf.name]) for leaf in leaves
    )


def _is_sound(leaf: Tensor) -> bool:
    return not leaf.is_floating_point() or bool(torch.isfinite(leaf).all())


def _changed(kind: str, message: bytes, other: bytes, random: np.random.Generator) -> bytes:
    place, size = int(random.integers(len(message))), int(random.integers(1, 9))
    match kind:
        case "flip":
            raw = bytearray(message)
            for _ in range(1 + size // 3):
                raw[int(random.integers(len(raw)))] ^= 1 << int(random.integers(8))
            return bytes(raw)
        case "cut":
            return message[:place] if random.integers(4) else message[place:]
        case "splice":
            # At the same place half of the time, so that sections of one message follow the header
            # of the other.
            return (
                message[:place]
                + other[place if random.integers(2) else int(random.integers(len(other))) :]
            )
        case "insert":
            return (
                message[:place]
                + (random.bytes(size) if random.integers(2) else message[place : place + 50 * size])
                + message[place:]
            )
        case "delete":
            return message[:place] + message[place + size :]
    return _other_length(message, random)


def _other_length(message: bytes, random: np.random.Generator) -> bytes:
    """Return the message with another length of its header, or another number in the header."""
    (length,) = struct.unpack_from("<I", message, 4)
    if not random.integers(3):
        near = int(length + random.integers(-9, 10))
        return message[:4] + struct.pack("<I", _number(near, random) % (1 << 32)) + message[8:]
    numbers = list(re.finditer(rb"\d+", message[8 : 8 + length]))
    chosen = numbers[int(random.integers(len(numbers)))]
    header = (
        message[8 : 8 + chosen.start()]
        + str(_number(int(chosen[0]), random)).encode()
        + message[8 + chosen.end() : 8 + length]
    )
    # Half of the time the length of the header is updated too.
    return (
        message[:4]
        + struct.pack("<I", len(header) if random.integers(2) else length)
        + header
        + message[8 + length :]
    )


def _number(value: int, random: np.random.Generator) -> int:
    choices = (
        value + 1,
        max(value - 1, 0),
        2 * value,
        value // 2,
        _EDGES[int(random.integers(len(_EDGES)))],
    )
    return choices[int(random.integers(len(choices)))]


def _rewritten(kind: str, message: bytes, other: bytes, random: np.random.Generator) -> bytes:
    """Return a message that is valid except for one leaf."""
    leaves, meta = unseal(message)
    strangers, _ = unseal(other)
    if not leaves or not strangers:
        return reseal(message[:-DIGEST] + b"\0")
    place, stranger = (
        int(random.integers(len(leaves))),
        strangers[int(random.integers(len(strangers)))],
    )
    leaf = leaves[place]
    if kind == "section":
        raw = (
            damaged(bytes(leaf.section), random) if random.integers(5) else bytes(stranger.section)
        )
        leaves[place] = replace(leaf, section=raw)
    else:
        leaves[place] = _other_promise(leaf, stranger, random)
    return seal(leaves, meta)


def _other_promise(leaf: Leaf, stranger: Leaf, random: np.random.Generator) -> Leaf:
    shape = list(leaf.shape) or [1]
    match int(random.integers(5)):
        case 0:
            return replace(leaf, name=stranger.name)
        case 1:
            return replace(
                leaf, dtype=("f8", "f4", "f2", "i8", "i4", "u1", "b1")[int(random.integers(7))]
            )
        case 2:
            return replace(leaf, shape=tuple(shape[::-1]) if len(shape) > 1 else (*shape, 1))
        case 3:
            axis = int(random.integers(len(shape)))
            shape[axis] = _number(shape[axis], random)
            return replace(leaf, shape=tuple(shape))
        case _:
            return replace(leaf, shape=stranger.shape, dtype=stranger.dtype)

"""The wire format: a checked header, sections of bounded size, a digest. Nothing is unpickled.

Layout of a message (little endian)::

    4 bytes   b"BFD1"
    4 bytes   H, length of the header
    H bytes   header, JSON: {"meta": {...}, "leaves": [[name, dtype, [shape], bytes], ...]}
    ...       one section for each leaf, in the order of the header: plain values, or what a codec
              wrote
    16 bytes  digest of everything before it: half of its SHA-256

A brief message begins with b"BFD2", and its header is deflated.

A damaged or hostile message raises `WireError` and nothing else. No tensor is created before the
header has been checked against the number of bytes present and its memory against a limit.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import struct
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field, TypeAdapter
from torch import Tensor
from typing_extensions import TypedDict

from bayesfed.compress.headers import deflated, inflated
from bayesfed.errors import WireError
from bayesfed.errors.plurals import plural
from bayesfed.trees import Tree

MAGIC, BRIEF = b"BFD1", b"BFD2"
DIGEST = 16
MAX_BYTES = 1 << 30
# Parsing a header takes up to about twenty times its length in memory, and every leaf, however
# small, takes a record.
HEADER_SHARE = 32
LEAF_RECORD = 1 << 10
MAX_DIMENSIONS = 64  # the most that NumPy supports
Meta = Mapping[str, str | int | float | bool]
Section = bytes | memoryview

DTYPES: dict[str, torch.dtype] = {
    "f8": torch.float64,
    "f4": torch.float32,
    "f2": torch.float16,
    "bf": torch.bfloat16,
    "i8": torch.int64,
    "i4": torch.int32,
    "i2": torch.int16,
    "i1": torch.int8,
    "u1": torch.uint8,
    "b1": torch.bool,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Leaf:
    """One leaf of a message.

    Parameters
    ----------
    name, dtype, shape
        Its entry in the header; dtypes are the names in `DTYPES`.
    section
        Its bytes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    section: Section

    @property
    def size(self) -> int:
        """Size of the decoded leaf in bytes."""
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize

    @property
    def entries(self) -> int:
        """Number of entries; a dimension of length 0 counts as 1, as strides are products."""
        return math.prod(max(length, 1) for length in self.shape)


_Length = Annotated[int, Field(ge=0, lt=1 << 63)]
_Shape = Annotated[tuple[_Length, ...], Field(max_length=MAX_DIMENSIONS)]


class _Header(TypedDict):
    meta: dict[str, Any]
    leaves: list[tuple[str, str, _Shape, _Length]]


_HEADER = TypeAdapter(_Header)


class _Proven(threading.local):
    """The last message that this thread sealed or whose digest it verified."""

    message: bytes | None = None


_proven = _Proven()


def forget() -> None:
    """Let go of the last message that this thread sealed or verified."""
    _proven.message = None


def seal(leaves: Iterable[Leaf], meta: Meta, *, brief: bool = False) -> bytes:
    """Return a message of sections and a flat dictionary of scalars.

    Raises
    ------
    WireError
        If a value in `meta` is not a string, a boolean, a finite number or an integer of at most 64
        bits.
    """
    leaves = list(leaves)
    for name, value in meta.items():
        if not _is_scalar(value):
            expected = "a string, a boolean or a finite number"
            raise WireError(f"meta {name!r}", expected, repr(value), "a leaf")
    entries = [[leaf.name, leaf.dtype, list(leaf.shape), len(leaf.section)] for leaf in leaves]
    header = json.dumps({"meta": dict(meta), "leaves": entries}, separators=(",", ":")).encode()
    header = deflated(header) if brief else header
    head = (BRIEF if brief else MAGIC) + struct.pack("<I", len(header)) + header
    digest, sections = hashlib.sha256(head), [leaf.section for leaf in leaves]
    for section in sections:
        digest.update(section)
    _proven.message = message = b"".join([head, *sections, digest.digest()[:DIGEST]])
    return message


def unseal(message: bytes, *, limit: int = MAX_BYTES) -> tuple[list[Leaf], dict[str, Any]]:
    """Check a message and return its leaves, with their sections unread, and its meta.

    Parameters
    ----------
    message
        A message of the wire format.
    limit
        Largest size in bytes of the message, and of its decoded leaves at a kibibyte more than
        their values each. The header may take a 32nd of it, or 64 KiB.

    Raises
    ------
    WireError
        If the message is damaged, not of this format or above the limit.
    """
    if len(message) > limit:
        raise _too_large("message", f"at most {plural(limit, 'byte')}", f"{len(message)} bytes")
    body = memoryview(message)[:-DIGEST]
    if len(body) < len(MAGIC) + 4 or bytes(body[:4]) not in (MAGIC, BRIEF):
        raise WireError("message", f"magic {MAGIC!r}", bytes(body[:4]), "a message from seal")
    if not is_intact(message):
        raise WireError(
            "message", "a matching digest", "another one", "sending it again", field="digest"
        )
    (length,) = struct.unpack_from("<I", body, 4)
    raw, most = bytes(body[8 : 8 + length]), max(limit // HEADER_SHARE, 1 << 16)
    whole = inflated(raw, most) if body[:4] == BRIEF else raw
    if max(length, len(whole)) > most:
        raise _too_large("message header", f"a {HEADER_SHARE}nd of {limit} bytes", length)
    entries, meta = _header(whole, len(raw) == length)
    if 8 + length + sum(size for *_, size in entries) != len(body):
        raise WireError(
            "message",
            "the sections its header promises",
            f"{plural(len(body), 'byte')}",
            "sending it again",
            field="header",
        )
    leaves, start = [], 8 + length
    for name, dtype, shape, size in entries:
        leaves.append(Leaf(name, dtype, shape, body[start : start + size]))
        start += size
    _proven.message = message if type(message) is bytes else None
    decoded = sum(leaf.entries * DTYPES[leaf.dtype].itemsize + LEAF_RECORD for leaf in leaves)
    if decoded > limit:
        raise _too_large("message", f"leaves of at most {limit} bytes", decoded)
    return leaves, meta


def _too_large(where: str, expected: str, actual: object) -> WireError:
    return WireError(where, expected, actual, "a higher limit if it is honest", field="size")


def digest_of(body: bytes | memoryview) -> bytes:
    """Return the digest of a message's body, its last 16 bytes."""
    return hashlib.sha256(body).digest()[:DIGEST]


def with_digest(body: bytes | memoryview) -> bytes:
    """Return the message with this body."""
    _proven.message = message = b"".join([body, digest_of(body)])
    return message


def is_intact(message: bytes) -> bool:
    """Return whether a message ends with the digest of its body."""
    # Bytes are immutable, so an object that this thread sealed or verified is not hashed again, for
    # example by the gate and then by a codec.
    return message is _proven.message or hmac.compare_digest(
        digest_of(memoryview(message)[:-DIGEST]), message[-DIGEST:]
    )


def pack(tree: Mapping[str, Tensor], meta: Meta) -> bytes:
    """Return a message with the plain values of a tree; `WireError` of a dtype that `DTYPES` has
    not.
    """
    return seal((plain(name, leaf) for name, leaf in tree.items()), meta)


def unpack(message: bytes, *, limit: int = MAX_BYTES) -> tuple[Tree, dict[str, Any]]:
    """Return (tree, meta) of a message made by `pack`; the tensors own their memory.

    Raises
    ------
    WireError
        As `unseal`, or if a section does not have the size of its values.
    """
    leaves, meta = unseal(message, limit=limit)
    return {leaf.name: opened(leaf) for leaf in leaves}, meta


def dtype_of(name: str, leaf: Tensor) -> str:
    """Return the name of a leaf's dtype; raise `WireError` if the format has none."""
    if leaf.dtype not in NAMES:
        raise WireError(f"leaf {name!r}", f"one of {sorted(DTYPES)}", leaf.dtype, "a cast first")
    return NAMES[leaf.dtype]


def plain(name: str, leaf: Tensor) -> Leaf:
    """Return a leaf whose section holds its plain values, booleans with eight per byte."""
    dtype, held = dtype_of(name, leaf), leaf.detach().cpu().contiguous()
    # NumPy has no bfloat16.
    values = (held.view(torch.int16) if dtype == "bf" else held).numpy()
    if leaf.dtype is torch.bool:
        values = np.packbits(values.reshape(-1))
    return Leaf(name, dtype, tuple(leaf.shape), values.data.cast("B") if values.size else b"")


def opened(leaf: Leaf) -> Tensor:
    """Return the tensor of a leaf made by `plain`."""
    size = -(-leaf.size // 8) if leaf.dtype == "b1" else leaf.size
    if len(leaf.section) != size:
        where, found = f"leaf {leaf.name!r}", len(leaf.section)
        raise WireError(where, f"{plural(size, 'byte')}", found, "sending it again", field="shape")
    dtype = DTYPES[leaf.dtype]
    if not leaf.size:
        return torch.empty(leaf.shape, dtype=dtype)
    raw = np.frombuffer(leaf.section, np.uint8)
    if dtype is torch.bool:
        return torch.from_numpy(np.unpackbits(raw, count=leaf.size).astype(np.bool_)).reshape(
            leaf.shape
        )
    # Writable and aligned. NumPy's own copy waits for huge pages, up to five times as long.
    copy = torch.empty(len(raw), dtype=torch.uint8)
    copy.numpy()[:] = raw
    return copy.view(dtype).reshape(leaf.shape)


def _header(
    raw: bytes, complete: bool
) -> tuple[list[tuple[str, str, tuple[int, ...], int]], dict[str, Any]]:
    try:
        if not complete:
            raise ValueError("the header is cut short")
        header = _HEADER.validate_json(raw, strict=True)
        meta, entries = header["meta"], header["leaves"]
        if not all(dtype in DTYPES for _, dtype, *_ in entries):
            raise ValueError("a leaf of another dtype")
        if len({name for name, *_ in entries}) != len(entries):
            raise ValueError("a leaf appears twice")
        if not all(map(_is_scalar, meta.values())):
            raise ValueError("meta holds something that is not a scalar")
    except ValueError as problem:
        said = "message header", "meta and leaves as JSON", problem, "a message from seal"
        raise WireError(*said, field="header") from problem
    return entries, meta


def _is_scalar(value: object) -> bool:
    return (
        isinstance(value, str)
        or (isinstance(value, int) and -(1 << 63) <= value < 1 << 63)
        or (isinstance(value, float) and math.isfinite(value))
    )

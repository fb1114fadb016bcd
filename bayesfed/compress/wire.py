"""The wire format: a checked header, a bounded payload, a digest. Nothing is unpickled.

Layout of a message (little endian)::

    4 bytes   b"BFD1"
    4 bytes   H, length of the header
    H bytes   header, JSON: {"meta": {...}, "leaves": [[name, dtype, [shape]], ...]}
    ...       the leaves' bytes, one after another, in the header's order
    16 bytes  BLAKE2b digest of everything before it

A damaged or hostile message raises `WireError` and nothing else; nothing is allocated
before the header's promise agrees with the bytes that are really there.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesfed.errors import WireError, complain
from bayesfed.trees import Tree

MAGIC = b"BFD1"
DIGEST = 16
MAX_BYTES = 1 << 32
Meta = Mapping[str, str | int | float | bool]

_DTYPES: dict[str, torch.dtype] = {
    "f8": torch.float64,
    "f4": torch.float32,
    "f2": torch.float16,
    "i8": torch.int64,
    "i4": torch.int32,
    "u1": torch.uint8,
    "b1": torch.bool,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def pack(tree: Mapping[str, Tensor], meta: Meta) -> bytes:
    """Write a tree and a flat dictionary of scalars as one message.

    Raises
    ------
    WireError
        If a leaf has a dtype the format has no name for.
    """
    leaves, chunks = [], []
    for name, leaf in tree.items():
        if leaf.dtype not in _NAMES:
            raise WireError(complain(f"leaf {name!r}", expected=f"one of {sorted(_DTYPES)}", actual=leaf.dtype, hint="a cast first"))
        leaves.append([name, _NAMES[leaf.dtype], list(leaf.shape)])
        chunks.append(leaf.detach().cpu().contiguous().numpy().data.cast("B") if leaf.numel() else b"")
    header = json.dumps({"meta": dict(meta), "leaves": leaves}, separators=(",", ":")).encode()
    head = MAGIC + struct.pack("<I", len(header)) + header
    digest = hashlib.blake2b(head, digest_size=DIGEST)
    for chunk in chunks:
        digest.update(chunk)
    return b"".join([head, *chunks, digest.digest()])


def unpack(message: bytes, *, limit: int = MAX_BYTES) -> tuple[Tree, dict[str, Any]]:
    """Read a message back as (tree, meta); the tensors own their memory.

    Parameters
    ----------
    limit
        Bytes above which a message is refused unread.

    Raises
    ------
    WireError
        For anything but an undamaged message of ours.
    """
    if not len(MAGIC) + 4 + DIGEST <= len(message) <= limit:
        raise WireError(complain("message", expected=f"24 to {limit} bytes", actual=f"{len(message)} bytes", hint="a higher limit if it is honest"))
    body, digest = memoryview(message)[:-DIGEST], message[-DIGEST:]
    if bytes(body[:4]) != MAGIC:
        raise WireError(complain("message", expected=f"magic {MAGIC!r}", actual=bytes(body[:4]), hint="a message from pack"))
    if hashlib.blake2b(body, digest_size=DIGEST).digest() != digest:
        raise WireError(complain("message", expected="a matching digest", actual="another one", hint="sending it again"))
    (length,) = struct.unpack_from("<I", body, 4)
    leaves, meta = _header(bytes(body[8 : 8 + length]), length)
    promised = 8 + length + sum(count * dtype.itemsize for _, dtype, _, count in leaves)
    if promised != len(body):
        raise WireError(complain("message", expected=f"{promised} bytes as promised", actual=len(body), hint="sending it again"))
    tree, start = {}, 8 + length
    for name, dtype, shape, count in leaves:
        stop = start + count * dtype.itemsize
        tree[name] = _tensor(body[start:stop], dtype).reshape(shape)
        start = stop
    return tree, meta


def _tensor(raw: memoryview, dtype: torch.dtype) -> Tensor:
    # A copy, so that the tensor is writable and aligned whatever the offset was.
    if not len(raw):
        return torch.empty(0, dtype=dtype)
    flat = torch.from_numpy(np.frombuffer(raw, np.uint8).copy())
    return flat.ne(0) if dtype is torch.bool else flat.view(dtype)


def _header(raw: bytes, length: int) -> tuple[list[tuple[str, torch.dtype, list[int], int]], dict[str, Any]]:
    try:
        if len(raw) != length:
            raise ValueError("the header is cut short")
        header = json.loads(raw)
        meta, leaves = dict(header["meta"]), []
        for name, dtype, shape in header["leaves"]:
            if not isinstance(name, str) or not all(type(n) is int and n >= 0 for n in shape):
                raise ValueError(f"leaf {name!r} has shape {shape!r}")
            leaves.append((name, _DTYPES[dtype], [int(n) for n in shape], math.prod(shape)))
        if len({leaf[0] for leaf in leaves}) != len(leaves):
            raise ValueError("a leaf appears twice")
        if any(not isinstance(value, str | int | float | bool) for value in meta.values()):
            raise ValueError("meta holds something that is not a scalar")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        raise WireError(complain("message header", expected="meta and leaves as JSON", actual=problem, hint="a message from pack")) from problem
    return leaves, meta

"""Bombs: small messages whose headers promise much. Each must be refused before it costs time or
memory.

They can be used with any codec over `bayesfed.compress.wire`. Bombs inside of a section are in
`tests.support.hostile.sections`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any

from tests.support.hostile.mutations import reseal


def bombs(limit: int = 1 << 20) -> dict[str, bytes]:
    """Return messages that a codec with this limit, of about a mebibyte, must refuse because of
    their headers.
    """
    huge = 10**4000
    leaves: dict[str, Sequence[Sequence[Any]]] = {
        "a shape beyond any memory": [("a", "f4", [1 << 40, 1 << 20], 0)],
        "a length of 63 bits": [("a", "u1", [(1 << 63) - 1], 0)],
        "a length of 64 bits": [("a", "f4", [1 << 64], 0)],
        "no entries with strides beyond 64 bits": [("a", "f4", [0, 1 << 40, 1 << 40], 0)],
        "no entries in a length beyond 64 bits": [("a", "b1", [1 << 64, 0], 0)],
        "no entries in a length within 63 bits": [("a", "i8", [0, 1 << 62], 0)],
        "lengths of four thousand digits": [("a", "f4", [huge] * 12, 0)],
        "a size of four thousand digits": [("a", "f4", [1], huge)],
        "a section of negative size": [("a", "f4", [1], 9), ("b", "f4", [1], -9)],
        "a section of half a byte": [("a", "f4", [1], 0.5)],
        "a section of true bytes": [("a", "u1", [1], True)],
        "a thousand dimensions": [("a", "f4", [1] * 1000, 4)],
        "a byte above the limit": [("a", "u1", [limit + 1], 0)],
        "the limit, twice": [("a", "u1", [limit - 4096], 0), ("b", "u1", [limit - 4096], 0)],
        "many leaves that are nothing": [
            (f"{number:x}", "f4", [0], 0) for number in range(limit // 500)
        ],
        "one name for every leaf": [("a", "f4", [0], 0)] * 1000,
        "leaves that are lists of lists": [[[], [], [], []]] * 1000,
        "a dtype that is an object": [("a", "O", [1], 8)],
        "a dtype that is a list": [("a", ["f4"], [1], 4)],
        "a shape that is a string": [("a", "f4", "12", 4)],
        "a name that is a number": [(1, "f4", [1], 4)],
        "a section that is missing": [("a", "u1", [100], 100)],
    }
    metas: dict[str, Any] = {
        "an integer of four thousand digits": {"round": huge},
        "a list": {"round": [1] * 1000},
        "an object in an object": {"round": {"round": {}}},
        "a null": {"round": None},
        "a meta that is a list": [["round", 1]],
        "a meta that is a string": "round",
    }
    deep = limit // 32
    headers = {
        "lists in lists": b"[" * deep,
        "objects in objects": b'{"a":' * (deep // 5),
        "a list of lists": b"[" + b"[]," * (deep // 3 - 1) + b"[]]",
        "a long number": b'{"meta":{"x":' + b"9" * (deep // 2) + b'},"leaves":[]}',
        "a number beyond float64": b'{"meta":{"x":1e99999},"leaves":[]}',
        "NaN": b'{"meta":{"x":NaN},"leaves":[]}',
        "leaves without end": b'{"meta":{},"leaves":[' + b'["a","f4",[1],4],' * (deep // 20),
        "nothing": b"",
        "null": b"null",
        "no text": b"\xff\xfe" * 20,
        "blanks beyond its share": b" " * max(deep, 1 << 16) + b"{}",
    }
    empty = _header([], {})
    return {
        **{what: _forged(_header(promise, {})) for what, promise in leaves.items()},
        **{f"meta: {what}": _forged(_header([], meta)) for what, meta in metas.items()},
        **{f"header: {what}": _forged(header) for what, header in headers.items()},
        "a header of four gigabytes": _forged(b"{}", length=(1 << 32) - 1),
        "a header that ends after the message": _forged(empty, length=len(empty) + 1),
        "a message above the limit": _forged(b" " * limit),
    }


def _header(leaves: Sequence[Sequence[Any]], meta: Any) -> bytes:
    return json.dumps({"meta": meta, "leaves": leaves}, separators=(",", ":")).encode()


def _forged(header: bytes, *, length: int | None = None) -> bytes:
    return reseal(b"BFD1" + struct.pack("<I", len(header) if length is None else length) + header)

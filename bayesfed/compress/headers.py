"""Headers of brief messages: deflated, with what most of them have as the dictionary."""

from __future__ import annotations

import zlib

# A part of the format. What is likeliest comes last.
USUAL = (
    b'"f8","f2","i4","i8","u1",[],"eval"]],{"meta":{"client":"client-0","round":0,"phase":"train"},'
    b'"leaves":[["run/nll","f4",[],4],["shared/sd","f4",[],6],["run/returns/["/exchange/start/seed"'
    b',"i8",["/exchange/start/figures","f4",[2,["prior/["point/["/exchange/change/support/.weight",'
    b'"b1",[["/exchange/change/point/.bias","f4",["/exchange/change/mean/.weight","f4",[["mean/'
    b'{"meta":{"rate_factor":0.9,"scale":1'
)


def deflated(header: bytes) -> bytes:
    """Return a header in fewer bytes."""
    deflate = zlib.compressobj(9, wbits=-zlib.MAX_WBITS, zdict=USUAL)
    return deflate.compress(header) + deflate.flush()


def inflated(raw: bytes, most: int) -> bytes:
    """Return a deflated header, or enough of it to see that it has more than `most` bytes; nothing
    of one that is damaged.
    """
    inflate = zlib.decompressobj(-zlib.MAX_WBITS, zdict=USUAL)
    try:
        header = inflate.decompress(raw, most + 1)
    except zlib.error:
        return b""
    return header if len(header) > most or (inflate.eof and not inflate.unused_data) else b""

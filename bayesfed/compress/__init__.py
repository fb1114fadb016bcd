"""Turning trees of tensors into bytes and back: the wire format and the codecs over it."""

from bayesfed.compress.codecs import Cast, Codec
from bayesfed.compress.support import gather_active, pack_mask, scatter_active, unpack_mask
from bayesfed.compress.wire import pack, unpack

__all__ = ["Cast", "Codec", "gather_active", "pack", "pack_mask", "scatter_active", "unpack", "unpack_mask"]

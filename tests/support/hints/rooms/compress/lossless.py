"""Messages of lossless codes, of masks, and of what reads and writes sections."""

import struct

import numpy as np

from bayesfed.compress.leaf import Reader, Writer
from bayesfed.compress.lossless.bits import Fixed, zigzag
from bayesfed.compress.lossless.cheapest import Cheapest
from bayesfed.compress.lossless.golomb import Golomb
from bayesfed.compress.lossless.ranges import Range, read_model, write_model
from bayesfed.compress.lossless.splits import read_alphabet, read_split, write_alphabet
from bayesfed.compress.masks.cheapest import CheapestMask
from bayesfed.compress.masks.contexts import ContextMask
from bayesfed.compress.masks.runs import RunMask
from tests.compress.integer_sequences import HIGHEST, SEQUENCES, as_varint, written

COMPLETE = ("bayesfed/compress/lossless", "bayesfed/compress/masks")
AGAIN = "sending it again"
SHAPE = (9, 3)
VALUES = np.array([3, 1, 4, 1, 5])


def wrote(write):
    """Return what is written."""
    out = Writer()
    write(out)
    return out.bytes()


def alphabet(*symbols):
    """Return an alphabet as it is written."""
    return wrote(lambda out: write_alphabet(np.array(symbols), out))


def table(*frequencies, kept=23):
    """Return a model of these frequencies, all of their bits kept."""
    return wrote(lambda out: write_model(np.array(frequencies), kept, out))


def read(code, raw, count):
    """Read integers."""
    code.read(Reader(raw), count)


def mended(code, raw, count, good=None):
    """Return the case of a damaged section of integers, which is sent again."""
    good = VALUES if good is None else good
    return (
        lambda: read(code, raw, count),
        AGAIN,
        lambda: read(code, written(code, good), len(good)),
    )


def masked(code, raw):
    """Return the case of a damaged mask, which is sent again."""
    good = wrote(lambda out: code.write(np.arange(27).reshape(SHAPE) % 5 == 0, out))
    return (
        lambda: code.read(Reader(raw), SHAPE),
        AGAIN,
        lambda: code.read(Reader(good), SHAPE),
    )


def section(take, raw, good):
    """Return the case of a damaged part, which is sent again."""
    return lambda: take(Reader(raw)), AGAIN, lambda: take(Reader(good))


def flat(mask):
    """Code a mask that may be a vector."""
    RunMask().write(mask, Writer())


def longer():
    """Return a sequence whose words are followed by others."""
    raw, source = RAW, Reader(RAW)
    read_split(source)
    symbols = read_alphabet(source, len(BYTES))
    read_model(source, len(symbols))
    before = len(raw) - len(source)
    size = source.varint(10**6)
    words = bytes(source.raw(4 * size))
    rest = bytes(source.raw(len(source)))
    return raw[:before] + as_varint(size + 2) + words + bytes(8) + rest


BYTES = SEQUENCES["bytes"]
RAW = written(Range(), BYTES)
OVER = alphabet(HIGHEST - 2, HIGHEST - 1, HIGHEST)
EVEN = b"\x00\x80" * 4
CASES = [
    (lambda: Writer().varint(-1), "an offset", lambda: Writer().varint(-1 + 5)),
    (lambda: Writer().varint(-1), "a zigzag", lambda: Writer().varint(zigzag(-1))),
    (lambda: Writer().f32(1e300), "values of ordinary size", lambda: Writer().f32(1e3)),
    section(lambda source: source.raw(3), b"ab", b"abc"),
    section(lambda source: source.varint(5), as_varint(6), as_varint(5)),
    section(lambda source: source.f32(), struct.pack("<f", np.nan), struct.pack("<f", 1.0)),
    section(Reader.done, b"a", b""),
    mended(Fixed(), b"\x41\x00", 1),
    mended(Fixed(), b"\x01" + as_varint(2 * HIGHEST) + b"\x80", 1),
    mended(Fixed(), b"\x03\x00\xe1", 2),
    mended(Golomb(), b"\x40\x01\x80", 1),
    mended(Golomb(), b"\x3f\x03\x20", 1),
    mended(Golomb(), b"\x00\x03\xe0", 2),
    mended(Cheapest(), b"\x09\x00\x00", 1),
    (
        lambda: Golomb().write(np.array([1, -3]), Writer()),
        "Golomb(signed=True)",
        lambda: Golomb(signed=True).write(np.array([1, -3]), Writer()),
    ),
    (
        lambda: Golomb(signed=True).write(np.array([1 << 62]), Writer()),
        "Range()",
        lambda: Range().write(np.array([1 << 62]), Writer()),
    ),
    section(lambda source: read_model(source, 2), b"\x18" + table(3, 1)[1:], table(3, 1)),
    section(lambda source: read_model(source, 2), table(1 << 23, (1 << 23) + 1), table(3, 1)),
    section(
        lambda source: read_alphabet(source, 9),
        OVER.replace(as_varint(2 * (HIGHEST - 2)), as_varint(2 * HIGHEST)),
        OVER,
    ),
    mended(Range(), b"\x00" + alphabet(1, 2) + table(1, 1) + b"\x00", 1000),
    mended(Range(), longer(), len(BYTES)),
    mended(Range(), b"\x01\x00" + alphabet(1 << 40), 4),
    mended(Range(), b"\x0a", 1),
    masked(CheapestMask(), b"\x05"),
    masked(ContextMask(), b"\x05" + EVEN + b"\x00"),
    masked(ContextMask(), b"\x00" + EVEN + b"\x10" + b"\x55" * 16),
    masked(ContextMask(), b"\x00" + EVEN + b"\x10" + b"\xff" * 16),
    masked(RunMask(), as_varint(4) + written(Golomb(), np.array([20, 20]))),
    (
        lambda: flat(np.zeros(3, np.bool_)),
        "mask.reshape(len(mask), -1)",
        lambda: flat(np.zeros(3, np.bool_).reshape(3, -1)),
    ),
]

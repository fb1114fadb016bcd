"""Lossless codes on damaged messages: refused or read as integers, in bounded memory, and never
another error.
"""

import tracemalloc
from unittest.mock import Mock

import numpy as np
import pytest

from bayesfed.compress.leaf import Reader, Writer
from bayesfed.compress.lossless import ranges
from bayesfed.compress.lossless.bits import Fixed
from bayesfed.compress.lossless.golomb import Golomb
from bayesfed.compress.lossless.ranges import Range
from bayesfed.compress.lossless.splits import histogram, read_alphabet, write_alphabet
from bayesfed.errors import WireError
from tests.compress.integer_sequences import (
    CODES,
    HIGHEST,
    LOWEST,
    SEQUENCES,
    WIDE,
    as_varint,
    every,
    written,
)


def mutants(raw, draw, count):
    for _ in range(count):
        bad = bytearray(raw)
        match draw.integers(5):
            case 0:
                bad = bad[: draw.integers(len(bad) + 1)]
            case 1:
                bad = bytearray(draw.bytes(draw.integers(40)))
            case 2:
                at = draw.integers(len(bad) + 1)
                bad[at:at] = draw.bytes(draw.integers(1, 4))
            case _:
                # The tables in front are where lies are dangerous.
                for _ in range(draw.integers(1, 4)):
                    at = min(draw.integers(len(bad)), draw.integers(len(bad)))
                    bad[at] = draw.choice(
                        [
                            0,
                            1,
                            0x7F,
                            0x80,
                            0xFF,
                            bad[at] ^ 1 << draw.integers(8),
                            draw.integers(256),
                        ]
                    )
        yield bytes(bad)


@every(CODES)
@pytest.mark.parametrize("count", [0, 1, 2, 50, 1000])
def test_garbage_is_refused_or_read_as_integers(code, count):
    draw = np.random.default_rng(count)
    samples = [draw.geometric(0.1, count) - 1, draw.geometric(1e-6, count) - 1]
    if code in (*WIDE, Golomb(signed=True)):
        samples.append(np.rint(draw.standard_cauchy(count) * 1000).astype(np.int64))
    refused = 0
    for values in samples:
        for bad in mutants(written(code, values) or b"\x00", draw, 400):
            try:
                back = code.read(Reader(bad), count)
            except WireError:
                refused += 1
                continue
            assert back.shape == (count,)
            assert back.dtype == np.int64
    assert refused > 0 or count == 0


@every(CODES)
def test_memory_does_not_follow_a_lie(code):
    # A table of the greatest size, then nothing; and a sequence longer than anything that its bytes
    # can hold.
    draw = np.random.default_rng(9)
    raw = written(code, draw.geometric(0.2, 300) - 1)
    tracemalloc.start()
    for count, bad in [
        (1 << 40, raw),
        (1 << 50, raw[:9]),
        (300, b"\xff" * 200),
        (300, b"\x00\xff\xff\x07" * 80),
        (300, draw.bytes(5000)),
    ]:
        try:
            code.read(Reader(bad), count)
        except WireError:
            continue
        assert count == 300
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4_500_000


def test_hostile_tables():
    three = Writer()
    write_alphabet(np.array([1, 2, 3]), three)
    with pytest.raises(WireError, match="a count of at most 5"):
        read_alphabet(Reader(three.bytes()), 2)
    over = Writer()
    write_alphabet(np.array([HIGHEST - 2, HIGHEST - 1, HIGHEST]), over)
    beyond = over.bytes().replace(as_varint(2 * (HIGHEST - 2)), as_varint(2 * HIGHEST))
    with pytest.raises(WireError, match="of 64 bits"):
        read_alphabet(Reader(beyond), 9)


def test_readers_say_what_is_wrong():
    cases = [
        (Fixed(), b"\x41\x00", 1, "a width of at most 64 bits, found 65"),
        (Fixed(), b"\x01" + as_varint(2 * HIGHEST) + b"\x80", 1, "values of 64 bits"),
        (Fixed(), b"\x03\x00\xe1", 2, "zeros after the last"),
        (Golomb(), b"\x40\x01\x80", 1, "a parameter of at most 63, found 64"),
        (Golomb(), b"\x3f\x03\x20", 1, "values of 64 bits"),
        (Golomb(), b"\x00\x03\xe0", 2, "2 ones, the last in place 2, found 3 ones"),
        (Range(), b"\x0a", 1, "at most 8 leading bits"),
    ]
    for code, raw, count, words in cases:
        with pytest.raises(WireError, match=words):
            code.read(Reader(raw), count)


def test_leftover_words_and_split_tokens_are_checked():
    values = SEQUENCES["bytes"]
    raw = written(Range(), values)
    source = Reader(raw)
    ranges.read_split(source)
    symbols = read_alphabet(source, len(values))
    ranges.read_model(source, len(symbols))
    before = len(raw) - len(source)
    size = source.varint(10**6)
    longer = (
        raw[:before]
        + as_varint(size + 2)
        + bytes(source.raw(4 * size))
        + bytes(8)
        + bytes(source.raw(len(source)))
    )
    with pytest.raises(WireError, match="the end of the range coder"):
        Range().read(Reader(longer), len(values))
    out = Writer()
    out.raw(b"\x01\x00")
    write_alphabet(np.array([1 << 40]), out)
    with pytest.raises(WireError, match="distances of 64 bits"):
        Range().read(Reader(out.bytes()), 4)


@pytest.mark.parametrize(
    "seen",
    [[1 << 33, 1, 5], [1] * 65536, [1 << 22, *[1] * 65535], [3, 3, 3], [7 << 40, 7 << 40]],
    ids=len,
)
def test_frequencies_fit_the_precision_however_many_were_seen(seen):
    frequencies, _ = ranges.rounded(np.array(seen))
    assert frequencies.min() >= 1
    assert frequencies.sum() < 1 << 24
    weights = ranges.weights_of(frequencies)
    assert weights.min() >= 1
    assert weights.sum() == 1 << 24


def test_a_panic_below_python_is_a_damaged_message(monkeypatch):
    class Panic(BaseException):
        pass

    raw = written(Range(), SEQUENCES["signed"])
    for problem, expected in [
        (Panic("overflow"), WireError),
        (ValueError("sum"), WireError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ]:
        broken = Mock(side_effect=problem)
        monkeypatch.setattr(ranges, "_model", broken)
        with pytest.raises(expected):
            Range().read(Reader(raw), len(SEQUENCES["signed"]))


def test_histograms_of_dense_and_sparse_sequences():
    for values in (
        SEQUENCES["bytes"],
        SEQUENCES["few and far"],
        np.array([LOWEST, HIGHEST, LOWEST]),
    ):
        symbols, counts = histogram(values)
        expected = np.unique(values, return_counts=True)
        np.testing.assert_array_equal(symbols, expected[0])
        np.testing.assert_array_equal(counts, expected[1])

"""Range coding with a static model. Its length is the empirical entropy, up to some millionths,
plus the tables.

The alphabet, of at most 65,536 symbols, is chosen in one of two ways, by predicted length.
*Direct*: the integers that occur. *Split*: an integer v at distance u = |v - c| from a centre c
becomes a token, made of the sign of v - c and of the position and the m + 1 leading bits of u; the
remaining low bits of u are written unchanged. Tokens and low bits are those of JPEG XL's hybrid
integers.

The model is the counts rounded to a few bits, which both sides turn into shares of 2**24.

The coder is `constriction` (R. Bamler, 2022). Its ``Categorical(probabilities, perfect=False)`` of
A symbols computes, in float64, ``scale = (2**24 - A) / sum(probabilities)`` and starts symbol i at
``trunc(scale * cumulated_i) + i`` of 2**24. If the probabilities are integers w_i - 1 with w_i >= 1
and sum 2**24, the sum is exactly 2**24 - A, the scale exactly 1, and every start the exact sum of
the weights below it. All sums are of integers below 2**53, so nothing is rounded and all machines
agree. (``perfect=True`` calls log1p, where they could differ.) The tests decode its words in
integer arithmetic; versions 0.4.2 and 0.5.0 write the same words.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import constriction
import numpy as np
from numpy.typing import NDArray

from bayesfed.compress.leaf import Integers, Reader, Writer
from bayesfed.compress.lossless.bits import (
    bit_length,
    damaged,
    pack,
    unpack,
    unzigzag,
    varint_bits,
    whole,
    zigzag,
)
from bayesfed.compress.lossless.golomb import Golomb
from bayesfed.compress.lossless.splits import (
    Split,
    choose_split,
    histogram,
    rank,
    read_alphabet,
    read_split,
    write_alphabet,
    write_split,
)

PRECISION = 24


def rounded(counts: Integers) -> tuple[Integers, int]:
    """Return the counts with only those bits below the highest that are worth sending, and the
    number of these bits.
    """
    # Rounding up adds at most half, so the sum stays below 2**24.
    counts = np.maximum(counts >> max(0, int(counts.sum()).bit_length() - PRECISION + 2), 1)
    exponents = _exponents(counts)
    best, least = (counts, 0), math.inf
    for kept in range(min(int(exponents.max()), 10)):
        dropped = np.maximum(exponents - 1 - kept, 0)
        frequencies = counts + (1 << dropped >> 1) >> dropped << dropped
        trial = cross_entropy(counts, frequencies) + float(np.minimum(exponents - 1, kept).sum())
        # Each further bit saves less than the one before.
        if trial >= least:
            break
        best, least = (frequencies, kept), trial
    return best


def cross_entropy(counts: Integers, frequencies: Integers) -> float:
    """Return the length in bits of symbols with these counts under the model of these
    frequencies.
    """
    return float(counts @ (PRECISION - np.log2(weights_of(frequencies))))


def weights_of(frequencies: Integers) -> Integers:
    """Return shares >= 1 that sum to 2**24, in integer arithmetic, so that the reader computes the
    same.
    """
    stops = np.cumsum(frequencies)
    shares: Integers = (stops << PRECISION) // stops[-1]
    return np.diff(shares, prepend=0)


def write_model(frequencies: Integers, kept: int, out: Writer) -> None:
    """Append the number of bits kept below the highest, one byte; the lengths, Golomb of the zigzag
    of differences; the kept bits.
    """
    exponents = _exponents(frequencies)
    widths = np.minimum(exponents - 1, kept)
    out.byte(kept)
    Golomb().write(zigzag(np.diff(exponents, prepend=0)), out)
    pack(((frequencies >> exponents - 1 - widths) ^ (1 << widths)).view(np.uint64), widths, out)


def read_model(source: Reader, size: int) -> Integers:
    """Read the frequencies of `size` symbols."""
    kept = source.byte()
    exponents = unzigzag(Golomb().read(source, size)).cumsum()
    if kept >= PRECISION or exponents.min() < 1 or exponents.max() > PRECISION:
        raise damaged(
            "Range",
            f"frequencies of 1 to {PRECISION} bits",
            f"{exponents.min()} to {exponents.max()}, {kept} kept",
        )
    widths = np.minimum(exponents - 1, kept)
    frequencies: Integers = (
        unpack(source, widths, size).view(np.int64) | 1 << widths
    ) << exponents - 1 - widths
    if int(frequencies.sum()) > 1 << PRECISION:
        raise damaged(
            "Range", f"frequencies that sum to at most {1 << PRECISION}", frequencies.sum()
        )
    return frequencies


def _exponents(numbers: Integers) -> Integers:
    return bit_length(numbers.view(np.uint64))


@dataclass(frozen=True)
class Range:
    """Any 64-bit integers.

    Layout: 0 if direct, else 1 + m and the centre, zigzag varint; the alphabet (`write_alphabet`);
    if it has more than one symbol, the model (`write_model`), the number of words, varint, and the
    words, 32 bits little endian; if split, the low bits, packed.
    """

    def write(self, values: Integers, out: Writer) -> None:
        """Append the integers; their number is not written."""
        if not len(values):
            return
        split, symbols, frequencies, _ = _tables(*histogram(values), out)
        tokens = values if split is None else split.tokens(values)
        if len(symbols) > 1:
            encoder = constriction.stream.queue.RangeEncoder()
            encoder.encode(rank(tokens, symbols), _model(weights_of(frequencies)))
            words = encoder.get_compressed()
            out.varint(len(words))
            out.raw(words.astype("<u4").tobytes())
        if split is not None:
            pack(split.low(values, tokens), split.widths(tokens), out)

    def read(self, source: Reader, count: int) -> Integers:
        """Read `count` integers."""
        if not count:
            return np.zeros(0, np.int64)
        split = read_split(source)
        symbols = read_alphabet(source, count)
        if len(symbols) > 1:
            weights = weights_of(read_model(source, len(symbols)))
            size = source.varint(len(source) // 4)
            tokens = symbols[
                _decode(
                    weights, np.frombuffer(source.raw(4 * size), "<u4").astype(np.uint32), count
                )
            ]
        else:
            tokens = np.full(count, symbols[0])
        return tokens if split is None else split.join(source, tokens)

    def predicted_bits(self, values: Integers, counts: Integers | None = None) -> float:
        """Return the length in bits of a sequence, or of one with this histogram, up to two words
        and the rounding of the coder, some millionths.
        """
        if not len(values):
            return 0.0
        out = Writer()
        symbols, counts = histogram(values) if counts is None else (values, counts)
        split, symbols, frequencies, counts = _tables(symbols, counts, out)
        total = 8.0 * len(out.bytes())
        if split is not None:
            total += whole(int(split.widths(symbols) @ counts))
        if len(symbols) > 1:
            coded = cross_entropy(counts, frequencies) + 32
            total += varint_bits(int(coded) // 32) + coded
        return total


def _tables(
    symbols: Integers, counts: Integers, out: Writer
) -> tuple[Split | None, Integers, Integers, Integers]:
    """Append what the words need to be read; return the split, the alphabet, its frequencies and
    its counts.
    """
    split = choose_split(symbols, counts)
    write_split(split, out)
    if split is not None:
        symbols, counts = histogram(split.tokens(symbols), counts)
    write_alphabet(symbols, out)
    frequencies, kept = rounded(counts)
    if len(symbols) > 1:
        write_model(frequencies, kept, out)
    return split, symbols, frequencies, counts


def _model(weights: Integers) -> Any:
    return constriction.stream.model.Categorical((weights - 1).astype(np.float64), perfect=False)


def _decode(weights: Integers, words: NDArray[np.uint32], count: int) -> NDArray[np.int32]:
    # Every symbol costs bits, so a count that these words cannot hold is refused before memory is
    # allocated.
    cheapest = PRECISION - math.log2(int(weights.max()))
    if count * cheapest > 32 * len(words) + 65:
        raise damaged(
            "Range", f"{count} symbols of {cheapest:.3g} bits or more", f"{32 * len(words)} bits"
        )
    with decoding("Range", words) as decoder:
        places: NDArray[np.int32] = decoder.decode(_model(weights), count)
    return places


@contextmanager
def decoding(
    where: str, words: NDArray[np.uint32]
) -> Iterator[constriction.stream.queue.RangeDecoder]:
    """Give a decoder of words; `WireError` if it fails or does not use all of them."""
    try:
        decoder = constriction.stream.queue.RangeDecoder(words)
        yield decoder
        exhausted = decoder.maybe_exhausted()
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as problem:  # a panic in Rust is not an Exception
        raise damaged(where, "words of the range coder", problem) from problem
    if not exhausted:
        raise damaged(where, "the end of the range coder's words", "more of them")

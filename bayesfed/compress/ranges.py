"""Range coding with a static model: the empirical entropy, some millionths, and the tables.

Two ways to an alphabet of at most 65,536, whichever is predicted to be shorter. *Direct*: the integers that occur. *Split*: an
integer v at distance u = |v - c| from a centre c becomes a token, the sign of v - c with the place and the m + 1 leading bits of u, and
the remaining low bits of u, which travel as they are. Tokens and low bits are those of JPEG XL's hybrid integers.

The coder is `constriction` (R. Bamler, 2022). Its ``Categorical(probabilities, perfect=False)`` of A symbols computes, in float64,
``scale = (2**24 - A) / sum(probabilities)`` and starts symbol i at ``trunc(scale * cumulated_i) + i`` of 2**24. Given integers w_i - 1 with
w_i >= 1 and sum 2**24 as probabilities, the sum is exactly 2**24 - A, the scale exactly 1, and every start the exact sum of weights below:
sums of integers under 2**53, no rounding, so no two machines can differ. (``perfect=True`` calls log1p and could.) The tests decode
its words with integers alone; versions 0.4.2 and 0.5.0 write the same ones.
"""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesfed.compress import bits
from bayesfed.compress.bits import Unsigned, bit_length, damaged, pack, unpack, unzigzag, zigzag
from bayesfed.compress.buffer import Reader, Writer
from bayesfed.compress.golomb import Golomb
from bayesfed.compress.huffman import alphabet_bits, histogram, is_alphabet, rank, read_alphabet, write_alphabet
from bayesfed.compress.leaf import Integers
from bayesfed.errors import MissingExtraError

PRECISION = 24
_LEADING = (0, 1, 2, 3, 4, 6, 8)
_MOST_TRIED = 1 << 14  # distinct integers that a choice is made from
_SMALL_TABLE = 128.0  # bits
_CHUNK = 1 << 20  # symbols decoded at a time


@dataclass(frozen=True)
class Range:
    """Any integers of 64 bits.

    Layout: 0 if direct, else 1 + m and the centre, zigzag varint; the alphabet (`write_alphabet`); if it has more than one symbol,
    the model (`_write_model`), how many words, varint, and the words, 32 bits little endian; if split, the low bits, packed.

    Raises
    ------
    MissingExtraError
        On writing or reading without ``constriction``; `predicted_bits` is infinite then.
    """

    def write(self, values: Integers, out: Writer) -> None:
        """Append them; the count is not written."""
        coder = _constriction()
        if not len(values):
            return
        split = _choose(*histogram(values))
        tokens = values if split is None else split.tokens(values)
        symbols, counts = histogram(tokens)
        _write_head(split, symbols, out)
        if len(symbols) > 1:
            frequencies, kept = _rounded(counts)
            _write_model(frequencies, kept, out)
            encoder = coder.stream.queue.RangeEncoder()
            encoder.encode(rank(tokens, symbols), _model(coder, _weights(frequencies)))
            words = encoder.get_compressed()
            out.varint(len(words))
            out.raw(words.astype("<u4").tobytes())
        if split is not None:
            pack(split.low(values, tokens), split.widths(tokens), out)

    def read(self, source: Reader, count: int) -> Integers:
        """Take `count` of them."""
        coder = _constriction()
        if not count:
            return np.zeros(0, np.int64)
        split = _read_split(source)
        symbols = read_alphabet(source, count)
        if len(symbols) > 1:
            weights = _weights(_read_model(source, len(symbols)))
            size = source.varint(len(source) // 4)
            tokens = symbols[_decode(coder, weights, np.frombuffer(source.raw(4 * size), "<u4").astype(np.uint32), count)]
        else:
            tokens = np.full(count, symbols[0])
        return tokens if split is None else split.join(source, tokens)

    def predicted_bits(self, values: Integers) -> float:
        """Return the length to within two words and the coder's roundings, some millionths."""
        return self.counted_bits(*histogram(values))

    def counted_bits(self, symbols: Integers, counts: Integers) -> float:
        """Return `predicted_bits` of a sequence with this histogram."""
        if not _is_installed():
            return math.inf
        if not len(symbols):
            return 0.0
        split = _choose(symbols, counts)
        low = 0 if split is None else int(split.widths(split.tokens(symbols)) @ counts)
        if split is not None:
            symbols, counts = _merged(split.tokens(symbols), counts)
        total = 8 + (0 if split is None else bits.signed_bits(split.centre)) + alphabet_bits(symbols) + bits.whole(low)
        if len(symbols) > 1:
            frequencies, kept = _rounded(counts)
            coded = _cross_entropy(counts, frequencies) + 32
            total += _model_bits(frequencies, kept) + bits.varint_bits(int(coded) // 32) + coded
        return total


@dataclass(frozen=True)
class _Split:
    """Tokens of a sign, a place and m + 1 leading bits; differences from the centre are modulo 2**64."""

    leading: int
    centre: int

    def tokens(self, values: Integers) -> Integers:
        """Return the tokens: the distance itself below 2**(m + 1), then 2**m for every further bit."""
        distance, below = self._distance(values)
        shift = np.maximum(bit_length(distance) - 1 - self.leading, 0)
        token = (distance >> shift.view(np.uint64)).view(np.int64) + (shift << self.leading)
        return np.where(below, -token, token)

    def widths(self, tokens: Integers) -> Integers:
        """Return how many low bits each token leaves out."""
        further: Integers = np.abs(tokens) >> self.leading
        return np.maximum(further - 1, 0)

    def low(self, values: Integers, tokens: Integers) -> Unsigned:
        """Return those bits."""
        return self._distance(values)[0] & (np.uint64(1) << self.widths(tokens).view(np.uint64)) - np.uint64(1)

    def join(self, source: Reader, tokens: Integers) -> Integers:
        """Take the low bits and return the values."""
        widths = self.widths(tokens)
        if int(widths.max()) > 63 - self.leading:
            raise damaged("Range", "distances of 64 bits", f"tokens {tokens.min()} to {tokens.max()}")
        high = (np.abs(tokens) - (widths << self.leading)).view(np.uint64) << widths.view(np.uint64)
        distance = high | unpack(source, widths, len(tokens))
        offset: Integers = np.where(tokens < 0, -distance, distance).view(np.int64)
        return offset + np.int64(self.centre)

    def _distance(self, values: Integers) -> tuple[Unsigned, NDArray[np.bool_]]:
        offset = values - np.int64(self.centre)
        return np.abs(offset).view(np.uint64), offset < 0


def _choose(symbols: Integers, counts: Integers) -> _Split | None:
    best, length = None, math.inf
    if is_alphabet(symbols):
        table, length = _table(symbols, counts), _entropy(counts)
        # A split saves less than the table: a small one is not worth the search.
        if table < max(_SMALL_TABLE, length / 1000):
            return None
        length += table
    centres = {int(symbols[0]), int(symbols[np.searchsorted(counts.cumsum(), counts.sum() // 2)])}
    step = -(-len(symbols) // _MOST_TRIED)
    few, often = symbols[::step], counts[::step]
    span = int(symbols[-1]) - int(symbols[0])
    # With so many leading bits that none is left over, tokens would be the integers themselves.
    for split in (_Split(leading, centre) for centre in sorted(centres) for leading in _LEADING if 2 << leading <= span):
        tokens = split.tokens(few)
        merged = _merged(tokens, often)
        trial = step * (float(split.widths(tokens) @ often) + _entropy(merged[1])) + _table(*merged)
        if trial < length:
            best, length = split, trial
    return best


def _entropy(counts: Integers) -> float:
    """Return the empirical entropy of the sequence, in bits."""
    return float(counts @ np.log2(counts.sum() / counts))


def _table(symbols: Integers, counts: Integers) -> float:
    """Return about what the alphabet and the model take."""
    gaps, differences = np.diff(symbols) - 1, zigzag(np.diff(_exponents(counts)))
    return Golomb().predicted_bits(gaps) + Golomb().predicted_bits(differences) + 3 * len(symbols)


def _merged(tokens: Integers, counts: Integers) -> tuple[Integers, Integers]:
    """Return the tokens that occur, rising, and how often."""
    least = tokens.min()
    dense = np.bincount(tokens - least, counts)
    places = np.flatnonzero(dense)
    return places + least, dense[places].astype(np.int64)


def _exponents(numbers: Integers) -> Integers:
    return bit_length(numbers.view(np.uint64))


def _rounded(counts: Integers) -> tuple[Integers, int]:
    """Return the counts with the few bits below the highest that are worth sending, and how many these are."""
    # Rounding up adds at most half: the sum stays below 2**24.
    counts = np.maximum(counts >> max(0, int(counts.sum()).bit_length() - PRECISION + 2), 1)
    exponents = _exponents(counts)
    best, least = (counts, 0), math.inf
    for kept in range(min(int(exponents.max()), 10)):
        dropped = np.maximum(exponents - 1 - kept, 0)
        frequencies = counts + (1 << dropped >> 1) >> dropped << dropped
        trial = _cross_entropy(counts, frequencies) + float(np.minimum(exponents - 1, kept).sum())
        # Every further bit is worth less than the one before.
        if trial >= least:
            break
        best, least = (frequencies, kept), trial
    return best


def _cross_entropy(counts: Integers, frequencies: Integers) -> float:
    return float(counts @ (PRECISION - np.log2(_weights(frequencies))))


def _weights(frequencies: Integers) -> Integers:
    """Return shares >= 1 of 2**24: integers alone, because the reader must find the same."""
    stops = np.cumsum(frequencies)
    shares: Integers = (stops << PRECISION) // stops[-1]
    return np.diff(shares, prepend=0)


def _model(coder: ModuleType, weights: Integers) -> Any:
    return coder.stream.model.Categorical((weights - 1).astype(np.float64), perfect=False)


def _decode(coder: ModuleType, weights: Integers, words: NDArray[np.uint32], count: int) -> NDArray[np.int32]:
    # No symbol is free: what so few words cannot hold is refused before memory is taken for it.
    cheapest = PRECISION - math.log2(int(weights.max()))
    if count * cheapest > 32 * len(words) + 65:
        raise damaged("Range", f"{count} symbols of {cheapest:.3g} bits or more", f"{32 * len(words)} bits")
    places = np.empty(count, np.int32)
    try:
        decoder, model = coder.stream.queue.RangeDecoder(words), _model(coder, weights)
        for at in range(0, count, _CHUNK):
            places[at : at + _CHUNK] = decoder.decode(model, min(_CHUNK, count - at))
        exhausted = decoder.maybe_exhausted()
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as problem:  # a panic in Rust is not an Exception
        raise damaged("Range", "words of the range coder", problem) from problem
    if not exhausted:
        raise damaged("Range", "the end of the words", "more of them")
    return places


def _write_head(split: _Split | None, symbols: Integers, out: Writer) -> None:
    out.byte(0 if split is None else 1 + split.leading)
    if split is not None:
        bits.write_signed(split.centre, out)
    write_alphabet(symbols, out)


def _read_split(source: Reader) -> _Split | None:
    head = source.byte()
    if head > 1 + max(_LEADING):
        raise damaged("Range", f"at most {max(_LEADING)} leading bits", head - 1)
    return _Split(head - 1, bits.read_signed(source)) if head else None


def _write_model(frequencies: Integers, kept: int, out: Writer) -> None:
    """Append how many bits below the highest are kept, one byte; the lengths, Golomb of the zigzag of differences; those bits."""
    exponents = _exponents(frequencies)
    widths = np.minimum(exponents - 1, kept)
    out.byte(kept)
    Golomb().write(zigzag(np.diff(exponents, prepend=0)), out)
    pack(((frequencies >> exponents - 1 - widths) ^ (1 << widths)).view(np.uint64), widths, out)


def _model_bits(frequencies: Integers, kept: int) -> float:
    """Return the length of `_write_model`."""
    exponents = _exponents(frequencies)
    return 8 + Golomb().predicted_bits(zigzag(np.diff(exponents, prepend=0))) + bits.whole(int(np.minimum(exponents - 1, kept).sum()))


def _read_model(source: Reader, size: int) -> Integers:
    kept = source.byte()
    exponents = unzigzag(Golomb().read(source, size)).cumsum()
    if kept >= PRECISION or exponents.min() < 1 or exponents.max() > PRECISION:
        raise damaged("Range", f"frequencies of 1 to {PRECISION} bits", f"{exponents.min()} to {exponents.max()}, {kept} kept")
    widths = np.minimum(exponents - 1, kept)
    frequencies: Integers = (unpack(source, widths, size).view(np.int64) | 1 << widths) << exponents - 1 - widths
    if int(frequencies.sum()) > 1 << PRECISION:
        raise damaged("Range", f"frequencies that sum to at most {1 << PRECISION}", frequencies.sum())
    return frequencies


def _is_installed() -> bool:
    try:
        return bool(_constriction())
    except MissingExtraError:
        return False


def _constriction() -> ModuleType:
    try:
        return importlib.import_module("constriction")
    except ImportError as problem:
        raise MissingExtraError("constriction", "codes") from problem

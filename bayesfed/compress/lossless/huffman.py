"""Canonical Huffman codes over the integers that occur.

Lengths are optimal among those of at most 20 bits, by package-merge (L. L. Larmore, D. S.
Hirschberg, "A fast algorithm for optimal length-limited Huffman codes", 1990); a symbol seen once
in a million costs about 20 bits anyway. The code itself follows from the lengths.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bayesfed.compress.buffer import Reader, Writer
from bayesfed.compress.leaf import Integers
from bayesfed.compress.lossless.alphabet import (
    alphabet_bits,
    histogram,
    is_alphabet,
    rank,
    read_alphabet,
    require_alphabet,
    write_alphabet,
)
from bayesfed.compress.lossless.bits import (
    Unsigned,
    damaged,
    pack,
    take_bits,
    unzigzag,
    varint_bits,
    whole,
    zigzag,
)
from bayesfed.compress.lossless.golomb import Golomb

LONGEST = 20


@dataclass(frozen=True)
class Huffman:
    """At most 65,536 distinct integers within a span below 2**63; a whole number of bits each, and
    none if there is only one symbol.

    Layout: the alphabet (`write_alphabet`); the lengths of the codewords, Golomb of the zigzag of
    their differences; the number of bits that follow, varint; the codewords. The tables of a reader
    take up to 3 MB.
    """

    def write(self, values: Integers, out: Writer) -> None:
        """Append the integers; their number is not written."""
        if not len(values):
            return
        symbols, counts = histogram(values)
        require_alphabet("Huffman", symbols)
        lengths = code_lengths(counts)
        _write_table(symbols, lengths, out)
        if len(symbols) > 1:
            ranks, order, left = rank(values, symbols), *_canonical(lengths)
            codes = np.empty(len(symbols), np.uint64)
            codes[order] = left >> (lengths.max() - lengths[order]).view(np.uint64)
            out.varint(int(lengths @ counts))
            pack(codes[ranks], lengths[ranks], out)

    def read(self, source: Reader, count: int) -> Integers:
        """Read `count` integers."""
        if not count:
            return np.zeros(0, np.int64)
        symbols = read_alphabet(source, count)
        if len(symbols) == 1:
            return np.full(count, symbols[0])
        lengths = unzigzag(Golomb().read(source, len(symbols))).cumsum()
        if (
            lengths.min() < 1
            or lengths.max() > LONGEST
            or int((1 << LONGEST - lengths).sum()) != 1 << LONGEST
        ):
            raise damaged(
                "Huffman",
                f"a complete code of lengths 1 to {LONGEST}",
                f"lengths {lengths.min()} to {lengths.max()}",
            )
        total, longest = source.varint(LONGEST * count), int(lengths.max())
        if total < count:
            raise damaged("Huffman", f"at least {count} bits", total)
        views = _views(take_bits(source, total))
        order, _ = _canonical(lengths)
        table = np.repeat(order.astype(np.uint16), 1 << longest - lengths[order])
        at = np.fromiter(
            _chase(_steps(views, lengths.astype(np.uint8)[table], longest), count),
            np.int64,
            count + 1,
        )
        if at[-1] != total:
            raise damaged("Huffman", f"{count} codewords in {total} bits", f"{at[-1]} bits")
        window = views[at[:-1] >> 3] >> (32 - longest - (at[:-1] & 7)).astype(
            np.uint32
        ) & np.uint32((1 << longest) - 1)
        values: Integers = symbols[table[window]]
        return values

    def predicted_bits(self, values: Integers) -> float:
        """Return the exact length in bits; infinite if there are too many symbols."""
        return self.counted_bits(*histogram(values))

    def counted_bits(self, symbols: Integers, counts: Integers) -> float:
        """Return `predicted_bits` of a sequence with this histogram."""
        if not len(symbols):
            return 0.0
        if not is_alphabet(symbols):
            return math.inf
        lengths = code_lengths(counts)
        total, table = int(lengths @ counts), alphabet_bits(symbols)
        if total:
            table += Golomb().predicted_bits(zigzag(np.diff(lengths, prepend=0))) + varint_bits(
                total
            )
        return table + whole(total)


def code_lengths(counts: Integers) -> Integers:
    """Return the lengths, at most 20, of the best prefix code for symbols with these counts, by
    package-merge.
    """
    order = np.argsort(counts, kind="stable")
    leaves = counts[order]
    merged, origins = leaves[:0], []
    # The best code for n symbols has no codeword of more than n - 1 bits.
    for _ in range(min(LONGEST, len(counts) - 1)):
        # Items in order of weight: each is a symbol, or a package of two neighbours of the level
        # before.
        packages = merged[: len(merged) // 2 * 2].reshape(-1, 2).sum(1)
        both = np.concatenate([leaves, packages])
        by_weight = np.argsort(both, kind="stable")
        origins.append(by_weight < len(leaves))
        merged = both[by_weight]
    chosen, lengths = 2 * len(counts) - 2, np.zeros(len(counts), np.int64)
    for is_leaf in reversed(origins):
        taken = int(np.count_nonzero(is_leaf[:chosen]))
        lengths[order[:taken]] += 1
        chosen = 2 * (chosen - taken)
    return lengths


def _write_table(symbols: Integers, lengths: Integers, out: Writer) -> None:
    write_alphabet(symbols, out)
    if len(symbols) > 1:
        Golomb().write(zigzag(np.diff(lengths, prepend=0)), out)


def _canonical(lengths: Integers) -> tuple[Integers, Unsigned]:
    """Return the symbols in the order of their codewords, and the codewords as numbers with the
    length of the longest.
    """
    order = np.argsort(lengths, kind="stable")
    shares = 1 << lengths.max() - lengths[order]
    return order, (np.cumsum(shares) - shares).view(np.uint64)


def _views(raw: bytes) -> NDArray[np.uint32]:
    """Return the 32 bits that start at each byte, and at the end."""
    padded = np.frombuffer(raw + bytes(4), np.uint8).astype(np.uint32)
    eight, sixteen, twentyfour = np.uint32(8), np.uint32(16), np.uint32(24)
    views: NDArray[np.uint32] = (
        padded[:-3] << twentyfour | padded[1:-2] << sixteen | padded[2:-1] << eight | padded[3:]
    )
    return views


def _steps(views: NDArray[np.uint32], lengths: NDArray[np.uint8], longest: int) -> bytes:
    """Return for every bit the length of the codeword that would start there."""
    steps, mask = np.empty((len(views), 8), np.uint8), np.uint32((1 << longest) - 1)
    for phase in range(8):
        steps[:, phase] = lengths[views >> np.uint32(32 - longest - phase) & mask]
    # Steps of zero after the end, so that the chase ends for damaged data too.
    return steps.tobytes() + bytes(LONGEST)


def _chase(steps: bytes, count: int) -> Iterator[int]:
    at = 0
    yield at
    for _ in range(count):
        at += steps[at]
        yield at

"""Arithmetic coding of masks with the probability of each entry given the neighbours that are known
when it is read.

The best code of a support drawn from a Markov grid (Xia, Tsang and Lau, D-Turbo-VBI, section II-B)
has the length of its entropy; arithmetic coding with the probability of each entry given some of
its neighbours comes close to it. The message contains a table of these probabilities by left and
upper neighbour. Larger neighbourhoods, of up to ten entries as in JBIG (ITU-T T.82), are learned
while coding: if a pattern occurred n times, n1 of them before a 1, the probability of a 1 is
``(STRENGTH * parent + n1) / (STRENGTH + n)``. The parent is the same estimate for the next smaller
neighbourhood or, for the smallest, the table.

Both sides compute the probability k / 2**16 in integers. The coder (`constriction`, R.
Bamler, 2022) multiplies it by 2**24 - 2 in float64, which is exact in 40 bits, so all machines
agree.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from constriction import stream
from numpy.typing import NDArray

from bayesfed.compress.leaf import Integers, Mask, Reader, Writer
from bayesfed.compress.lossless.bits import damaged
from bayesfed.compress.lossless.ranges import decoding
from bayesfed.compress.masks.neighbours import (
    CELLS,
    LEVELS,
    ONE,
    TABLE,
    Waves,
    chances,
    patterns,
    room,
    shares,
    surprise,
)
from bayesfed.compress.masks.runs import require_matrix

_MODEL = stream.model.Bernoulli(perfect=False)


@dataclass(frozen=True)
class ContextMask:
    """Code a mask with the probability of each entry given its neighbours.

    Layout: the neighbourhood, one byte (0: the table only; 1 to 4: learned, of 2, 4, 6 or 10
    entries); the table, the probability of a 1 by ``left + 2 * upper``, four u16 in units of
    2**-16; the words of the range coder, a block, big endian without trailing zeros. A mask without
    entries takes no bytes.
    """

    def write(self, mask: Mask, out: Writer) -> None:
        """Append the mask."""
        require_matrix(mask)
        if not mask.size:
            return
        coding = Coding.of(mask)
        encoder = stream.queue.RangeEncoder()
        encoder.encode(coding.symbols.astype(np.int32), _MODEL, coding.chances)
        words = encoder.get_compressed().astype(">u4").tobytes()
        out.byte(coding.tag)
        out.raw(coding.table.astype("<u2").tobytes())
        out.block(words[:-3] + words[-3:].rstrip(b"\0"))

    def read(self, source: Reader, shape: tuple[int, int]) -> Mask:
        """Read a mask of this shape."""
        if not math.prod(shape):
            return np.zeros(shape, np.bool_)
        tag, table = source.byte(), np.frombuffer(source.raw(2 * TABLE), "<u2").astype(np.int64)
        if tag > len(LEVELS) or not table.all():
            raise damaged(
                "mask",
                f"neighbourhood 0 to {len(LEVELS)} and probabilities above 0",
                (tag, table.tolist()),
            )
        block = source.block()
        raw = bytes(block.raw(len(block)))
        words = np.frombuffer(raw + bytes(-len(raw) % 4), ">u4").astype(np.uint32)
        turned = shape[1] > shape[0]
        with decoding("mask", words) as decoder:
            mask = _decode(decoder, shape[::-1] if turned else shape, tag, table)
        return mask.T if turned else mask


@dataclass(frozen=True)
class Coding:
    """How a mask is coded.

    Parameters
    ----------
    tag, table
        The neighbourhood with the shortest code, and the table.
    bits
        The code length under these probabilities, without the head and rounding.
    symbols, chances
        The entries in the order of reading, and the probability of a 1 for each.
    """

    tag: int
    table: Integers
    bits: float
    symbols: Mask
    chances: NDArray[np.float64]

    @staticmethod
    def of(mask: Mask) -> Coding:
        """Return the coding of a mask with entries."""
        if mask.shape[1] > mask.shape[0]:
            mask = mask.T
        waves = Waves.of(*mask.shape)
        symbols = mask.reshape(-1)[waves.cells]
        pattern = patterns(mask, waves.height).reshape(-1)[waves.cells].astype(np.int64)
        table = shares(pattern % TABLE, symbols)
        # The zeros and ones after each pattern, counted between one update and the next; estimates
        # use the sums before each update.
        stretch = np.repeat(
            np.arange(len(waves.updates) + 1), np.diff([0, *waves.updates, len(symbols)])
        )
        shape = (len(waves.updates) + 1, 1 << LEVELS[-1], 2)
        met = np.bincount(
            (stretch * shape[1] + pattern) * 2 + symbols, minlength=math.prod(shape)
        ).reshape(shape)
        estimates = chances(table, met.cumsum(0) - met, LEVELS)
        bits = [
            surprise(met.reshape(len(met), -1, estimate.shape[1], 2).sum(1), estimate)
            for estimate in estimates
        ]
        tag = int(np.argmin(bits))
        best = estimates[tag][stretch, pattern % estimates[tag].shape[1]] / ONE
        return Coding(tag, table, bits[tag], symbols, best)


def _decode(
    decoder: stream.queue.RangeDecoder, shape: tuple[int, int], tag: int, table: Integers
) -> Mask:
    waves, levels, depth = Waves.of(*shape), LEVELS[:tag], LEVELS[max(tag, 1) - 1]
    padded = room(shape, waves.height)
    known, width = padded.reshape(-1), padded.shape[2]
    row, column = np.divmod(waves.cells, shape[1])
    # Every strip has two more rows above it.
    places = (row + 2 * (row // waves.height) + 2) * width + column + 3
    around = np.array([up * width + left for up, left in CELLS[:depth]])
    bits = np.uint16(1) << np.arange(depth, dtype=np.uint16)
    seen = np.zeros(len(places), np.uint16)
    counts = np.zeros((1, 1 << depth, 2), np.int64)
    chances = _current(table, counts, levels)
    updates = set(waves.updates) if tag else set()
    start = 0
    counted = 0
    for stop in waves.stops:
        if stop == start:  # with one or two columns, some waves are empty
            continue
        at = places[start:stop]
        pattern = known[at[:, None] - around] @ bits
        known[at] = decoder.decode(_MODEL, chances[pattern])
        seen[start:stop], start = pattern, stop
        if stop in updates:
            met = seen[counted:stop].astype(np.int64) * 2 + known[places[counted:stop]]
            counts += np.bincount(met, minlength=counts.size).reshape(counts.shape)
            chances, counted = _current(table, counts, levels), stop
    return padded[:, 2:, 3:-2].reshape(-1, shape[1])[: shape[0]] > 0


def _current(table: Integers, counts: Integers, levels: tuple[int, ...]) -> NDArray[np.float64]:
    result: NDArray[np.float64] = chances(table, counts, levels)[-1][0] / ONE
    return result

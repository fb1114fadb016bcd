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
from typing import Any

import numpy as np
from constriction import stream
from numpy.typing import NDArray

from bayesfed.compress.buffer import Reader, Writer
from bayesfed.compress.leaf import Integers, Mask
from bayesfed.compress.lossless.bits import damaged
from bayesfed.compress.masks.neighbours import (
    ALONE,
    CHANGED,
    ONE,
    Template,
    Waves,
    chances,
    order,
    patterns,
    shares,
    surprise,
)
from bayesfed.compress.masks.runs import require_matrix
from bayesfed.errors import ArgumentError, WireError


@dataclass(frozen=True)
class ContextMask:
    """Code a mask with the probability of each entry given its neighbours.

    Layout: the neighbourhood, one byte (0: the table only; 1 to 4: learned, of 2, 4, 6 or 10
    entries); the table, four u16 in units of 2**-16; the words of the range coder, a block, big
    endian without trailing zeros. A mask without entries takes no bytes.

    Parameters
    ----------
    table
        Probability of a 1 by ``left + 2 * upper`` in units of 2**-16: four integers from 1
        to 65535. For a support model, take the `neighbour_table` of a draw. Default: the table of
        the mask itself.
    learn
        Whether departures from the table and larger neighbourhoods may be learned if that gives a
        shorter code.

    Raises
    ------
    ArgumentError
        If the table is not four such integers.
    """

    table: tuple[int, ...] | None = None
    learn: bool = True

    def __post_init__(self) -> None:
        if self.table is not None and (
            len(self.table) != 4 or not all(isinstance(p, int) and 0 < p < ONE for p in self.table)
        ):
            raise ArgumentError(
                "ContextMask.table",
                "4 integers from 1 to 65535",
                self.table,
                "neighbour_table(mask)",
            )

    def write(self, mask: Mask, out: Writer) -> None:
        """Append the mask."""
        require_matrix(mask)
        _write(mask, None, self.table, self.learn, out)

    def read(self, source: Reader, shape: tuple[int, int]) -> Mask:
        """Read a mask of this shape."""
        return _read(source, shape, None)

    def cross_entropy(self, mask: Mask) -> float:
        """Return the code length in bits under the probabilities that `write` chooses, without the
        head and rounding.
        """
        return _coding(mask, None, self.table, self.learn).bits if mask.size else 0.0


@dataclass(frozen=True, eq=False)
class ChangedMask:
    """Code a mask whose receiver has a similar one, such as that of the round before; entries of
    this reference count as neighbours.

    Layout: as in `ContextMask`, with neighbourhoods of 1, 3, 5 or 9 entries and a table of two, by
    the reference entry in the same place.

    Parameters
    ----------
    reference
        The mask that both sides have. It must not be changed.

    Raises
    ------
    WireError
        On writing or reading a mask of another shape.
    """

    reference: Mask

    def __post_init__(self) -> None:
        require_matrix(self.reference)

    def write(self, mask: Mask, out: Writer) -> None:
        """Append the mask."""
        require_matrix(mask)
        self._check(mask.shape)
        _write(mask, self.reference, None, True, out)

    def read(self, source: Reader, shape: tuple[int, int]) -> Mask:
        """Read a mask of this shape."""
        self._check(shape)
        return _read(source, shape, self.reference)

    def cross_entropy(self, mask: Mask) -> float:
        """Return the code length in bits under the probabilities that `write` chooses, without the
        head and rounding.
        """
        self._check(mask.shape)
        return _coding(mask, self.reference, None, True).bits if mask.size else 0.0

    def _check(self, shape: tuple[int, ...]) -> None:
        if tuple(shape) != self.reference.shape:
            raise WireError(
                "ChangedMask", f"shape {self.reference.shape}", shape, "the reference of this mask"
            )


def neighbour_table(mask: Mask) -> tuple[int, ...]:
    """Return the share of ones by ``left + 2 * upper`` neighbour, in units of 2**-16, with zeros
    outside the mask.
    """
    padded = np.pad(mask, 1).astype(np.uint8)
    return tuple(shares(padded[1:-1, :-2] + 2 * padded[:-2, 1:-1], mask, 4).tolist())


@dataclass(frozen=True)
class _Coding:
    """The neighbourhood, table and probabilities that a mask is coded with, and its length
    in bits.
    """

    tag: int
    table: Integers
    bits: float
    symbols: Mask
    chances: NDArray[np.float64]


def _coding(
    mask: Mask, reference: Mask | None, given: tuple[int, ...] | None, learn: bool
) -> _Coding:
    """Return the neighbourhood with the shortest code, and the probability of a 1 for each entry in
    the order of reading.
    """
    template, entries = (ALONE, 4) if reference is None else (CHANGED, 2)
    if mask.shape[1] > mask.shape[0]:
        # Transposing exchanges left and upper neighbours.
        mask, reference, given = (
            mask.T,
            None if reference is None else reference.T,
            given and tuple(given[k] for k in (0, 2, 1, 3)),
        )
    levels, waves = template.levels if learn else template.levels[:1], Waves.of(*mask.shape)
    symbols = mask.reshape(-1)[waves.cells]
    pattern = (
        patterns(mask, reference, waves.height, template.cells[: levels[-1]])
        .reshape(-1)[waves.cells]
        .astype(np.int64)
    )
    table = np.array(given) if given else shares(pattern % entries, symbols, entries)
    # The zeros and ones after each pattern, counted between one update and the next; estimates use
    # the sums before each update.
    stretch = np.repeat(
        np.arange(len(waves.updates) + 1), np.diff([0, *waves.updates, len(symbols)])
    )
    shape = (len(waves.updates) + 1, 1 << levels[-1], 2)
    met = np.bincount(
        (stretch * shape[1] + pattern) * 2 + symbols, minlength=math.prod(shape)
    ).reshape(shape)
    estimates = [
        np.broadcast_to(table, (len(met), entries)),
        *(chances(table, met.cumsum(0) - met, levels) if learn else []),
    ]
    bits = [
        surprise(met.reshape(len(met), -1, estimate.shape[1], 2).sum(1), estimate)
        for estimate in estimates
    ]
    tag = int(np.argmin(bits))
    return _Coding(
        tag,
        table,
        bits[tag],
        symbols,
        estimates[tag][stretch, pattern % estimates[tag].shape[1]] / ONE,
    )


def _write(
    mask: Mask, reference: Mask | None, given: tuple[int, ...] | None, learn: bool, out: Writer
) -> None:
    if not mask.size:
        return
    coding = _coding(mask, reference, given, learn)
    encoder = stream.queue.RangeEncoder()
    encoder.encode(
        coding.symbols.astype(np.int32), stream.model.Bernoulli(perfect=False), coding.chances
    )
    words = encoder.get_compressed().astype(">u4").tobytes()
    out.byte(coding.tag)
    out.raw(coding.table.astype("<u2").tobytes())
    out.block(words[:-3] + words[-3:].rstrip(b"\0"))


def _read(source: Reader, shape: tuple[int, int], reference: Mask | None) -> Mask:
    if not math.prod(shape):
        return np.zeros(shape, np.bool_)
    template, entries = (ALONE, 4) if reference is None else (CHANGED, 2)
    tag, table = source.byte(), np.frombuffer(source.raw(2 * entries), "<u2").astype(np.int64)
    if tag > len(template.levels) or not table.all():
        raise damaged(
            "mask",
            f"neighbourhood 0 to {len(template.levels)} and probabilities above 0",
            (tag, table.tolist()),
        )
    block = source.block()
    raw = bytes(block.raw(len(block)))
    words = np.frombuffer(raw + bytes(-len(raw) % 4), ">u4").astype(np.uint32)
    turned = shape[1] > shape[0]
    if turned:
        shape, reference = shape[::-1], None if reference is None else reference.T
    try:
        decoder = stream.queue.RangeDecoder(words)
        mask = _decode(
            decoder, stream.model.Bernoulli(perfect=False), shape, reference, template, tag, table
        )
        exhausted = decoder.maybe_exhausted()
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as problem:  # a panic in Rust is not an Exception
        raise damaged("mask", "words of the range coder", problem) from problem
    if not exhausted:
        raise damaged("mask", "the end of the range coder's words", "more of them")
    return mask.T if turned else mask


def _decode(
    decoder: Any,
    model: Any,
    shape: tuple[int, int],
    reference: Mask | None,
    template: Template,
    tag: int,
    table: Integers,
) -> Mask:
    waves, levels, depth = Waves.of(*shape), template.levels[:tag], template.levels[max(tag, 1) - 1]
    straight, others = order(template, depth)
    # Two lanes above every strip stay zero. Each lane holds its latest entries as bits, the last
    # entry as the lowest bit.
    lanes = np.arange(shape[0]) // waves.height * 2 + np.arange(shape[0]) + 2
    lane = lanes[waves.cells // shape[1]]
    latest = np.zeros(int(lanes[-1]) + 1, np.int64)
    word, part = np.zeros_like(latest), np.zeros_like(latest[2:])
    here, above, higher = word[2:], latest[1:-1], latest[:-2]
    known = (
        None
        if reference is None
        else patterns(reference, reference, waves.height, others).reshape(-1)[waves.cells]
    )
    seen, symbols = np.zeros(len(lane), np.uint16), np.zeros(len(lane), np.bool_)
    counts = np.zeros((1, 1 << depth, 2), np.int64)
    chances, updates, start, counted = (
        _current(table, counts, levels),
        set(waves.updates) if tag else set(),
        0,
        0,
    )
    for stop in waves.stops:
        if stop == start:  # with one or two columns, some waves are empty
            latest <<= 1
            continue
        # Five entries of the row above, three to the left, two of the row above that.
        np.bitwise_and(above, 31, out=here)
        np.left_shift(here, 3, out=here)
        np.bitwise_and(latest[2:], 7, out=part)
        np.bitwise_or(here, part, out=here)
        np.bitwise_and(higher, 48, out=part)
        np.left_shift(part, 4, out=part)
        np.bitwise_or(here, part, out=here)
        at = lane[start:stop]
        pattern = word[at]
        if known is not None:
            pattern |= known[start:stop].astype(np.int64) << 10
        pattern = straight[pattern]
        new = decoder.decode(model, chances[pattern])
        latest <<= 1
        latest[at] |= new
        seen[start:stop], symbols[start:stop], start = pattern, new, stop
        if stop in updates:
            met = seen[counted:stop].astype(np.int64) * 2 + symbols[counted:stop]
            counts += np.bincount(met, minlength=counts.size).reshape(counts.shape)
            chances, counted = _current(table, counts, levels), stop
    mask = np.zeros(len(lane), np.bool_)
    mask[waves.cells] = symbols
    return mask.reshape(shape)


def _current(table: Integers, counts: Integers, levels: tuple[int, ...]) -> NDArray[np.float64]:
    return (chances(table, counts, levels)[-1][0] if levels else table) / ONE

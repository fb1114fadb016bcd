"""`CheapestMask`: several mask codes are tried, and the shortest result is sent."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bayesfed.compress.leaf import Mask, MaskCode, Reader, Writer
from bayesfed.compress.lossless.bits import damaged
from bayesfed.compress.masks.clusters import ClusterMask
from bayesfed.compress.masks.contexts import ContextMask
from bayesfed.compress.masks.runs import PlainMask, RunMask, require_matrix
from bayesfed.errors.checks import Role, checked_class

_EVEN = 2  # constant masks: all zeros, all ones


@checked_class(
    codes=Role(lambda codes: 1 <= len(codes) <= 256 - _EVEN, "1 to 254 codes", "CheapestMask()")
)
@dataclass(frozen=True)
class CheapestMask:
    """Try codes and keep the shortest result. `ContextMask`, by far the slowest, is tried only if
    it should save at least a fiftieth.

    Layout: one byte, 0 for all zeros, 1 for all ones, else 2 plus the position of the code in
    `codes`; then the output of that code. A mask without entries takes no bytes.

    Parameters
    ----------
    codes
        The codes, 1 to 254; the same for sender and receiver.

    Raises
    ------
    ArgumentError
        If there are too few or too many codes.
    """

    codes: tuple[MaskCode, ...] = (PlainMask(), RunMask(), ContextMask(), ClusterMask())

    def write(self, mask: Mask, out: Writer) -> None:
        """Append the mask."""
        require_matrix(mask)
        if not mask.size:
            return
        if mask.all() or not mask.any():
            out.byte(int(mask[0, 0]))
            return
        best, kept = b"", math.inf
        for number, code in enumerate(self.codes):
            if 8 * kept <= _about(code, mask):
                continue
            trial = Writer()
            code.write(mask, trial)
            if len(part := trial.bytes()) < kept:
                best, kept = bytes([_EVEN + number]) + part, len(part)
        out.raw(best)

    def read(self, source: Reader, shape: tuple[int, int]) -> Mask:
        """Read a mask of this shape."""
        if not math.prod(shape):
            return np.zeros(shape, np.bool_)
        tag = source.byte()
        if tag < _EVEN:
            return np.full(shape, bool(tag))
        if tag >= _EVEN + len(self.codes):
            raise damaged(
                "CheapestMask", f"one of {len(self.codes)} codes", f"number {tag - _EVEN}"
            )
        return self.codes[tag - _EVEN].read(source, shape)


def _about(code: MaskCode, mask: Mask) -> float:
    """Return about the least number of bits that the code needs, if it is quickly computed, so that
    slow codes that cannot win are not run.
    """
    match code:
        case PlainMask():
            return float(mask.size)
        case RunMask():
            return code.predicted_bits(mask)
        case ClusterMask():
            return code.least_bits(mask)
        case ContextMask():
            return 1.02 * (72 + _given_neighbours(mask))
        case _:
            return 0.0


def _given_neighbours(mask: Mask) -> float:
    """Return the empirical entropy in bits of the mask given four neighbours of each entry, with
    zeros outside.
    """
    padded = np.pad(np.ascontiguousarray(mask).view(np.uint8), ((1, 0), (1, 1)))
    pattern = (
        padded[1:, 1:-1]
        | padded[1:, :-2] << 1
        | padded[:-1, :-2] << 2
        | padded[:-1, 1:-1] << 3
        | padded[:-1, 2:] << 4
    )
    met = np.bincount(pattern.reshape(-1), minlength=32).reshape(16, 2)
    shares = np.maximum(met, 1) / np.maximum(met.sum(1, keepdims=True), 1)
    return -float((met * np.log2(shares)).sum())

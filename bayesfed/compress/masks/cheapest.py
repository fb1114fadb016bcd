"""The mask code that is never the wrong one: several are tried, the shortest is sent."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bayesfed.compress.buffer import Reader, Writer
from bayesfed.compress.leaf import Mask, MaskCode
from bayesfed.compress.lossless.bits import damaged
from bayesfed.compress.masks.clusters import ClusterMask
from bayesfed.compress.masks.contexts import ContextMask
from bayesfed.compress.masks.runs import PlainMask, RunMask, require_matrix
from bayesfed.errors import ArgumentError, complain

_EVEN = 2  # masks that are the same everywhere: all zeros, all ones


@dataclass(frozen=True)
class CheapestMask:
    """Try codes and keep the shortest result; `ContextMask`, by far the slowest, only where it promises to save a fiftieth.

    Layout: one byte, 0 for all zeros, 1 for all ones, else 2 and the place of the code in `codes`; then what the code wrote. A mask
    without entries is nothing.

    Parameters
    ----------
    codes
        The codes, at least one and at most 254; sender and receiver have the same.

    Raises
    ------
    ArgumentError
        If there are too few or too many codes.
    MissingExtraError
        On writing or reading without the package that a code needs: what is sent does not depend on what is installed.
    """

    codes: tuple[MaskCode, ...] = (PlainMask(), RunMask(), ContextMask(), ClusterMask())

    def __post_init__(self) -> None:
        if not 1 <= len(self.codes) <= 256 - _EVEN:
            raise ArgumentError(complain("CheapestMask.codes", expected="1 to 254 codes", actual=len(self.codes), hint="CheapestMask()"))

    def write(self, mask: Mask, out: Writer) -> None:
        """Append it."""
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
        """Take a mask of this shape."""
        if not math.prod(shape):
            return np.zeros(shape, np.bool_)
        tag = source.byte()
        if tag < _EVEN:
            return np.full(shape, bool(tag))
        if tag >= _EVEN + len(self.codes):
            raise damaged("CheapestMask", f"one of {len(self.codes)} codes", f"number {tag - _EVEN}")
        return self.codes[tag - _EVEN].read(source, shape)


def _about(code: MaskCode, mask: Mask) -> float:
    """Return about what the code needs at least, where that is quickly known: slow codes that cannot win are not run."""
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
    """Return the empirical entropy of the mask given four neighbours of each entry, in bits; outside are zeros."""
    padded = np.pad(np.ascontiguousarray(mask).view(np.uint8), ((1, 0), (1, 1)))
    pattern = padded[1:, 1:-1] | padded[1:, :-2] << 1 | padded[:-1, :-2] << 2 | padded[:-1, 1:-1] << 3 | padded[:-1, 2:] << 4
    met = np.bincount(pattern.reshape(-1), minlength=32).reshape(16, 2)
    shares = np.maximum(met, 1) / np.maximum(met.sum(1, keepdims=True), 1)
    return -float((met * np.log2(shares)).sum())

"""`CheapestMask`: several mask codes are tried, and the shortest result is sent."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bayesfed.compress.leaf import Mask, MaskCode, Reader, Writer
from bayesfed.compress.lossless.bits import damaged
from bayesfed.compress.masks.contexts import ContextMask
from bayesfed.compress.masks.runs import PlainMask, RunMask, require_matrix

# Part of the format: the tag of each code. Tags 0 and 1 are those of constant masks; tag 5 was that
# of a code that is gone.
STANDARD: dict[int, MaskCode] = {2: PlainMask(), 3: RunMask(), 4: ContextMask()}


@dataclass(frozen=True)
class CheapestMask:
    """Try codes and keep the shortest result. `ContextMask`, by far the slowest, is tried only if
    it should save at least a fiftieth.

    Layout: the tag, one byte, 0 for all zeros, 1 for all ones, else that of the code; then the
    output of that code. A mask without entries takes no bytes.
    """

    def write(self, mask: Mask, out: Writer) -> None:
        """Append the mask."""
        require_matrix(mask)
        if not mask.size:
            return
        if mask.all() or not mask.any():
            out.byte(int(mask[0, 0]))
            return
        # About the least number of bits that each code needs, so that those that cannot win are not
        # run.
        least = mask.size, RunMask().predicted_bits(mask), 1.02 * (72 + _given_neighbours(mask))
        best, kept = b"", math.inf
        for (tag, code), bits in zip(STANDARD.items(), least, strict=True):
            if bits < 8 * kept:
                trial = Writer()
                code.write(mask, trial)
                if len(part := trial.bytes()) < kept:
                    best, kept = bytes([tag]) + part, len(part)
        out.raw(best)

    def read(self, source: Reader, shape: tuple[int, int]) -> Mask:
        """Read a mask of this shape."""
        if not math.prod(shape):
            return np.zeros(shape, np.bool_)
        tag = source.byte()
        if tag in (0, 1):
            return np.full(shape, bool(tag))
        if tag not in STANDARD:
            raise damaged("CheapestMask", f"a tag among {[0, 1, *STANDARD]}", tag)
        return STANDARD[tag].read(source, shape)


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

"""Sparse ternary compression: the largest entries, all with one magnitude. Sattler et al. 2019
(STC), algorithm 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from bayesfed.compress.leaf import Mask, MaskCode, Reader, Writer
from bayesfed.compress.masks.runs import RunMask
from bayesfed.compress.quantisers.entries import (
    LARGEST,
    SMALLEST,
    Singles,
    as_matrix,
    entries,
    largest,
    read_positions,
    share_of,
    tensor,
    write_positions,
)
from bayesfed.errors.checks import SHARE, checked, checked_class
from bayesfed.keys import Key


@checked_class(share=SHARE)
@dataclass(frozen=True)
class Ternary:
    """Keep the largest entries by magnitude and send their signs and one magnitude mu, the mean of
    their magnitudes.

    With k entries kept, ``||x - Q(x)||**2 = ||x||**2 - k mu**2``: biased, and a contraction by
    ``1 - d`` with ``d = k mu**2 / ||x||**2 >= (k / n**2) (||x||_1 / ||x||_2)**2 >= k / n**2``, as
    error feedback requires. A tensor that is already ternary, with at most k non-zero entries, is
    exact.

    Parameters
    ----------
    share
        p of the paper: ``k = ceil(share * n)``, at most the number of non-zero entries. Of equal
        magnitudes the earlier ones are kept.
    mask
        Code of the positions. The paper uses the Golomb code of the gaps.

    Raises
    ------
    ArgumentError
        If `share` is not above 0 and at most 1.
    """

    share: float = 0.01
    mask: MaskCode = RunMask()

    def write(self, leaf: Tensor, key: Key, out: Writer) -> None:
        """Append the positions, mu, and one bit for each sign."""
        flat = entries(leaf, "Ternary")
        if not len(flat):
            return
        chosen, magnitude = _choose(flat, self.share)
        write_positions(chosen, as_matrix(tuple(leaf.shape)), self.mask, out)
        if magnitude:
            out.f32(magnitude)
            out.raw(np.packbits(flat[chosen] < 0).tobytes())

    def read(self, source: Reader, shape: tuple[int, ...], key: Key) -> Tensor:
        """Read the tensor."""
        dense = np.zeros(math.prod(shape))
        if len(dense) and (chosen := read_positions(source, as_matrix(shape), self.mask)).any():
            magnitude, count = source.f32(SMALLEST, LARGEST), int(chosen.sum())
            negative = np.unpackbits(
                np.frombuffer(source.raw(-(-count // 8)), np.uint8), count=count
            )
            dense[chosen] = np.where(negative, -magnitude, magnitude)
        return tensor(dense, shape)


@checked(share=SHARE)
def ternary(leaf: Tensor, share: float) -> Tensor:
    """Return the tensor that `Ternary` would decode, for servers that compress and for error
    feedback.

    Parameters
    ----------
    leaf
        Tensor of any shape.
    share
        Share of entries to keep, as in `Ternary`.

    Raises
    ------
    ArgumentError
        If `share` is not above 0 and at most 1.
    WireError
        If the tensor holds NaN or infinity.
    """
    flat = entries(leaf, "ternary")
    chosen, magnitude = _choose(flat, share)
    return tensor(np.where(chosen, np.copysign(magnitude, flat), 0.0), tuple(leaf.shape)).to(
        leaf.device
    )


def _choose(flat: Singles, share: float) -> tuple[Mask, float]:
    magnitudes = np.abs(flat)
    count = min(share_of(share, len(flat)), int(np.count_nonzero(flat)))
    if not count:
        return np.zeros(len(flat), np.bool_), 0.0
    chosen = largest(magnitudes, count)
    # Rounded to float32 here, so that encoder, bound and decoder use the same number.
    return chosen, float(np.float32(magnitudes[chosen].mean(dtype=np.float64)))

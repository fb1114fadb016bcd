"""`Float`: floating-point numbers as float32, IEEE half or bfloat16, with an optional entropy code
of their exponents.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from bayesfed.compress.buffer import Reader, Writer
from bayesfed.compress.leaf import IntegerCode
from bayesfed.compress.quantisers.entries import check_range, energy, entries, peak
from bayesfed.errors import ArgumentError, WireError
from bayesfed.keys import Key

Kind = Literal[32, 16, "bf16"]

# Bytes, torch dtype, bits of precision (half a unit in the last place is 2**-bits, relative), half
# the smallest subnormal number.
_KINDS: dict[Kind, tuple[int, torch.dtype, int, float]] = {
    32: (4, torch.float32, 24, 0.0),
    16: (2, torch.float16, 11, 2.0**-25),
    "bf16": (2, torch.bfloat16, 8, 2.0**-134),
}


@dataclass(frozen=True)
class Float:
    """Send each entry as a little-endian float of `kind`, rounded to nearest.

    Parameters
    ----------
    kind
        32 (lossless for float32 leaves), 16 (IEEE half: relative error at most 2**-11 between
        6.1e-5 and 65504, absolute 2**-25 below) or ``"bf16"`` (relative error at most 2**-8 over
        the range of float32).
    entropy
        Code of the highest byte of every number, after a rotation that moves the sign to the lowest
        bit, so that this byte holds the exponent; trained weights have few distinct exponents. The
        other bytes are sent unchanged. None: all bytes are.

    Raises
    ------
    ArgumentError
        If `kind` is not one of these.
    WireError
        On encoding NaN, infinity or a value outside the range of `kind`; on decoding a value that
        is not finite.
    """

    kind: Kind = 32
    entropy: IntegerCode | None = None

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise ArgumentError("Float", "kind 32, 16 or 'bf16'", repr(self.kind), "Float(32)")

    @property
    def unbiased(self) -> bool:
        """Whether nothing is rounded."""
        return self.kind == 32

    def write(self, leaf: Tensor, key: Key, out: Writer) -> None:
        """Append the numbers: all bytes, or the code of the high bytes and then the other bytes."""
        size, dtype, _, _ = _KINDS[self.kind]
        flat = entries(leaf, f"Float({self.kind!r})")
        narrow = torch.from_numpy(flat).to(dtype)
        if self.kind != 32 and not torch.isfinite(narrow).all():
            raise WireError(
                f"Float({self.kind!r})",
                "values within its range",
                f"largest {peak(flat):g}",
                "Float(32) or a smaller step",
            )
        words = narrow.view(torch.int16 if size == 2 else torch.int32).numpy().view(f"u{size}")
        if self.entropy is None:
            out.raw(words.astype(f"<u{size}").tobytes())
            return
        planes = (
            (words << 1 | words >> (8 * size - 1))
            .astype(f"<u{size}")
            .view(np.uint8)
            .reshape(-1, size)
        )
        self.entropy.write(planes[:, -1].astype(np.int64), out)
        out.raw(planes[:, :-1].tobytes())

    def read(self, source: Reader, shape: tuple[int, ...], key: Key) -> Tensor:
        """Read the numbers as float32; refuse numbers that are not finite."""
        size, dtype, _, _ = _KINDS[self.kind]
        count = math.prod(shape)
        if self.entropy is None:
            words = np.frombuffer(source.raw(size * count), f"<u{size}").astype(f"u{size}")
        else:
            planes = np.empty((count, size), np.uint8)
            planes[:, -1] = check_range(self.entropy.read(source, count), 0, 255)
            planes[:, :-1] = np.frombuffer(source.raw((size - 1) * count), np.uint8).reshape(
                count, size - 1
            )
            turned = planes.view(f"<u{size}").reshape(-1).astype(f"u{size}")
            words = turned >> 1 | turned << (8 * size - 1)
        wide = torch.from_numpy(words.view(f"i{size}")).view(dtype).float()
        if not torch.isfinite(wide).all():
            raise WireError(
                f"Float({self.kind!r})",
                "finite numbers",
                "NaN or Inf",
                "sending it again",
                field="values",
            )
        return wide.reshape(shape)

    def bound(self, leaf: Tensor) -> float:
        """Return half a unit in the last place of the largest entry, ``2**-p max|x|``, at least
        half the smallest subnormal number.
        """
        _, _, bits, floor = _KINDS[self.kind]
        return (
            0.0
            if self.kind == 32 or not leaf.numel()
            else max(2.0**-bits * peak(entries(leaf, "Float")), floor)
        )

    def variance(self, leaf: Tensor) -> float:
        """Return ``4**-p ||x||**2`` plus the error of subnormal numbers."""
        _, _, bits, floor = _KINDS[self.kind]
        flat = entries(leaf, "Float")
        return 0.0 if self.kind == 32 else 4.0**-bits * energy(flat) + len(flat) * floor**2

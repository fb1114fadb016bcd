"""What leaf codecs promise: whether they are unbiased, the largest error of an entry, and the mean
squared error summed over the entries, in closed form. A codec of a test may say so itself.
"""

from __future__ import annotations

import math
from functools import singledispatch
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesfed.compress.quantisers.entries import Reals, energy, entries, peak, rounding, spread
from bayesfed.compress.quantisers.floats import Exact, Float, Uniform
from bayesfed.compress.quantisers.lattice import Lattice
from bayesfed.compress.quantisers.probabilistic import Probabilistic, Qsgd
from bayesfed.compress.quantisers.sparsify import Kernels, Signs, _Kept

# Largest coordinate in the cell of a lattice, by dimension.
REACH = {1: 0.5, 2: 1 / math.sqrt(3)}


def unbiased(codec: Any) -> bool:
    """Whether the mean of the decoded tensor over keys is the original tensor."""
    if isinstance(codec, Float):
        return codec.kind == 32
    if isinstance(codec, _Kept):
        return getattr(codec, "share", None) in {1, None} and unbiased(codec.values)
    if isinstance(codec, Exact | Lattice | Probabilistic | Qsgd | Signs | Uniform):
        return not isinstance(codec, Signs | Uniform)
    return bool(codec.unbiased)


def bound(codec: Any, leaf: Tensor) -> float:
    """Return a bound on the absolute error of an entry; 0 if lossless. Of float64 numbers, each is
    rounded to float32 first.
    """
    rounds = leaf.dtype is torch.float64 and not torch.equal(leaf, leaf.float().double())
    return _bound(codec, leaf) + (rounding(float(leaf.abs().max())) if rounds else 0.0)


@singledispatch
def _bound(codec: Any, leaf: Tensor) -> float:
    return float(codec.bound(leaf))


@singledispatch
def variance(codec: Any, leaf: Tensor) -> float:
    """Return a bound on the expected squared error, summed over the entries."""
    return float(codec.variance(leaf))


@_bound.register
def _(codec: Exact, leaf: Tensor) -> float:
    return 0.0


@variance.register
def _(codec: Exact, leaf: Tensor) -> float:
    return 0.0


@_bound.register
def _(codec: Float, leaf: Tensor) -> float:
    """Half a unit in the last place of the largest entry, at least half the smallest subnormal."""
    if codec.kind == 32 or not leaf.numel():
        return 0.0
    return max(2.0**-11 * peak(entries(leaf, "Float")), 2.0**-25)


@variance.register
def _(codec: Float, leaf: Tensor) -> float:
    """``4**-11 ||x||**2`` plus the error of subnormal numbers."""
    flat = entries(leaf, "Float")
    return 0.0 if codec.kind == 32 else 4.0**-11 * energy(flat) + len(flat) * 4.0**-25


@_bound.register
def _(codec: Uniform, leaf: Tensor) -> float:
    """Half the grid step, plus the rounding of the result to float32."""
    flat = entries(leaf, "Uniform")
    if not len(flat) or flat.min() == flat.max():
        return 0.0
    low, high = float(flat.min()), float(flat.max())
    return (high - low) / float(2**codec.bits - 1) / 2 + rounding(max(-low, high))


@variance.register
def _(codec: Uniform, leaf: Tensor) -> float:
    return leaf.numel() * bound(codec, leaf) ** 2


@_bound.register
def _(codec: Qsgd, leaf: Tensor) -> float:
    """The step ``norm / s`` of the bucket with the largest norm, plus rounding."""
    largest = peak(codec._norms(entries(leaf, "Qsgd")))
    return largest / codec.levels + rounding(largest) if largest else 0.0


@variance.register
def _(codec: Qsgd, leaf: Tensor) -> float:
    """With f the fractional part of ``s |x_i| / norm``, the sum of ``(norm / s)**2 f (1 - f)``."""
    flat = entries(leaf, "Qsgd")
    norms = codec._norms(flat)
    if not norms.any():
        return 0.0
    each = codec._each(norms, len(flat))
    steps = each.astype(np.float64) / codec.levels
    exact = float((steps**2 * spread(codec._places(flat, each))).sum())
    return exact + len(flat) * rounding(peak(norms)) ** 2


@_bound.register
def _(codec: Probabilistic, leaf: Tensor) -> float:
    """One step, ``(u_max - u_min) / L``, plus rounding."""
    _, _, low, high = codec._grid(leaf)
    return (high - low) / codec.levels + rounding(high) if low < high else 0.0


@_bound.register
def _(codec: Signs, leaf: Tensor) -> float:
    """The largest distance of a magnitude from mu."""
    return peak(_from_mean(leaf))


@variance.register
def _(codec: Signs, leaf: Tensor) -> float:
    """``||x||**2 - k mu**2``, summed without cancellation."""
    return energy(_from_mean(leaf))


def _from_mean(leaf: Tensor) -> Reals:
    magnitudes = np.abs(entries(leaf, "Signs"))
    mean = magnitudes.mean(dtype=np.float64) if len(magnitudes) else 0.0
    return magnitudes - np.float64(np.float32(mean))


@_bound.register
def _(codec: Lattice, leaf: Tensor) -> float:
    """The largest coordinate in the cell, in units of the entries, plus rounding."""
    flat = entries(leaf, "Lattice")
    error = codec._spacing(flat) * REACH[codec.dimension]
    return error + rounding(peak(flat) + error) if error else 0.0


@variance.register
def _(codec: Lattice, leaf: Tensor) -> float:
    """``n spacing**2 * Cell.moment``, plus rounding."""
    flat = entries(leaf, "Lattice")
    spacing = codec._spacing(flat)
    if not spacing:
        return 0.0
    rounded = rounding(peak(flat) + spacing * REACH[codec.dimension])
    return len(flat) * (spacing**2 * codec._cell.moment + rounded**2)


@_bound.register
def _(codec: _Kept, leaf: Tensor) -> float:
    """The largest dropped entry, or the bound of the inner codec if that is larger."""
    if isinstance(codec, Kernels) and leaf.ndim < 2:
        return bound(codec.values, leaf)
    rows, chosen = codec._parted(leaf)
    return max(peak(rows[~chosen]), bound(codec.values, torch.from_numpy(rows[chosen])))


@variance.register
def _(codec: _Kept, leaf: Tensor) -> float:
    """The energy of the dropped rows plus the variance of the inner codec."""
    if isinstance(codec, Kernels) and leaf.ndim < 2:
        return variance(codec.values, leaf)
    rows, chosen = codec._parted(leaf)
    lost = energy(rows[~chosen].reshape(-1))
    return lost + variance(codec.values, torch.from_numpy(rows[chosen]))

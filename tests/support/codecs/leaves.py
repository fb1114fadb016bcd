"""Laws of leaf codecs: shapes, errors, averages and the effect of damage, for one tensor after
`write` and `read`.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import torch
from torch import Tensor

from bayesfed.compress.leaf import LeafCodec, Reader, Writer
from bayesfed.errors import WireError
from bayesfed.keys import Key
from bayesfed.testing.law import law, refuses
from tests.support.codecs.damage import damaged, survives
from tests.support.codecs.promises import bound, unbiased, variance

SHAPES: tuple[tuple[int, ...], ...] = ((), (1,), (0,), (0, 3), (5, 7), (2, 3, 4, 4))
_FEW, _MANY = 16, 256


def tensors(key: Key) -> dict[str, Tensor]:
    """Return tensors to try a leaf codec on: of several shapes, all zero, all equal, sparse,
    ternary, small, of doubles, not contiguous.
    """
    generator = key.generator()
    shaped = {f"shape {shape}": torch.randn(shape, generator=generator) for shape in SHAPES}
    noise = torch.randn(20, 30, generator=generator)
    return shaped | {
        "all zero": torch.zeros(4, 6),
        "all equal": torch.full((7, 5), -0.3),
        "sparse": noise * (noise > 1),
        "ternary": 0.25 * noise.sign() * (noise.abs() > 1),
        "small": 1e-3 * noise,
        "double": noise[:5].double() + 1e-9,
        "not contiguous": noise.T[::2],
    }


def check_leaf_codec(codec: LeafCodec, *, largest: int = 1_000_000, damages: int = 200) -> None:
    """Check that a leaf codec keeps shapes, keeps to its error bounds, depends on its key only,
    refuses NaN and survives damage.

    If it claims to be unbiased, the error of the mean over keys must fall like one over the square
    root of their number.

    Parameters
    ----------
    codec
        The leaf codec to check.
    largest
        Number of entries of the largest tensor; 0 for no large tensor.
    damages
        Number of damaged sections, each of which it must refuse or read as a finite tensor of the
        right shape.

    Raises
    ------
    LawError
        If a law is broken.
    """
    key = Key(0, "leaf-law")
    for what, leaf in tensors(key).items():
        _check_trip(codec, leaf, key, what)
    if largest:
        _check_trip(
            codec,
            0.01 * torch.randn(largest, generator=key.child("largest").generator()),
            key,
            f"{largest} entries",
        )
    for bad in (math.nan, math.inf, -math.inf):
        for shape in ((), (7,), (4, 5), (2, 3, 2, 2)):
            leaf = torch.ones(shape)
            leaf.view(-1)[-1] = bad
            refuses(partial(codec.write, leaf, key, Writer()), WireError, f"{bad} in shape {shape}")
    _check_averages(codec, key)
    random = key.child("damage").numpy()
    for what, leaf in tensors(key).items():
        raw = _written(codec, leaf, key)
        for _ in range(damages // len(tensors(key)) + 1):
            survives(
                partial(codec.read, Reader(damaged(raw, random)), tuple(leaf.shape), key),
                partial(_is_finite, leaf),
                f"{what}, damaged",
            )


def _check_trip(codec: LeafCodec, leaf: Tensor, key: Key, what: str) -> None:
    stream, before, raw = torch.get_rng_state(), leaf.clone(), _written(codec, leaf, key)
    law(raw == _written(codec, leaf, key), f"{what}: two sections with one key differ")
    source = Reader(raw + b"next")
    back = codec.read(source, tuple(leaf.shape), key)
    law(
        bytes(source.raw(len(source))) == b"next",
        f"{what}: a reader takes what the writer wrote, no more and no less",
    )
    law(
        back.shape == leaf.shape and back.dtype is torch.float32,
        f"{what}: {back.dtype} of shape {tuple(back.shape)} came back",
    )
    law(
        back.is_contiguous() and bool(torch.isfinite(back).all()),
        f"{what}: the decoded tensor is contiguous and finite",
    )
    law(
        torch.equal(back, codec.read(Reader(raw), tuple(leaf.shape), key)),
        f"{what}: read twice, one section differs",
    )
    law(
        torch.equal(stream, torch.get_rng_state()),
        f"{what}: torch's global generator was drawn from",
    )
    law(torch.equal(before, leaf), f"{what}: the tensor was changed")
    error, most = (back.double() - leaf.double()).abs(), bound(codec, leaf)
    law(
        not leaf.numel() or float(error.max()) <= most,
        f"{what}: an error above the bound {most:g}",
    )
    law(math.isfinite(variance(codec, leaf)), f"{what}: the variance is a number")
    back += 1.0
    law(torch.equal(before, leaf), f"{what}: what came back shares memory with the tensor")


def _check_averages(codec: LeafCodec, key: Key) -> None:
    leaf = torch.randn(30, 20, generator=key.child("averages").generator())
    leaf.view(-1)[::7] = 0
    total, squares, errors = torch.zeros(leaf.shape, dtype=torch.float64), [], {}
    for number in range(_MANY):
        error = _read(codec, leaf, key.child("mean", number)).double() - leaf
        total += error
        squares.append(float(error.square().sum()))
        errors[number + 1] = float(total.norm()) / (number + 1)
    promised, measured = variance(codec, leaf), float(np.mean(squares))
    slack = 5 * float(np.std(squares)) / math.sqrt(_MANY)
    law(
        measured <= promised * (1 + 1e-4) + slack,
        f"the mean squared error is {measured:g}, the variance promised {promised:g}",
    )
    if unbiased(codec) and measured > 0:
        ratio, expected = errors[_FEW] / errors[_MANY], math.sqrt(_MANY / _FEW)
        law(
            0.75 * expected < ratio < 1.33 * expected,
            f"{_MANY // _FEW} times the keys divide the error of the mean by {ratio:.3g}",
        )
        law(
            errors[_MANY] ** 2 < 1.5 * measured / _MANY,
            f"the mean over {_MANY} keys is off by {errors[_MANY]:g}",
        )


def _is_finite(leaf: Tensor, back: Tensor) -> bool:
    return back.shape == leaf.shape and bool(torch.isfinite(back).all())


def _written(codec: LeafCodec, leaf: Tensor, key: Key) -> bytes:
    out = Writer()
    codec.write(leaf, key, out)
    return out.bytes()


def _read(codec: LeafCodec, leaf: Tensor, key: Key) -> Tensor:
    return codec.read(Reader(_written(codec, leaf, key)), tuple(leaf.shape), key)

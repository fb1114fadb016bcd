"""`PosteriorGrid`: the precision of a weight follows from the width of its posterior.

Rounding a mean by an error e costs ``KL(N(mu + e, sigma^2) || N(mu, sigma^2)) = e^2 / (2 sigma^2)``
nats. On a grid of step d with subtractive dither the error is uniform on [-d/2, d/2) and
independent of the mean, so the expected cost is ``d^2 / (24 sigma^2)``, and a budget of `nats` per
weight gives ``d = sigma sqrt(24 nats)``. Dither also preserves small changes, which a plain grid
would round away in every round.

If each weight has its own sd, its logarithm is coded on a grid; an error e there costs about
``e^2`` nats, so the step is ``sqrt(12 nats)``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesfed.compress.coded import Coded
from bayesfed.compress.quantisers.entries import Reals, parts, peak
from bayesfed.compress.quantisers.floats import Float
from bayesfed.compress.wire import Meta
from bayesfed.errors import WireError
from bayesfed.errors.checks import checked_class, number
from bayesfed.keys import Key
from bayesfed.trees import Tree, is_finite

MEAN, SD, SHARED = "mean/", "sd/", "shared/sd"
# Larger grid numbers would not be exact in float64, nor worth sending.
LARGEST = 2.0**40


@checked_class(nats=number("(0, inf)", "0.01"))
@dataclass(frozen=True)
class PosteriorGrid:
    """Code ``mean/NAME`` on a grid whose step follows from its posterior sd, ``sd/NAME`` or
    ``shared/sd``; other leaves with `inner`.

    Unbiased; the mean squared error of a mean is ``2 nats sigma^2``. Sender and receiver draw the
    dither from the key of the message.

    Parameters
    ----------
    nats
        Cost of coding per weight, an expected KL divergence in nats.
    inner
        Codec of the grid's integers, of masks and of all other leaves. A single sd (shared, or of a
        layer) is sent as float32.

    Raises
    ------
    ArgumentError
        If `nats` is not a positive number.
    WireError
        On encoding means without an sd, an sd that is not positive, or a mean 2^40 steps away; on
        decoding a damaged message.
    """

    nats: float = 0.01
    inner: Coded = Coded(exceptions={SHARED: Float(32), SD + "*": Float(32)})

    def encode(self, tree: Tree, meta: Meta, key: Key) -> bytes:
        """Round the sds, then the means with the sds that the receiver will decode."""
        result, spreads = dict(tree), _spreads(tree)
        for name in spreads:
            if not _positive(tree[name]):
                raise WireError(
                    f"leaf {name!r}",
                    "finite standard deviations above 0",
                    "others",
                    "a smaller step",
                )
            if tree[name].numel() > 1:
                result[name] = _codes(
                    tree[name].detach().double().log(),
                    np.array([self._log_step]),
                    key.child("dither", name),
                    name,
                )
        seen = self._seen(result, spreads, key)
        for name in _means(tree):
            result[name] = _codes(
                tree[name], self._steps(name, tree[name], seen), key.child("dither", name), name
            )
        return self.inner.encode(result, meta, key.child("inner"))

    def decode(self, message: bytes, key: Key) -> tuple[Tree, dict[str, Any]]:
        """Read sds and means of a message."""
        tree, meta = self.inner.decode(message, key.child("inner"))
        seen = self._seen(tree, _spreads(tree), key)
        result = tree | {name: leaf.float() for name, leaf in seen.items()}
        for name in _means(tree):
            steps, mean = (
                self._steps(name, tree[name], seen),
                np.empty(tree[name].numel(), np.float32),
            )
            with np.errstate(over="ignore"):
                for part, values in _values(tree[name], key.child("dither", name), name):
                    mean[part] = values * _of(steps, part)
            result[name] = torch.from_numpy(mean).reshape(tree[name].shape)
            if not is_finite(result[name]):
                raise WireError(
                    f"leaf {name!r}",
                    "finite values",
                    "others",
                    "sending it again",
                    field="values",
                )
        return result, meta

    @property
    def _log_step(self) -> float:
        return math.sqrt(12 * self.nats)

    def _seen(self, coded: Mapping[str, Tensor], spreads: list[str], key: Key) -> Tree:
        """Return the sds that the receiver decodes, float64."""
        seen: Tree = {}
        for name in spreads:
            leaf = coded[name].detach().cpu()
            if leaf.is_floating_point() != (leaf.numel() <= 1):
                raise WireError(
                    f"leaf {name!r}",
                    "one sd as a float, or grid numbers",
                    leaf.dtype,
                    "sending it again",
                )
            if leaf.is_floating_point():
                sd = leaf.float().double()
            else:
                sd = torch.empty(leaf.shape, dtype=torch.float64)
                flat = sd.reshape(-1).numpy()
                with np.errstate(over="ignore"):
                    for part, values in _values(leaf, key.child("dither", name), name):
                        flat[part] = np.exp(values * self._log_step)
            if not _positive(sd):
                raise WireError(
                    f"leaf {name!r}",
                    "finite values above 0",
                    "others",
                    "sending it again",
                    field="values",
                )
            seen[name] = sd
        return seen

    def _steps(self, name: str, leaf: Tensor, seen: Tree) -> Reals:
        sd = seen[_spread_of(name, seen)]
        if sd.numel() != 1 and sd.shape != leaf.shape:
            raise WireError(
                f"leaf {name!r}", f"shape {tuple(sd.shape)}", tuple(leaf.shape), "sending it again"
            )
        return sd.reshape(-1).numpy() * math.sqrt(24 * self.nats)


def _means(tree: Mapping[str, Tensor]) -> list[str]:
    return [name for name in tree if name.startswith(MEAN)]


def _spreads(tree: Mapping[str, Tensor]) -> list[str]:
    return sorted({_spread_of(name, tree) for name in _means(tree)})


def _spread_of(name: str, tree: Mapping[str, Tensor]) -> str:
    own = SD + name.removeprefix(MEAN)
    for spread in (own, SHARED):
        if spread in tree:
            return spread
    raise WireError(
        f"leaf {name!r}",
        f"{own!r} or {SHARED!r} beside it",
        sorted(tree),
        "Coded for models without posterior sd",
    )


def _positive(leaf: Tensor) -> bool:
    """Return whether all entries are above 0 and finite, also as float32."""
    if not leaf.numel():
        return True
    low, high = leaf.detach().aminmax()
    return float(low.float()) > 0 and math.isfinite(high.float())


def _of(steps: Reals, part: slice) -> Reals:
    return steps if len(steps) == 1 else steps[part]


def _dither(count: int, random: np.random.Generator) -> Reals:
    return random.random(count) - 0.5


def _codes(leaf: Tensor, steps: Reals, key: Key, name: str) -> Tensor:
    flat, random = leaf.detach().cpu().reshape(-1), key.numpy()
    result = np.empty(len(flat), np.int64)
    for part in parts(len(flat)):
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = flat[part].double().numpy() / _of(steps, part)
            numbers = np.rint(scaled + _dither(len(scaled), random))
        if not peak(numbers) <= LARGEST:
            raise WireError(
                f"leaf {name!r}",
                f"values within {LARGEST:g} grid steps",
                "larger ones or NaN",
                "a smaller step",
            )
        result[part] = numbers
    return torch.from_numpy(result).reshape(leaf.shape)


def _values(codes: Tensor, key: Key, name: str) -> Iterator[tuple[slice, Reals]]:
    """Yield the grid numbers minus their dither, part by part."""
    if codes.dtype is not torch.int64:
        raise WireError(f"leaf {name!r}", "grid numbers", codes.dtype, "a message of this codec")
    flat, random = codes.reshape(-1).numpy(), key.numpy()
    return (
        (part, flat[part] - _dither(part.stop - part.start, random)) for part in parts(len(flat))
    )

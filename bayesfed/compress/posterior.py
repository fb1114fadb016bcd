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
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesfed.compress.coded import Coded
from bayesfed.compress.quantisers.floats import Float
from bayesfed.compress.wire import DTYPES, Meta, dtype_of
from bayesfed.errors import WireError
from bayesfed.errors.checks import checked_class, number
from bayesfed.keys import Key
from bayesfed.trees import Tree, is_finite

MEAN, SD, SHARED, KINDS = "mean/", "sd/", "shared/sd", "kinds"
FLOATS = {"f8", "f4", "f2", "bf"}
# Larger grid numbers would not be exact in float64, nor worth sending.
LARGEST = 2.0**40
# What error messages propose where a grid has no step for each mean.
SPREADS = "sds as floats, a single one or one for each entry of the mean"


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
                logarithm = tree[name].detach().double().log()
                result[name] = _codes(logarithm, self._log_step, key, name)
        seen = self._seen(result, spreads, key)
        for name in _means(tree):
            result[name] = _codes(tree[name], self._steps(name, tree[name], seen), key, name)
        # The integers of the grid do not say which type they stand for.
        kinds = [dtype_of(name, tree[name]) for name in _on_grid(result)]
        if {*kinds} - {"f4"}:
            meta = {**meta, KINDS: " ".join(kinds)}
        return self.inner.encode(result, meta, key.child("inner"))

    def decode(self, message: bytes, key: Key) -> tuple[Tree, dict[str, Any]]:
        """Read sds and means of a message."""
        tree, meta = self.inner.decode(message, key.child("inner"))
        coded = _on_grid(tree)
        kinds = str(meta.pop(KINDS, "f4 " * len(coded))).split()
        if len(kinds) != len(coded) or not {*kinds} <= FLOATS:
            raise _damaged(KINDS, "a type for each leaf on a grid", kinds)
        dtypes = {name: DTYPES[kind] for name, kind in zip(coded, kinds, strict=True)}
        seen = self._seen(tree, _spreads(tree), key)
        result = tree | {
            name: leaf.to(dtypes.get(name, tree[name].dtype)) for name, leaf in seen.items()
        }
        for name in _means(tree):
            mean = _values(tree[name], self._steps(name, tree[name], seen), key, name)
            result[name] = mean.to(dtypes[name])
            if not is_finite(result[name]):
                raise _damaged(name, "finite values", "others")
        return result, meta

    @property
    def _log_step(self) -> Tensor:
        return torch.tensor(math.sqrt(12 * self.nats), dtype=torch.float64)

    def _seen(self, coded: Mapping[str, Tensor], spreads: list[str], key: Key) -> Tree:
        """Return the sds that the receiver decodes, float64."""
        seen: Tree = {}
        for name in spreads:
            leaf = coded[name].detach().cpu()
            if leaf.is_floating_point() != (leaf.numel() <= 1):
                raise _damaged(name, "one sd as a float, or grid numbers", leaf.dtype, SPREADS)
            seen[name] = (
                leaf.float().double()
                if leaf.is_floating_point()
                else _values(leaf, self._log_step, key, name).exp()
            )
            if not _positive(seen[name]):
                raise _damaged(name, "finite values above 0", "others")
        return seen

    def _steps(self, name: str, leaf: Tensor, seen: Tree) -> Tensor:
        sd = seen[_spread_of(name, seen)]
        if sd.numel() != 1 and sd.shape != leaf.shape:
            raise _damaged(name, f"shape {tuple(sd.shape)}", tuple(leaf.shape), SPREADS)
        return (sd.reshape(()) if sd.numel() == 1 else sd) * math.sqrt(24 * self.nats)


def _on_grid(tree: Mapping[str, Tensor]) -> list[str]:
    """Return the names of the means and sds that are grid numbers."""
    names = (*_spreads(tree), *_means(tree))
    return [name for name in names if not tree[name].is_floating_point()]


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


def _damaged(name: str, expected: str, actual: object, hint: str = "sending it again") -> WireError:
    return WireError(f"leaf {name!r}", expected, actual, hint, field="values")


def _dither(leaf: Tensor, key: Key, name: str) -> Tensor:
    drawn = key.child("dither", name).numpy().random(tuple(leaf.shape))
    return torch.as_tensor(drawn, dtype=torch.float64) - 0.5


def _codes(leaf: Tensor, steps: Tensor, key: Key, name: str) -> Tensor:
    """Return the grid numbers of a leaf with subtractive dither."""
    numbers = (leaf.detach().cpu().double() / steps + _dither(leaf, key, name)).round_()
    if numbers.numel() and not float(numbers.abs().max()) <= LARGEST:
        raise WireError(
            f"leaf {name!r}",
            f"values within {LARGEST:g} grid steps",
            "larger ones or NaN",
            "a smaller learning rate, or a larger nats",
        )
    return numbers.long()


def _values(codes: Tensor, steps: Tensor, key: Key, name: str) -> Tensor:
    """Return the numbers that grid numbers stand for."""
    if codes.dtype is not torch.int64:
        raise WireError(f"leaf {name!r}", "grid numbers", codes.dtype, "a message of this codec")
    return (codes - _dither(codes, key, name)) * steps

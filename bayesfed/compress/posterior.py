"""`PosteriorGrid`: a weight is sent as coarsely as its posterior is wide.

Rounding a mean by an error e costs ``KL(N(mu + e, sigma^2) || N(mu, sigma^2)) = e^2 / (2 sigma^2)`` nats. On a grid of step d with subtractive
dither the error is uniform on [-d/2, d/2) and independent of the mean, so the expected cost is ``d^2 / (24 sigma^2)``: a budget of
`nats` a weight sets ``d = sigma sqrt(24 nats)``. Dither also keeps small changes alive: a plain grid would round them away every round.

An sd a weight is coded on a grid of its logarithm; an error e there costs about ``e^2`` nats, so the step is ``sqrt(12 nats)``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesfed.compress.coded import Coded
from bayesfed.compress.floats import Float
from bayesfed.compress.wire import Meta
from bayesfed.errors import ArgumentError, WireError, complain
from bayesfed.keys import Key
from bayesfed.trees import Tree

MEAN, SD = ".mean", "sd"
# Grid numbers beyond this would not be exact in float64, nor worth sending.
LARGEST = 2.0**40


@dataclass(frozen=True)
class PosteriorGrid:
    """Code ``NAME.mean`` on a grid set by its posterior sd, ``NAME.sd`` or the shared ``sd``; other leaves by `inner`.

    Unbiased; the mean squared error of a mean is ``2 nats sigma^2``. Both ends draw the dither from the message's key.

    Parameters
    ----------
    nats
        What coding may cost each weight, as expected KL divergence.
    inner
        Codes the grid's integers, the masks and the rest. A single sd (shared, or a layer's) travels as float32.

    Raises
    ------
    ArgumentError
        If `nats` is not a positive number.
    WireError
        On encoding means without an sd, an sd that is not positive, or a mean 2^40 steps away; on decoding a damaged message.
    """

    nats: float = 0.01
    inner: Coded = Coded(exceptions={"sd": Float(32), "*.sd": Float(32)})

    def __post_init__(self) -> None:
        if not 0 < self.nats < math.inf:
            raise ArgumentError(complain("PosteriorGrid", expected="nats > 0", actual=self.nats, hint="0.01"))

    def encode(self, tree: Tree, meta: Meta, key: Key) -> bytes:
        """Round sds, then means with the sds as the receiver will see them."""
        result, spreads = dict(tree), self._spreads(tree)
        for name in spreads:
            leaf = tree[name].detach()
            if not bool(((leaf > 0) & torch.isfinite(leaf)).all()):
                raise WireError(complain(f"leaf {name!r}", expected="finite standard deviations above 0", actual="others", hint="a smaller step"))
            if leaf.numel() > 1:
                result[name] = _codes(leaf.double().log() / self._log_step, key.child("dither", name), name)
        seen = self._seen(result, spreads, key)
        for name in _means(tree):
            step = self._steps(name, tree[name], seen)
            result[name] = _codes(tree[name].detach().double() / step, key.child("dither", name), name)
        return self.inner.encode(result, meta, key.child("inner"))

    def decode(self, message: bytes, key: Key) -> tuple[Tree, dict[str, Any]]:
        """Undo it."""
        tree, meta = self.inner.decode(message, key.child("inner"))
        result = dict(tree)
        seen = self._seen(tree, self._spreads(tree), key)
        result |= {name: leaf.float() for name, leaf in seen.items()}
        for name in _means(tree):
            step = self._steps(name, tree[name], seen)
            result[name] = (_values(tree[name], key.child("dither", name), name) * step).float()
        for name in (*seen, *_means(tree)):
            if not bool(result[name].isfinite().all()):
                raise WireError(complain(f"leaf {name!r}", expected="finite values", actual="others", hint="sending it again"))
        return result, meta

    @property
    def _log_step(self) -> float:
        return math.sqrt(12 * self.nats)

    def _spreads(self, tree: Mapping[str, Tensor]) -> list[str]:
        found = {_spread_of(name, tree) for name in _means(tree)}
        return sorted(found)

    def _seen(self, coded: Mapping[str, Tensor], spreads: list[str], key: Key) -> Tree:
        """Return sds as the receiver sees them, float64."""
        seen: Tree = {}
        for name in spreads:
            leaf = coded[name]
            if leaf.is_floating_point() != (leaf.numel() <= 1):
                raise WireError(complain(f"leaf {name!r}", expected="one sd as a float, or grid numbers", actual=leaf.dtype, hint="sending it again"))
            values = leaf.float().double() if leaf.is_floating_point() else (_values(leaf, key.child("dither", name), name) * self._log_step).exp()
            if not bool(((values > 0) & torch.isfinite(values)).all()):
                raise WireError(complain(f"leaf {name!r}", expected="finite values above 0", actual="others", hint="sending it again"))
            seen[name] = values
        return seen

    def _steps(self, name: str, leaf: Tensor, seen: Tree) -> Tensor:
        sd = seen[_spread_of(name, seen)]
        if sd.numel() > 1 and sd.shape != leaf.shape:
            raise WireError(complain(f"leaf {name!r}", expected=f"shape {tuple(sd.shape)}", actual=tuple(leaf.shape), hint="sending it again"))
        return sd.reshape(()) * math.sqrt(24 * self.nats) if sd.numel() == 1 else sd * math.sqrt(24 * self.nats)


def _means(tree: Mapping[str, Tensor]) -> list[str]:
    return [name for name in tree if name.endswith(MEAN)]


def _spread_of(name: str, tree: Mapping[str, Tensor]) -> str:
    own = name.removesuffix(MEAN) + ".sd"
    for spread in (own, SD):
        if spread in tree:
            return spread
    raise WireError(
        complain(f"leaf {name!r}", expected=f"{own!r} or {SD!r} beside it", actual=sorted(tree), hint="Coded for models without posterior sd")
    )


def _dither(like: Tensor, key: Key) -> Tensor:
    # Made on the CPU, so that both ends draw the same numbers whatever their devices.
    return (torch.rand(like.shape, generator=key.generator(), dtype=torch.float64) - 0.5).to(like.device)


def _codes(scaled: Tensor, key: Key, name: str) -> Tensor:
    numbers = (scaled + _dither(scaled, key)).round()
    if numbers.numel() and not bool((numbers.abs() <= LARGEST).all()):
        raise WireError(
            complain(f"leaf {name!r}", expected=f"values within {LARGEST:g} grid steps", actual="larger ones or NaN", hint="a smaller step")
        )
    return numbers.long()


def _values(codes: Tensor, key: Key, name: str) -> Tensor:
    if codes.dtype is not torch.int64:
        raise WireError(complain(f"leaf {name!r}", expected="grid numbers", actual=codes.dtype, hint="a message of this codec"))
    return codes.double() - _dither(codes, key)

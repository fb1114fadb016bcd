"""Adapters of unlike rank added exactly: factors side by side, ``sum_i w_i B_i A_i = [w_1 B_1, w_2
B_2, ...] [A_1; A_2; ...]``.

Payloads of `Slices.stacked` and the reducer `Stack` make the sum. The server `Refactored` truncates
it by thin QRs and an SVD (FlexLoRA), and `fed_stack_lora` adds it to the weights under the
adapters. No product is formed here.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn import functional

from bayesfed.algorithms.lora.slices import AXES
from bayesfed.errors import UpdateError
from bayesfed.federated import FedAvgM, Phase, Reducer, Sum, Update
from bayesfed.federated.core import MODEL, Info, of, owned, seams
from bayesfed.geometry.thin import product_svd, squared_norm
from bayesfed.trees import Tree, besides, leaf_of, only

# Owners of an optimiser's moments, and of the factors of a round ago.
OPTIMISER, BEFORE = "optimiser", "before"


def adapter_leaves(layers: Collection[str]) -> set[str]:
    """Return the names of the factors of these layers."""
    return {leaf_of(name, leaf) for name in layers for leaf in AXES}


@dataclass
class Stack:
    """Add updates of kind "factors": adapters by concatenation in the order of the clients' names,
    other leaves and weights by addition.

    Clients of weight zero add nothing.
    """

    layers: tuple[str, ...]
    _rest: Sum = field(default_factory=Sum)
    _parts: dict[str, Tree] = field(default_factory=dict)

    @property
    def total(self) -> Update | None:
        """The sum of the other leaves; None before the first update."""
        return self._rest.total

    def add(self, client: str, update: Update) -> None:
        """Add one update."""
        factors = adapter_leaves(self.layers)
        rest = besides(update.total, factors)
        self._rest.add(client, Update(rest, update.number(), update.kind))
        if update.number() > 0:
            self._parts[client] = only(update.total, factors)

    def mean(self) -> tuple[dict[str, tuple[Tensor, Tensor]], Tree] | None:
        """Return B and A of the mean product, ``(m, K)`` and ``(K, n)``, by layer, and the mean of
        the other leaves; None if nobody with data took part.
        """
        if self.total is None or not self.total.number():
            return None
        rest, weight = self.total.mean(), self.total.number()
        pairs, ordered = {}, [self._parts[client] for client in sorted(self._parts)]
        for name in self.layers:
            b, a = (
                torch.cat([part[leaf_of(name, leaf)] for part in ordered], axis)
                for leaf, axis in AXES.items()
            )
            pairs[name] = (b / weight, a)
        return pairs, rest


def stacked(reducer: Reducer) -> Stack:
    """Return the stack a server asked for.

    Raises
    ------
    UpdateError
        If another reducer was used, or the clients sent another kind.
    """
    stack = seams.gathered(reducer, Stack)
    total = stack.total if stack else seams.total_of(reducer)
    if stack is None or total is None or total.kind != "factors":
        raise UpdateError(
            "server step",
            "a stack of kind 'factors'",
            f"kind {total.kind!r}" if total else type(reducer).__name__,
            "reducer=partial(Stack, layers)",
        )
    return stack


def refactored(b: Tensor, a: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return the best approximation of ``B A`` of a given rank as ``U Sigma`` and ``V^T``
    (FlexLoRA, Bai et al., 2024).

    Rows of A are orthonormal also where singular values are zero, so that every slice can be
    trained. Beyond the rank of any ``m x n`` matrix both factors are zero.

    Parameters
    ----------
    b, a
        ``(m, K)`` and ``(K, n)``.
    rank
        Rank R of the result; K may be smaller.
    """
    lacking, full = max(0, rank - b.shape[1]), min(rank, b.shape[0], a.shape[1])
    u, s, v = product_svd(functional.pad(b, (0, lacking)), functional.pad(a.mT, (0, lacking)), full)
    return functional.pad(u * s, (0, rank - full)), functional.pad(v.mT, (0, 0, 0, rank - full))


@dataclass(frozen=True)
class Refactored:
    """Replace adapters by the best approximation of the mean product, and other leaves by their
    mean (FlexLoRA).

    Parameters
    ----------
    layers
        Names of the layers with adapters.
    rank
        Rank of the server's adapters, whose leading slices clients get.
    optimiser
        Momentum of the server, of products: factors before and after a truncation have nothing in
        common. None: no momentum.
    """

    layers: tuple[str, ...]
    rank: int
    optimiser: FedAvgM | None = None

    def with_momentum(self, phase: Phase, optimiser: FedAvgM, initial: Tree) -> tuple[Phase, Tree]:
        """Return the phase with momentum, and the moments before round 0: of adapters their factors
        a round ago.
        """
        factors = adapter_leaves(self.layers)
        before = {name: leaf for name, leaf in initial.items() if name in factors}
        rest = optimiser.initial(besides(initial, factors))
        phase = replace(phase, server=replace(self, optimiser=optimiser), owner="")
        return phase, of(BEFORE, before) | of(OPTIMISER, rest)

    def publish(self, state: Tree, round: int, version: int | None) -> Tree:
        """Publish the model alone."""
        return owned(state, MODEL) if self.optimiser else state

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Factorise the mean product. A round of clients without data changes nothing.

        The report has ``svd_error``, the largest relative error of a layer.
        """
        means, model = stacked(reducer).mean(), self.publish(state, round, None)
        if means is None:
            return state, {}
        (pairs, rest), errors, own = means, [0.0], Tree()
        if self.optimiser:
            now = only(model, rest)
            rest, moments = self.optimiser.step(now, rest, owned(state, OPTIMISER))
            before = owned(state, BEFORE)
            pairs = {
                name: _carried(self.optimiser, model, before, name, *pair)
                for name, pair in pairs.items()
            }
            own = of(BEFORE, only(model, before)) | of(OPTIMISER, moments)
        result = dict(rest)
        for name, (b, a) in pairs.items():
            kept_b, kept_a = refactored(b, a, self.rank)
            result |= {leaf_of(name, "lora_b"): kept_b, leaf_of(name, "lora_a"): kept_a}
            # The share of the product's energy that is left out, from two norms that need no
            # product.
            whole = float(squared_norm(b.double(), a.double().mT))
            kept = float(kept_b.double().square().sum())
            errors.append((max(0.0, whole - kept) / whole) ** 0.5 if whole else 0.0)
        after = only(result, model)
        return of(MODEL, after) | own if self.optimiser else after, {"svd_error": max(errors)}


def _carried(
    optimiser: FedAvgM, model: Tree, before: Tree, name: str, b: Tensor, a: Tensor
) -> tuple[Tensor, Tensor]:
    """Return factors of ``P + rate (mean - P) + momentum (P - P before)`` for the product P of a
    layer of the model: FedAvgM as the heavy ball.
    """
    rate, momentum = optimiser.learning_rate, optimiser.momentum
    now, then = ([tree[leaf_of(name, leaf)] for leaf in AXES] for tree in (model, before))
    terms = [(rate, [b, a]), (1 - rate + momentum, now), (-momentum, then)]
    used = [(weight * left, right) for weight, (left, right) in terms if weight]
    return torch.cat([left for left, _ in used], 1), torch.cat([right for _, right in used], 0)

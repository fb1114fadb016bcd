"""Adapters of unlike rank added exactly: factors side by side, ``sum_i w_i B_i A_i = [w_1 B_1, w_2
B_2, ...] [A_1; A_2; ...]``.

The view `Unlike` and the reducer `Stack` make the sum; the server `Refactored` truncates it by thin
QRs and an SVD (FlexLoRA), and `bayesfed.algorithms.lora.merging` adds it to the weights under the
adapters (FedStackLoRA). No product is formed here.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn import functional

from bayesfed.algorithms.lora.slices import cut_slices
from bayesfed.errors import UpdateError
from bayesfed.federated import FedAvgM, Kind, Phase, Reducer, Sum, Update
from bayesfed.federated.core import MODEL, Info, of, owned
from bayesfed.geometry.thin import product_svd
from bayesfed.trees import Shapes, Tree, check, leaf_of

# Owners of an optimiser's moments, and of the factors of a round ago.
OPTIMISER, BEFORE = "optimiser", "before"


def adapter_leaves(layers: Collection[str]) -> set[str]:
    """Return the names of the factors of these layers."""
    return {leaf_of(name, leaf) for name in layers for leaf in ("lora_b", "lora_a")}


@dataclass(frozen=True)
class Unlike:
    """A view of the leading slices of every adapter and of all other leaves. A payload keeps its
    rank; B and the other leaves are weighted.

    Parameters
    ----------
    rank
        Number of slices k.
    layers
        Names of the layers with adapters.
    expected
        Names and shapes of what a client sends back.
    """

    rank: int
    layers: tuple[str, ...]
    expected: Shapes

    def restrict(self, tree: Tree) -> Tree:
        """Cut the adapters that the tree has."""
        return cut_slices(tree, dict.fromkeys(self.layers, torch.arange(self.rank)))

    def lift(self, payload: Tree, weight: float, kind: Kind) -> Update:
        """Weigh B and the other leaves. A stays as it is, since the product B A takes one
        weight.
        """
        check(payload, self.expected, where="payload")
        unweighted = {leaf_of(name, "lora_a") for name in self.layers}
        return Update(
            {name: leaf if name in unweighted else weight * leaf for name, leaf in payload.items()},
            weight,
            kind,
        )


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
        rest = Update(
            {name: leaf for name, leaf in update.total.items() if name not in factors},
            update.number(),
            update.kind,
        )
        self._rest.add(client, rest)
        if update.number() > 0:
            self._parts[client] = {name: update.total[name] for name in factors}

    def mean(self) -> tuple[dict[str, tuple[Tensor, Tensor]], Tree]:
        """Return B and A of the mean product, ``(m, K)`` and ``(K, n)``, by layer, and the mean of
        the other leaves.

        Raises
        ------
        UpdateError
            If nobody with data took part.
        """
        if self.total is None:
            raise UpdateError("Stack", "an update", "none", "a client with data")
        rest, weight = self.total.mean(), self.total.number()
        pairs, ordered = {}, [self._parts[client] for client in sorted(self._parts)]
        for name in self.layers:
            b, a = (
                torch.cat([part[leaf_of(name, leaf)] for part in ordered], axis)
                for leaf, axis in (("lora_b", 1), ("lora_a", 0))
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
    if not isinstance(reducer, Stack) or reducer.total is None or reducer.total.kind != "factors":
        total = reducer.total if isinstance(reducer, Stack | Sum) else None
        found = f"kind {total.kind!r}" if total else type(reducer).__name__
        raise UpdateError(
            "server step", "a stack of kind 'factors'", found, "reducer=partial(Stack, layers)"
        )
    return reducer


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
        rest = optimiser.initial(
            {name: leaf for name, leaf in initial.items() if name not in factors}
        )
        phase = replace(phase, server=replace(self, optimiser=optimiser), owner="")
        return phase, of(BEFORE, before) | of(OPTIMISER, rest)

    def publish(self, state: Tree, round: int, version: int | None) -> Tree:
        """Publish the model alone."""
        return owned(state, MODEL) if self.optimiser else state

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Factorise the mean product. A round of clients without data changes nothing.

        The report has ``svd_error``, the largest relative error of a layer.
        """
        stack = stacked(reducer)
        if not (stack.total and stack.total.number()):
            return state, {}
        (pairs, rest), errors, own = stack.mean(), [0.0], Tree()
        model = owned(state, MODEL) if self.optimiser else state
        if self.optimiser:
            now = {name: model[name] for name in rest}
            rest, moments = self.optimiser.step(now, rest, owned(state, OPTIMISER))
            before = owned(state, BEFORE)
            pairs = {
                name: self._carried(model, before, name, *pair, self.optimiser)
                for name, pair in pairs.items()
            }
            own = of(BEFORE, {name: model[name] for name in before}) | of(OPTIMISER, moments)
        result = dict(rest)
        for name, (b, a) in pairs.items():
            kept_b, kept_a = refactored(b, a, self.rank)
            result[leaf_of(name, "lora_b")], result[leaf_of(name, "lora_a")] = kept_b, kept_a
            # The share of the product's energy that is left out, from two norms that need no
            # product.
            whole, kept = _energy(b, a), float(kept_b.double().square().sum())
            errors.append((max(0.0, whole - kept) / whole) ** 0.5 if whole else 0.0)
        after = {name: result[name] for name in model}
        info = {"svd_error": max(errors)}
        return of(MODEL, after) | own if self.optimiser else after, info

    def _carried(
        self, model: Tree, before: Tree, name: str, b: Tensor, a: Tensor, optimiser: FedAvgM
    ) -> tuple[Tensor, Tensor]:
        """Return factors of ``P + rate (mean - P) + momentum (P - P before)`` for the product P of
        the model: FedAvgM as the heavy ball.
        """
        rate, momentum = optimiser.learning_rate, optimiser.momentum
        names = [leaf_of(name, leaf) for leaf in ("lora_b", "lora_a")]
        (now_b, now_a), (before_b, before_a) = (
            [tree[leaf] for leaf in names] for tree in (model, before)
        )
        terms = [(rate, b, a), (1 - rate + momentum, now_b, now_a), (-momentum, before_b, before_a)]
        used = [(weight * left, right) for weight, left, right in terms if weight]
        return torch.cat([left for left, _ in used], 1), torch.cat([right for _, right in used], 0)


def _energy(b: Tensor, a: Tensor) -> float:
    b, a = b.double(), a.double()
    return float(((b.mT @ b) * (a @ a.mT)).sum())

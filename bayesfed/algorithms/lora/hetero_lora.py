"""HeteroLoRA (Cho et al., "Heterogeneous LoRA for federated fine-tuning of on-device foundation
models", 2024).

======================  ==============================================
paper                   here
======================  ==============================================
r_k                     one of `ranks`, the leading slices
truncation              `Slices` of the first k
zero-padding            `Slices.lift`; the sum is divided by all weights
||Delta W_k||_F         `ByNorm`, the weight of a client
======================  ==============================================

Rank self-pruning, in which clients drop slices by themselves, is not here: FSLoRA's comparison
fixes ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from bayesfed.algorithms.composing import compose, weighing
from bayesfed.algorithms.lora.adapting import adapted, by_rank
from bayesfed.algorithms.lora.sketch_view import Slices
from bayesfed.algorithms.registry import recipe
from bayesfed.compress import Codec
from bayesfed.federated import Algorithm, Capacity, Kind, Link, Model, Training, Update, View
from bayesfed.geometry.thin import product_norm
from bayesfed.models import Drawn, Likelihood, adapters
from bayesfed.trees import Tree, check, leaf_of, shapes


@dataclass(frozen=True)
class ByNorm:
    """A view around slices that multiplies the weight by the Frobenius norm of all products in the
    payload.
    """

    slices: Slices

    def restrict(self, tree: Tree) -> Tree:
        """Return what the slices return."""
        return self.slices.restrict(tree)

    def lift(self, payload: Tree, weight: float, kind: Kind) -> Update:
        """Lift through the slices, at the multiplied weight."""
        check(payload, self.slices.expected, where="payload")
        pairs = [
            (payload[leaf_of(name, "lora_b")], payload[leaf_of(name, "lora_a")])
            for name in self.slices.drawn
        ]
        norm = math.sqrt(sum(float(product_norm(b, a.mT)) ** 2 for b, a in pairs))
        return self.slices.lift(payload, weight * norm, kind)


@recipe(cites=("cho2024heterogeneous", "hu2021lora"))
def hetero_lora(
    net: nn.Module,
    ranks: Sequence[int],
    capacity: Capacity,
    *,
    by_norm: bool = True,
    by_rows: bool = False,
    likelihood: Likelihood | None = None,
    training: Training | None = None,
    codec: Codec | None = None,
    link: Link | None = None,
) -> Algorithm:
    """Train adapters of unlike rank. Each client trains the leading slices; the average counts
    zeros for clients that lack a slice.

    Parameters
    ----------
    net
        A network from `lora`, at the largest rank. All clients have its scale.
    ranks, capacity
        Numbers of slices of the sizes, falling; and which size a client trains in a round.
    by_norm
        Weigh clients by the norm of their adapters, on top of `by_rows`. If both are false, all
        clients weigh alike.
    training
        Local work of a round. Default: 50 steps of 16 rows with ``Sgd(0.05)``.

    Raises
    ------
    ArgumentError
        If the network has no adapters of one rank, or running statistics, or ranks do not fall from
        at most that to at least 1.
    """
    (_, initial), nets = adapted(net, where="hetero_lora"), by_rank(net, ranks, where="hetero_lora")
    full, layers = shapes(initial), sorted(adapters(net))
    slices = [
        Slices(dict.fromkeys(layers, Drawn(torch.arange(k), torch.ones(k))), full) for k in ranks
    ]
    views: list[View] = [ByNorm(one) if by_norm else one for one in slices]

    def model(size: int, state: Tree) -> Model:
        return Model(nets[size], slices[size].restrict(state))

    work = training or Training(batch_size=16)
    return compose(
        "hetero_lora",
        net,
        [work.fitting(made, likelihood) for made in nets],
        training=work,
        sizes={str(k): partial(model, size) for size, k in enumerate(ranks)},
        view=lambda turn: views[turn.size],
        capacity=capacity,
        weight=weighing(by_rows),
        codec=codec,
        link=link,
    )

"""FSLoRA (Fang et al., "Federated sketching LoRA: on-device collaborative fine-tuning of large
language models").

======================  ==============================================
paper                   here
======================  ==============================================
W_0                     the frozen weights of `lora(net, r, key)`
B, A; r                 leaves ``NAME.lora_b``, ``NAME.lora_a``; `lora_rank`
S_i^t; k_i              `Slices`, drawn anew for every layer; `ranks`
H, gamma, xi            `steps`, the optimiser, `batch_size`
(3), (4)                the gradients of a network of k slices, its scale times ``r / k``
(5)                     `Add`: over all clients that take part, whoever had a slice
ratio k_i / r           `capacity` among `ranks`: `fixed`, `dynamic`, `by_device`
======================  ==============================================

The rows of (3), (4) are those of the printed mode, ``anchored=False``; `anchored` and `sampling`
describe the default.

The total update of section 3.3 lacks a minus sign; (5) adds differences, as this recipe does. Top-k
(C.2) is a codec: ``up=Coded(TopK(0.5))``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Literal

from torch import nn

from bayesfed.algorithms.composing import Turn, compose, weighing
from bayesfed.algorithms.lora.adapting import by_rank, half_frozen
from bayesfed.algorithms.lora.rewriting import Rewritten, put_rewritten, rewritten
from bayesfed.algorithms.lora.sketches import Sketched, Slices, leading
from bayesfed.algorithms.lora.slices import AXES
from bayesfed.algorithms.registry import recipe
from bayesfed.compress import Codec
from bayesfed.errors import ArgumentError
from bayesfed.federated import Adam, Add, Algorithm, Capacity, Link, Local, Training
from bayesfed.federated.core.settings import with_settings
from bayesfed.federated.training.batch_norm import travelling
from bayesfed.keys import Key
from bayesfed.models import (
    Drawn,
    Likelihood,
    adapters,
    importance_sketch,
    lora_rank,
    random_sketch,
    slice_norms,
)
from bayesfed.trees import Tree, leaf_of, shapes

Sampling = Literal["singular", "uniform", "importance"]
# Share of the probability of singular values that is the same for all slices.
FLOOR = 0.1


@recipe(cites=("fang2025federated", "hu2021lora"))
def fs_lora(
    net: nn.Module,
    ranks: Sequence[int],
    capacity: Capacity,
    *,
    anchored: bool = True,
    train_a: bool = True,
    sampling: Sampling | None = None,
    by_coverage: bool = False,
    broadcast: bool = False,
    likelihood: Likelihood | None = None,
    training: Training | None = None,
    by_rows: bool = False,
    codec: Codec | None = None,
    up: Codec | None = None,
    link: Link | None = None,
) -> Algorithm:
    """Train adapters of one rank on devices of unlike strength. Each client trains some slices,
    drawn anew every round.

    As printed (``anchored=False``), a client's network has the drawn slices alone, multiplied by
    ``r / k``. Anchored, its network is the server's: it computes with the other slices too, as a
    thin branch that it does not train, and trains the drawn ones at their own scale. What is
    trained and sent up is the same. By default slices are those of ``(U S, V^T)``, the adapter's
    product rewritten before each round, and are drawn by their singular values.

    Parameters
    ----------
    net
        A network from `lora`. Its adapters and head are trained and travel; all clients share the
        frozen rest in memory.
    ranks
        Numbers of slices k of the sizes, falling. The adapters' own rank alone is federated LoRA.
    capacity
        Which size a client trains in a round.
    anchored
        Compute with slices that were not drawn. The default, since it is ahead where rank matters
        and no worse elsewhere (``benchmarks/fslora.py``). False is FSLoRA as printed.
    train_a
        False freezes A as it was drawn (FFA-LoRA), for anchored sketches: only slices of B are
        trained, A never travels, and a client sends and receives about half as much.
    sampling
        "singular" rewrites adapters, and draws slices in proportion to their singular values, but
        for a tenth of the probability, which is the same for all. "uniform" is the paper's;
        "importance" draws slices of the factors as they are, by their norm and evenly in halves.
        In the printed mode each drawn slice is then multiplied by one over its probability; the
        multipliers travel down. Default: "singular" for anchored sketches of both factors,
        otherwise "uniform". Where all clients train all slices nothing is drawn nor rewritten.
    by_coverage
        Divide what was added to a slice by the weights of the clients that had it, not of all
        clients as in (5). Only in the printed mode: anchored clients each correct the whole error.
    broadcast
        Send whole adapters and let clients cut their slices, as in the paper. False sends only the
        slices that are trained and, anchored, the others in 4 bits an entry.
    training
        Local work of a round. Default: 50 steps of 16 rows with ``Adam(1e-3)``, as far for every
        rank; ``Sgd(0.05)`` moves adapters of rank 64 by a few thousandths of a weight.
    by_rows
        Weigh clients by their rows. Default: all alike, as in (5).
    codec, up
        Codec of the down-link, by default 32-bit floats; codec of the changes, by default the same.
    likelihood, link
        As in `fed_avg`.

    Raises
    ------
    ArgumentError
        If the network has no adapters of one rank, or running statistics, ranks do not fall from at
        most that to at least 1, there is no such sampling, an anchored sum or one of rewritten
        slices is to be divided by coverage, A is to be frozen in the printed mode, or adapters are
        to be rewritten whose A is frozen.

    References
    ----------
    Fang et al., "Federated Sketching LoRA: On-Device Collaborative Fine-Tuning of Large Language
    Models" (2025); Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models" (2021).
    """
    if anchored and by_coverage:
        raise ArgumentError(
            "fs_lora, by_coverage", "False for anchored sketches", True, "anchored=False"
        )
    if not (anchored or train_a):
        raise ArgumentError("fs_lora, train_a", "True in the printed mode", False, "anchored=True")
    net = net if train_a else half_frozen(net)
    rank, full = lora_rank(net), shapes(travelling(net, "static", where="fs_lora"))
    layers = sorted(adapters(net))
    frozen = {
        leaf: layer.lora_a.detach()
        for name, layer in adapters(net).items()
        if (leaf := leaf_of(name, "lora_a")) not in full
    }
    both = all(leaf_of(name, leaf) in full for name in layers for leaf in AXES)
    if sampling == "singular" and (by_coverage or not both):
        raise ArgumentError(
            "fs_lora, sampling",
            "slices as they are, where a factor is frozen or sums are divided by coverage",
            sampling,
            'sampling="uniform"',
        )
    if sampling is None:
        sampling = "singular" if anchored and both else "uniform"
    weighted, rewrites = sampling != "uniform", sampling == "singular" and list(ranks) != [rank]
    multiplied = weighted and not anchored
    nets = by_rank(net, ranks, where="fs_lora", sketched=not (anchored or weighted))
    # Of the round's state, which is the same for all its clients.
    rewrite = lru_cache(len(layers))(rewritten)

    @with_settings(rank=rank, rewrites=rewrites, weighted=weighted)
    def draw(tree: Tree, name: str, k: int, key: Key) -> Drawn:
        if not weighted:
            return random_sketch(rank, k, key)
        norms = slice_norms(tree[leaf_of(name, "lora_b")], tree[leaf_of(name, "lora_a")])
        return importance_sketch(norms, k, key, floor=FLOOR if rewrites else 0.5)

    @with_settings(
        anchored=anchored,
        broadcast=broadcast,
        by_coverage=by_coverage,
        frozen=frozen,
        full=full,
        multiplied=multiplied,
        rank=rank,
    )
    def slices(
        drawn: Mapping[str, Drawn], k: int, bases: Mapping[str, Rewritten] | None = None
    ) -> Slices:
        return Slices(
            drawn,
            full,
            multiplied,
            broadcast and (k < rank or not anchored),
            bool(frozen),
            by_coverage=by_coverage,
            anchored=anchored and not broadcast,
            bases=bases or {},
        )

    @with_settings(
        draw=draw,
        frozen=frozen,
        layers=layers,
        ranks=ranks,
        rewrite=rewrite,
        rewrites=rewrites,
        slices=slices,
    )
    def view(turn: Turn) -> Slices:
        key, k, every = turn.key.child("sketch"), ranks[turn.size], frozen | turn.state
        bases = {
            name: rewrite(every[leaf_of(name, "lora_b")], every[leaf_of(name, "lora_a")])
            for name in (layers if rewrites else ())
        }
        every = put_rewritten(every, bases)
        drawn = {name: draw(every, name, k, key.child(name)) for name in layers}
        return slices(drawn, k, bases)

    def trained(made: nn.Module, k: int) -> Local:
        fitting = work.fitting(made, likelihood, "delta")
        tells = slices(leading(layers, k), k).tells
        return Sketched(fitting, made, anchored, frozen) if tells else fitting

    work = training or Training(batch_size=16, optimiser=Adam(1e-3))
    return compose(
        "fs_lora",
        net,
        [trained(made, k) for made, k in zip(nets, ranks, strict=True)],
        Add(),
        training=work,
        view=view,
        capacity=capacity,
        weight=weighing(by_rows),
        codec=codec,
        up=up,
        link=link,
    )

"""FedHM (Yao et al., "FedHM: efficient federated learning for heterogeneous models via low-rank
factorization").

======================  ==============================================
paper                   here
======================  ==============================================
w_t                     the whole network in the state
[rho, L, gamma]         `whole` (a predicate, such as `whole_first(net, rho)`) and `ratios`
w_0                     `start`: of the smallest rank, or as printed the network's own
U, V^T of W             leaves ``NAME.u``, ``NAME.v``
alpha_p, tau (2)        `temperature`; infinity weighs all sizes alike
lambda / 2 ||U V||^2    `decay`, a Gaussian prior on the product
fixed, dynamic          `capacity`: `fixed`, `dynamic`, `by_device`
======================  ==============================================
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Literal

from torch import nn

from bayesfed.algorithms.composing import Turn, compose, weighing
from bayesfed.algorithms.fed_hm.factored import Factored, Refactor
from bayesfed.algorithms.registry import recipe
from bayesfed.compress import Codec
from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import NOT_NEGATIVE, Role, number, whole
from bayesfed.federated import Algorithm, Buffers, Capacity, Link, Local, Model, Profile, Training
from bayesfed.federated.core import MODEL, owned
from bayesfed.federated.core.settings import with_settings
from bayesfed.federated.training.batch_norm import buffered, predicting, travelling
from bayesfed.federated.training.descent import LocalClasses
from bayesfed.inference import MaximumLikelihood
from bayesfed.inference.objectives.weight_decay import Decayed
from bayesfed.models import Categorical, Likelihood, hybrid, hybrid_ranks, unrollings
from bayesfed.models.low_rank.hybrid import Convention, Whole
from bayesfed.models.low_rank.unrolling import Split
from bayesfed.models.modules import constants, layer_weights, selected
from bayesfed.trees import Tree, leaf_of, shapes

RESIDUAL = Role(
    lambda value: value in ("dropped", "kept") or whole(0, "3").fits(value),
    "'dropped', 'kept' or a number of rounds >= 0",
    "'kept'",
)


# That of the paper's networks at 1/8. A ResNet of an eighth of their width, whose ranks are 1 to 8
# without it, ends several points higher at all sizes.
MIN_RANK = 8


@recipe(
    cites=("yao2021fedhm",),
    residual=RESIDUAL,
    min_rank=whole(1, "8"),
    decay=NOT_NEGATIVE,
    temperature=number("(0, inf]", "math.inf"),
)
def fed_hm(
    net: nn.Module,
    ratios: Sequence[float],
    capacity: Capacity,
    *,
    whole: Whole | None = None,
    convention: Convention = "output",
    split: Split = "spatial",
    min_rank: int | None = None,
    likelihood: Likelihood | None = None,
    training: Training | None = None,
    decay: float = 1e-4,
    temperature: float = math.inf,
    by_rows: bool = True,
    masked: bool = False,
    start: Literal["low rank", "whole"] = "low rank",
    residual: Literal["dropped", "kept"] | int = "dropped",
    warm: bool = True,
    codec: Codec | None = None,
    link: Link | None = None,
    buffers: Buffers = "static",
) -> Algorithm:
    """Train one network on devices of unlike strength. Each client gets it factored at its own
    share of the rank.

    Parameters
    ----------
    net
        The whole network. `Algorithm.sizes` has it at every ratio.
    ratios
        Shares of the rank, largest first; 1 is the whole network.
    capacity
        Which ratio a client trains in a round.
    whole
        Layers that are never factored, as in `hybrid_ranks`, besides those that are frozen or
        cannot be. Default: the first layer with a matrix, in the order of registration, and the
        last, the classifier; the classifier alone where no other layer could be factored.
    convention, split
        Meaning of a ratio, as in `hybrid_ranks`. A layer is factored at a ratio only where its
        factors are smaller than it is, so a smaller ratio is never a larger network.
    min_rank
        Smallest rank of a factored layer; one that is no smaller at this rank stays whole. Layers
        of one or two ranks in a row hold back all sizes. Two ratios may so be the same network.
        Default: 8, the smallest rank in the paper's networks, or 1 where no layer could be factored
        then. 1: as the ratios say.
    training
        Local work of a round. Default: 50 steps of 64 rows with ``Sgd(0.05)``. The decay belongs to
        the objective, since an optimiser's own would decay the factors one by one.
    decay
        Precision per row of the Gaussian prior on every weight, and on products where layers are
        factored; 0 for none.
    temperature
        tau of (2): sizes weigh ``exp(ratio / tau)``. The paper uses 5 for dynamic heterogeneity.
    by_rows
        Weigh clients by their rows as well, as `fed_avg` and the rivals do. False: by sizes alone,
        as printed.
    masked
        Train with the logits of classes that a client has no rows of set to zero, as in `fed_avg`;
        the paper does so for all methods.
    start
        "low rank": every layer that is factored begins as its best approximation of the smallest
        rank, scaled to the layer's own norm, which for a fresh network is a random one of this
        rank. No client then begins with what a truncation leaves of noise. "whole": as printed, the
        network as it is; take it for one that was trained before.
    residual
        Treatment of the part of a layer that a client's rank leaves out. "dropped", as published,
        shrinks it every round by the share of factored clients, so that all sizes converge to one
        model of low rank. "kept" adds the changes of clients to the whole, which is best for the
        whole network and worst for the smallest sizes where clients are unlike. A number keeps it
        for this many rounds and then drops it; from the network's own start that is better than
        either (`benchmarks/parts/fedhm/settings.toml`), from a low rank it is not.
    warm
        Factorise by subspace iteration from the last round's vectors. False computes an exact SVD
        of every layer in every round.
    buffers
        Policy of running statistics, as in `fed_avg`. The paper's networks are static;
        `batch_statistics` then queries every size.
    likelihood, codec, link
        As in `fed_avg`.

    Raises
    ------
    ArgumentError
        If there are no ratios or they do not fall, one is outside (0, 1], no layer is smaller as
        factors at the last, `decay`, `temperature` or `residual` is out of range, or the network
        has running statistics and `buffers` is "static".

    References
    ----------
    Yao et al., "FedHM: Efficient Federated Learning for Heterogeneous Models via Low-rank
    Factorization" (2021).
    """
    if not ratios or any(b >= a for a, b in pairwise(ratios)):
        raise ArgumentError(
            "fed_hm, ratios", "falling shares of the rank", list(ratios), "[1, 1 / 2, 1 / 4, 1 / 8]"
        )
    kept = residual if isinstance(residual, int) else math.inf if residual == "kept" else 0
    initial = travelling(net, buffers, where="fed_hm")
    ranks = _ranks(net, ratios, whole, convention, split, min_rank)
    nets = [hybrid(net, share, whole=whole, split=split) if share else net for share in ranks]
    layers = {name: layout for made in nets for name, layout in unrollings(made).items()}
    work, scored = training or Training(), likelihood or Categorical()
    server = Refactor(layers, tuple(share for share in ranks if share), warm)
    views = [
        Factored(layers, share, shapes(travelling(made, buffers, where="fed_hm")))
        for share, made in zip(ranks, nets, strict=True)
    ]

    @with_settings(kept=kept, views=views)
    def view(turn: Turn) -> Factored:
        return replace(views[turn.size], base=turn.state) if turn.round < kept else views[turn.size]

    @with_settings(by_rows=by_rows, ratios=ratios, temperature=temperature)
    def weight(profile: Profile, size: int) -> float:
        return math.exp(ratios[size] / temperature) * weighing(by_rows)(profile, size)

    def local(made: nn.Module) -> Local:
        descent = work.descent(Decayed(MaximumLikelihood(made, scored), decay), made)
        return buffered(LocalClasses(descent, made, scored) if masked else descent, made, buffers)

    def model(size: int, state: Tree) -> Model:
        return Model(served[size], views[size].restrict(state))

    def largest(state: Tree) -> Model:
        return Model(whole_net, owned(state, MODEL))

    whole_net, *served = (predicting(made, buffers) for made in (net, *nets))
    return compose(
        "fed_hm",
        net,
        [local(made) for made in nets],
        server,
        training=work,
        initial=server.start(initial, ranks[-1] if start == "low rank" else None),
        predictor=largest,
        sizes={f"{ratio:g}": partial(model, size) for size, ratio in enumerate(ratios)},
        view=view,
        capacity=capacity,
        weight=weight,
        codec=codec,
        link=link,
        buffers=buffers,
        owner="",
    )


def _ranks(
    net: nn.Module,
    ratios: Sequence[float],
    whole: Whole | None,
    convention: Convention,
    split: Split,
    min_rank: int | None,
) -> list[dict[str, int]]:
    """Return the ranks of the factored layers at every ratio."""
    frozen = constants(net)

    def found(least: int) -> list[dict[str, int]]:
        return [
            {
                name: rank
                for name, rank in hybrid_ranks(
                    net, ratio, whole=whole, convention=convention, split=split, min_rank=least
                ).items()
                if leaf_of(name, "weight") not in frozen
            }
            for ratio in ratios
        ]

    choices = [found(least) for least in ((MIN_RANK, 1) if min_rank is None else (min_rank,))]
    if whole is None:
        names = [name for name, _ in net.named_parameters()]
        order = [name.rpartition(".")[0] for name in selected(net, names, layer_weights)]
        choices = [
            _without(ranks, kept)
            for kept in ([order[0], order[-1]], order[-1:])
            for ranks in choices
        ]
    ranks = next((ranks for ranks in choices if ranks[-1]), choices[-1])
    if ratios[-1] < 1 and not ranks[-1]:
        raise ArgumentError(
            "fed_hm, ratios",
            "a layer, neither kept whole nor frozen, whose factors are smaller than it is",
            f"none at {list(ratios)}" + (f", min_rank={min_rank}" if min_rank else ""),
            f"smaller ratios{', min_rank=1' if min_rank else ''}, or fed_avg(net)",
        )
    return ranks


def _without(ranks: Sequence[Mapping[str, int]], names: Collection[str]) -> list[dict[str, int]]:
    return [{name: rank for name, rank in share.items() if name not in names} for share in ranks]

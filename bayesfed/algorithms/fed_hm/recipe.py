"""FedHM (Yao et al., "FedHM: efficient federated learning for heterogeneous models via low-rank factorization").

======================  ==============================================
paper                   here
======================  ==============================================
w_t                     the whole network in the state
[rho, L, gamma]         `whole` (a predicate, such as `whole_first(net, rho)`) and `ratios`
U, V^T of W             leaves ``NAME.u``, ``NAME.v``
alpha_p, tau (2)        `temperature`; infinity weighs all sizes alike
lambda / 2 ||U V||^2    `decay`, a Gaussian prior on the product
fixed, dynamic          `capacity`: `fixed`, `dynamic`, `by_device`
======================  ==============================================
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Literal

from torch import nn

from bayesfed.algorithms.fed_hm.server import Refactor
from bayesfed.algorithms.fed_hm.view import Factored
from bayesfed.compress.codecs import Cast, Codec
from bayesfed.errors import ArgumentError, complain
from bayesfed.federated.core.algorithm import Algorithm, Model, Phase
from bayesfed.federated.core.protocols import Assignment, Link, Local, Profile
from bayesfed.federated.links.digital import Digital
from bayesfed.federated.training.batch_norm import Buffers, buffered, predicting, travelling
from bayesfed.federated.training.descent import Descent, LocalClasses, draws_globally
from bayesfed.federated.training.model_sizes import Capacity, Sized
from bayesfed.federated.training.optimisers import Optimiser, Sgd
from bayesfed.federated.training.schedules import Schedule, constant
from bayesfed.inference.objectives.likelihood import MaximumLikelihood
from bayesfed.inference.objectives.weight_decay import Decayed
from bayesfed.keys import Key
from bayesfed.models.low_rank.factored_layers import Split
from bayesfed.models.low_rank.factored_trees import unrollings
from bayesfed.models.low_rank.hybrid import Convention, Whole, hybrid, hybrid_ranks
from bayesfed.models.priors.likelihoods import Categorical, Likelihood
from bayesfed.trees import Tree, shapes


def fed_hm(
    net: nn.Module,
    ratios: Sequence[float],
    capacity: Capacity,
    *,
    whole: Whole | None = None,
    convention: Convention = "output",
    split: Split = "spatial",
    likelihood: Likelihood | None = None,
    steps: int = 50,
    batch_size: int = 64,
    optimiser: Optimiser | None = None,
    schedule: Schedule = constant,
    decay: float = 1e-4,
    temperature: float = math.inf,
    by_rows: bool = False,
    masked: bool = False,
    residual: Literal["dropped", "kept"] | int = "dropped",
    warm: bool = True,
    codec: Codec | None = None,
    link: Link | None = None,
    buffers: Buffers = "static",
) -> Algorithm:
    """Train one network on devices of unlike strength: each gets it factored at its own share of the rank.

    Parameters
    ----------
    net
        The whole network; `Algorithm.sizes` has it at every ratio.
    ratios
        Shares of the rank, largest first; 1 is the whole network.
    capacity
        The number of the ratio that a client trains in a round.
    whole, convention, split
        What is never factored, and what a ratio means: as `hybrid_ranks`.
    steps, batch_size, optimiser, schedule
        Local work of a round; default SGD at 0.05. The decay is the objective's: an optimiser's own would decay factors one by one.
    decay
        Precision of the Gaussian prior per row on every weight, on products where layers are factored. 0 is none.
    temperature
        tau of (2): sizes are weighed by ``exp(ratio / tau)``. The paper has 5 for dynamic heterogeneity.
    by_rows
        Weigh clients by their rows as well.
    masked
        Leave out of the loss the classes a client has no rows of, as the paper does for all methods; targets must be classes.
    residual
        What becomes of the part of a layer that a client's rank leaves out: "dropped", as published, shrinks it every round by the share of
        factored clients, so that all sizes end up with one model of low rank; "kept" adds their changes to the whole, which serves the whole best
        and the smallest sizes worst where clients are unlike. A number keeps it for so many rounds and then drops it: kept until the rate first
        falls, all sizes end up alike and near the best of both (`benchmarks/fedhm.toml` has figures).
    warm
        Factorise by subspace iteration from last round's vectors; False: by an exact SVD a layer and round.
    buffers
        What becomes of running statistics, as in `fed_avg`. The paper's networks are static, and `batch_statistics` queries every size.

    Raises
    ------
    ArgumentError
        If there are no ratios or they do not fall, one is outside (0, 1], nothing can be factored, `decay`, `temperature` or `residual` is out of
        range, or the network has running statistics and `buffers` is "static".
    """
    if not ratios or any(b >= a for a, b in pairwise(ratios)):
        raise ArgumentError(complain("fed_hm, ratios", expected="falling shares of the rank", actual=list(ratios), hint="[1, 1 / 2, 1 / 4, 1 / 8]"))
    if isinstance(residual, bool) or not (residual in ("dropped", "kept") or (isinstance(residual, int) and residual >= 0)):
        expected = "'dropped', 'kept' or a number of rounds >= 0"
        raise ArgumentError(complain("fed_hm, residual", expected=expected, actual=repr(residual), hint="'kept'"))
    kept = residual if isinstance(residual, int) else math.inf if residual == "kept" else 0
    if not (decay >= 0 and temperature > 0):
        raise ArgumentError(complain("fed_hm", expected="decay >= 0 and temperature > 0", actual=(decay, temperature), hint="1e-4, math.inf"))
    initial = travelling(net, buffers, where="fed_hm")
    ranks = tuple(hybrid_ranks(net, ratio, whole=whole, convention=convention, split=split) for ratio in ratios)
    nets = [hybrid(net, share, whole=whole, split=split) if share else net for share in ranks]
    layers = {name: layout for made in nets for name, layout in unrollings(made).items()}
    scored = likelihood or Categorical()
    codec, server = codec or Cast(32), Refactor(layers, tuple(share for share in ranks if share), warm)
    views = [Factored(layers, share, shapes(travelling(made, buffers, where="fed_hm"))) for share, made in zip(ranks, nets, strict=True)]

    def assign(state: Tree, round: int, profile: Profile, key: Key) -> Assignment:
        size = capacity(profile, round, key)
        weight = math.exp(ratios[size] / temperature) * (profile.samples if by_rows else float(profile.samples > 0))
        view = replace(views[size], base=state) if round < kept else views[size]
        return Assignment(view, weight, codec, codec, {"learning_rate": schedule(round), "size": size})

    def local(made: nn.Module) -> Local:
        objective = partial(_objective, made, decay)
        descent = Descent(objective(scored), optimiser or Sgd(), steps, batch_size, "value", draws_globally(made))
        return buffered(LocalClasses(descent, objective, scored) if masked else descent, made, buffers)

    def model(size: int, state: Tree) -> Model:
        return Model(served[size], views[size].restrict(state))

    def largest(state: Tree) -> Model:
        return Model(whole_net, Factored(layers, {}, {}).restrict(state))

    whole_net, *served = (predicting(made, buffers) for made in (net, *nets))
    phase = Phase("train", assign, Sized(tuple(local(made) for made in nets)), server, link or Digital())
    sizes = {f"{ratio:g}": partial(model, size) for size, ratio in enumerate(ratios)}
    return Algorithm("fed_hm", server.start(initial), (phase,), largest, sizes=sizes)


def _objective(net: nn.Module, decay: float, likelihood: Likelihood) -> Decayed:
    return Decayed(MaximumLikelihood(net, likelihood), decay)

"""FedRLR (Xue and Lau, "Riemannian low-rank model compression for federated learning with
over-the-air aggregation").

======================  ==============================================
paper                   here
======================  ==============================================
Theta = U Sigma V^T     leaves ``NAME.u``, ``NAME.s``, ``NAME.v``
R                       `rank`
eta = q / (nu + t)      ``Training(optimiser=Sgd(q / (nu K)), schedule=inverse(nu))``
mu = c_1 / eta          `consensus` c_1 / K, as eta mu / K is what a step does
D_m                     `Training.batch_size`
S_U, S_V, F             `Factors`
(29), CI                `OverTheAir(Gbma("product"), ...)`, `OverTheAir(ChannelInversion(...), ...)`
======================  ==============================================

The paper's loss is f / K, so its eta is K times the learning rate of a local SGD. It sends factors,
keeps every client's own Theta_k and takes one step a round: ``fed_rlr(net, 4,
transmission=Factors(), reset=False, training=Training(steps=1), consensus=c_1 / K, ...)``. The
default sends tangent vectors at the broadcast model, which the air adds without precoder and cross
terms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from torch import nn

from bayesfed.algorithms.composing import Turn, compose, weighing
from bayesfed.algorithms.fed_rlr.encodings import Retraction, Tangents, Transmission
from bayesfed.algorithms.fed_rlr.local import RiemannianOptions, RiemannianSgd, sent_shapes
from bayesfed.algorithms.fed_rlr.server import Retract
from bayesfed.algorithms.registry import recipe
from bayesfed.compress import Codec
from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import ITSELF, check, number
from bayesfed.federated import Algorithm, Keep, Link, Sgd, Sum, Training, Whole
from bayesfed.federated.core import seams
from bayesfed.federated.core.settings import with_settings
from bayesfed.federated.training.batch_norm import travelling
from bayesfed.federated.training.local_work import check_own_steps
from bayesfed.geometry import metric_retraction
from bayesfed.models import Categorical, Likelihood, fixed_rank
from bayesfed.models.live import check_modes
from bayesfed.models.low_rank.thin_layers import fixed_rank_layers
from bayesfed.models.modules import constants, weight_matrices
from bayesfed.trees import trainable

# What a step may take back of its distance.
SHARE = number("[0, 1]", "0.0006")


@recipe(
    cites=("xue2023riemannian",), rank=ITSELF, consensus=ITSELF, clip=number("(0, inf]", "math.inf")
)
def fed_rlr(
    net: nn.Module,
    rank: int | float | Mapping[str, int] | None,
    *,
    likelihood: Likelihood | None = None,
    training: Training | None = None,
    consensus: float | Callable[[int], float] = 0.0,
    reset: bool = True,
    clip: float = math.inf,
    transmission: Transmission | None = None,
    retraction: Retraction = metric_retraction,
    link: Link | None = None,
    codec: Codec | None = None,
) -> Algorithm:
    """Train weights of fixed rank, from the best low-rank approximation of the network's own
    weights.

    Parameters
    ----------
    net
        Any network, or one from `fixed_rank` with `rank` None.
    rank
        As in `fixed_rank`: one rank for all layers, ranks by name, or the share of each layer's
        numbers to keep. Frozen layers stay as they are.
    training
        Riemannian SGD of a round, whose optimiser is a plain `Sgd`: at full rank, with one step, it
        is FedAvg of the same rate. Default: 50 steps of 64 rows with ``Sgd(0.2)``: a low rank
        leaves little of drawn weights, and gradients through them are small.
    consensus
        Share of its distance to the broadcast model that a step takes back, or ``round -> share``.
    reset
        Begin rounds at the broadcast model. False, as in the paper, keeps every client's own model.
    clip
        Largest norm of a step's gradient, since steps on thin networks are long where singular
        values are small. Default: no limit.
    transmission
        `Tangents()` (default), `Factors("rademacher" | "orthogonal")`, or `Points()` for digital
        links.
    retraction
        Retraction of the clients' steps.
    link
        How payloads reach the server. Default: `Digital()`.
    codec
        Codec of both directions. Default: 32-bit floats.
    likelihood
        As in `fed_avg`.

    Raises
    ------
    ArgumentError
        If a rank is impossible, nothing has fixed rank, the optimiser is not a plain `Sgd`, `clip`
        is not positive, the network has running statistics, `consensus` is outside [0, 1] (in its
        round, if it is a function), or `Points()` should go over the air.

    References
    ----------
    Xue and Lau, "Riemannian Low-Rank Model Compression for Federated Learning With Over-the-Air
    Aggregation" (2023).
    """
    work = training or Training()
    sgd = work.optimiser or Sgd(0.2)
    if not isinstance(sgd, Sgd) or sgd.momentum or sgd.weight_decay or sgd.clip < math.inf:
        raise ArgumentError(
            "fed_rlr, training.optimiser", "Sgd without momentum and decay", sgd, "Sgd(0.05)"
        )
    check_own_steps(work, "fed_rlr")
    if not callable(consensus):
        check("fed_rlr, consensus", consensus, SHARE)
    travelling(net, "static", where="fed_rlr")
    check_modes(net, "fed_rlr")
    still = constants(net)

    def trained(name: str, module: nn.Module) -> bool:
        return name not in still and weight_matrices(name, module)

    thin = net if rank is None else fixed_rank(net, rank, where=trained)
    sending, layers = transmission or Tangents(), tuple(fixed_rank_layers(thin))
    if not layers:
        raise ArgumentError(
            "fed_rlr", "layers of fixed rank", "none", "a rank, or fixed_rank(net, rank)"
        )
    if link and not seams.one_by_one(link) and not sending.adds:
        raise ArgumentError(
            "fed_rlr, OverTheAir",
            "a transmission that adds",
            type(sending).__name__,
            "Tangents(), or Digital()",
        )

    @with_settings(consensus=consensus, work=work)
    def options(turn: Turn) -> RiemannianOptions:
        pull = consensus(turn.round) if callable(consensus) else consensus
        check(f"fed_rlr, consensus, round {turn.round}", pull, SHARE)
        return work.options_as(RiemannianOptions, turn.round, turn.profile.samples, pull=pull)

    local = RiemannianSgd(
        thin,
        likelihood or Categorical(),
        sending,
        sgd.learning_rate,
        work.steps,
        work.batch_size,
        retraction,
        reset,
        clip,
    )
    return compose(
        "fed_rlr",
        thin,
        local,
        Retract(sending, layers),
        training=work,
        initial=trainable(thin),
        view=with_settings(layers=layers, sending=sending)(
            lambda turn: Whole(sent_shapes(turn.state, sending, layers))
        ),
        weight=weighing(sending.weighs),
        options=options,
        codec=codec,
        link=link,
        reducer=Sum if sending.adds else Keep,
    )

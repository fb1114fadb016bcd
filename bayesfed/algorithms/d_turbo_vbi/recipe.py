"""D-Turbo-VBI (Xia, Tsang and Lau, "Bayesian federated model compression for communication and
computation efficiency").

======================  ==============================================
paper                   here
======================  ==============================================
w, rho, s               sites ``NAME.w``, ``NAME.rho``, ``NAME.s``
mu, sigma               ``mean``, ``sd``
pi-tilde of (8)         sigmoid of ``log_odds``
pi of (9), v_{h -> s}   sigmoid of ``prior_log_odds``
v_{eta -> s}            ``evidence``
a, b, a-bar, b-bar      `Gammas`: shapes and rates, spike first
p((x, y) in D_t)        weight N_t / N of the sum
1 / p(...) of (21)      `likelihood_scale` "global": N / N_t
I_cl, I_glob, eta       `steps`, rounds, optimiser x schedule
======================  ==============================================

An inactive entry (q(s) <= 1/2) is zero in the transmitted model and has mean 0 and the spike's sd
at the server. It is neither sent nor trained. Its evidence is that of a mean of 0 under the sd of
the round. It returns, at zero, when its neighbours' messages outweigh that evidence. The report
counts returns as ``reactivated``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import torch

from bayesfed.algorithms.composing import Turn, compose
from bayesfed.algorithms.d_turbo_vbi.active import Gathered, Scattered, sent
from bayesfed.algorithms.d_turbo_vbi.changes import Changes
from bayesfed.algorithms.d_turbo_vbi.density import ToDensity, no_field
from bayesfed.algorithms.d_turbo_vbi.held_out import HeldOut
from bayesfed.algorithms.d_turbo_vbi.returns import (
    SAID,
    STANDS,
    Asked,
    Returns,
    Speaking,
    settled,
)
from bayesfed.algorithms.d_turbo_vbi.server import WATCH, TurboStep
from bayesfed.algorithms.d_turbo_vbi.totals import missed
from bayesfed.algorithms.d_turbo_vbi.watch import NLL, Scored, Watch
from bayesfed.algorithms.registry import recipe
from bayesfed.compress import Cast, Codec
from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import POSITIVE, number, whole
from bayesfed.federated import (
    Active,
    Adam,
    Algorithm,
    Holding,
    Link,
    Local,
    LocalOptions,
    Model,
    Server,
    Training,
    View,
)
from bayesfed.federated.core.seams import inner_codec
from bayesfed.federated.core.settings import with_settings
from bayesfed.federated.training.held_out_scores import SCORES
from bayesfed.federated.training.observations import all_rows, counting
from bayesfed.inference import Exchange, MeanFieldElbo, Structured
from bayesfed.inference.turbo.blocks import Blocks
from bayesfed.inference.turbo.elbo import POINT, TEMPERATURE, Spread
from bayesfed.inference.turbo.support_posterior import DeclaredPosterior
from bayesfed.models import Declared
from bayesfed.models.likelihoods.rows import temperature_of
from bayesfed.models.priors.tempering import tempered
from bayesfed.trees import Tree, under

# More rounds than any run has.
NEVER = 1 << 31
LikelihoodScale = Literal["global", "local"]


@recipe(
    cites=("xia2024bayesian",),
    initial_sd=POSITIVE,
    initial_inclusion=number("(0.5, 1)", "0.9"),
    inclusion_levels=whole(1, "16", 256),
    warm_up=whole(0, "20"),
)
def d_turbo_vbi(
    declared: Declared,
    *,
    observations: int | None = None,
    likelihood_scale: LikelihoodScale = "global",
    temperature: float | Literal["auto"] | None = None,
    training: Training | None = None,
    codec: Codec | None = None,
    changes: Changes | None = None,
    returns: Returns | None = None,
    spread: Spread = "shared",
    initial_sd: float | None = None,
    initial_inclusion: float | None = None,
    blocks: Blocks | None = None,
    exchange: Exchange | None = None,
    density: float | ToDensity | None = None,
    field: Callable[[int], float] | None = None,
    warm_up: int = 0,
    inclusion_levels: int | None = None,
    before_averaging: bool = False,
    use_prior: bool = True,
    sample: bool = True,
    link: Link | None = None,
) -> Algorithm:
    """Fit a sparse posterior of a network's weights, in which active weights come in clusters.

    The published algorithm is ``field=no_field, blocks=MeanField(as_printed=True), codec=Cast(16),
    temperature=1.0, before_averaging=True``, but for two steps: q(s) is Module B's belief at once,
    where Algorithm 1 waits half a round for line 11; and an entry with q(s) <= 1/2 is not trained,
    and judged by a mean of 0.

    Parameters
    ----------
    declared
        The network with its prior and likelihood.
    observations
        N, the number of rows of all clients. Default: the pool's, where the temperature is known.
    likelihood_scale
        "global" lets each client's rows stand for all N, (21). "local" counts them once, which
        makes averaged posteriors too wide.
    temperature
        Temperature of the likelihood, where the likelihood leaves it open. "auto": it is chosen in
        every round on a tenth of each client's rows, which are then not trained on; see
        `bayesfed.federated.training.held_out_scores`. Default: a tenth of the number of rows for
        each weight, at most 1: the prior of a weight counts at most as a tenth of a row does.
    training
        Local work of a round. Default: 50 steps of 64 rows with ``Adam(2e-3)``.
    codec
        Codec of both directions, with which active means are sent whole: ``Cast(16)`` as in the
        paper. Default: changes of means are sent instead.
    changes
        How changes of active means are sent in both directions, and what the clients hold before
        round 0. Default: `Changes()`, unless a codec or a link is given.
    returns
        How weights that are off return by their own data: clients send the signs of the largest
        slopes of the local ELBO at zero, in sds; `bayesfed.inference.turbo.returning` derives it.
        Default: `Returns()` where `changes` learn from a start of at most 3 % of the weights;
        ``Returns(share=0)`` is none.
    spread, initial_sd
        One posterior sd for all weights, for each "layer" or for each "weight"; its initial value.
        Default of that: a tenth of the initial scale of the (narrowest) layer.
    initial_inclusion
        pi-tilde before round 0; a-tilde and b-tilde follow from it by (17). The paper leaves it
        open. Default: 1, nearly. Under `MeanField`, which keeps an entry whose precision says that
        it is on, it decides how much can be switched off.
    blocks
        `Structured()` (default) or the published `MeanField()`.
    exchange
        Exchange between Module A and Module B in a round.
    density
        Share of the weights under the prior that are active in the end, or a `ToDensity`, which
        says how it gets there. Default: 0.33, unless `field` is given.
    field
        Log-odds that are added to the prior in each round, in place of a density. Then no layer
        has a floor, and no round is taken back. ``no_field`` leaves the number of active weights
        to prior and temperature.
    warm_up
        Number of rounds in which nothing is switched off, so that weights are judged by the data
        and not by their initial values.
    inclusion_levels
        Number of levels, 1 to 256, to which q(s) is rounded for the clients, who weigh prior
        precisions by it; 16 cost less than four bits an entry. With 1 it is not sent: clients
        compute it from their means. Default: 1 with changes, else 256.
    before_averaging
        Update q(s) and q(rho) from the means before they are averaged, as lines 11 to 14 of
        Algorithm 1. Default: from the averaged means, as the text after (23) says.
    use_prior, sample
        Whether the ELBO has its prior terms, and whether weights are sampled. Both false with
        `Cast(32)` is FedAvg on the means, bit for bit.
    link
        How payloads reach the server. Default: `Digital()`. All clients have one support, so
        `OverTheAir` adds only active entries. Noise can make a standard deviation negative, which
        stops the run. Fading that `Gbma` leaves multiplies means and sds alike; `ChannelInversion`
        leaves none.

    Raises
    ------
    ArgumentError
        If `observations` or `initial_sd` is not positive, both `density` and `field` are given, or
        another argument is outside its domain.
    CollapseError
        In a round, if the fit of the model that clients receive has fallen apart several rounds in
        a row. Never with a `field`.

    Warns
    -----
    CollapseWarning
        If a layer loses its last active weight, or a round that undid learning is taken back.

    References
    ----------
    Xia, Tsang and Lau, "Bayesian Federated Model Compression for Communication and Computation
    Efficiency" (2024).
    """
    if density is not None and field is not None:
        raise ArgumentError("d_turbo_vbi", "a density or a field", "both", f"density={density}")
    if changes is None and codec is None and link is None:
        changes = Changes()
    if changes and (codec or link):
        raise ArgumentError(
            "d_turbo_vbi", "changes, or a codec or link of values", "both", "changes=None"
        )
    learns, start = (changes.learn, changes.start) if changes else (False, None)
    returns = settled(returns, learns, start)
    blocks, codec, work = blocks or Structured(), codec or Cast(16), training or Training()
    weights = sum(math.prod(site.matrix) for site in declared.sites.values())
    own, where = declared.likelihood, "d_turbo_vbi"
    likelihood = tempered(own, temperature, observations, weights, where=where)
    declared = replace(declared, likelihood=likelihood)
    auto, learned = temperature == "auto", changes is None or changes.learn
    server = TurboStep(
        declared,
        spread,
        blocks,
        exchange or Exchange(),
        use_prior,
        before_averaging,
        field or (ToDensity.of(density, start) if learned else no_field),
        warm_up if learned else NEVER,
        inclusion_levels or (1 if changes else 256),
        returns.share if returns else 0.0,
    )
    initial = server.initial(declared.initial, initial_sd, initial_inclusion) | (
        {TEMPERATURE: torch.tensor(temperature_of(declared.likelihood))} if auto else {}
    )
    sizes = {name: site.matrix for name, site in declared.sites.items()} if returns else {}
    initial |= {STANDS + name: torch.zeros(size) for name, size in sizes.items()}
    expected = sent(initial, server.spreads)

    @with_settings(returns=returns, warm_up=warm_up, work=work)
    def asked(turn: Turn) -> float:
        """Return for which share of the active entries clients are to speak."""
        ready = turn.round >= warm_up and Watch.of(turn.state[WATCH]).settled
        return returns.asked(turn.round, work.schedule(turn.round)) if returns and ready else 0.0

    @with_settings(asked=asked, expected=expected, link=link, server=server, sizes=sizes)
    def view(turn: Turn) -> View:
        said = {SAID + name: size for name, size in sizes.items() if asked(turn)}
        active = Active(server.supports(turn.state), {**expected, **said}, server.spreads)
        return Gathered(active) if link else active

    @with_settings(
        asked=asked,
        likelihood_scale=likelihood_scale,
        observations=observations,
        returns=returns,
        work=work,
    )
    def options(turn: Turn) -> LocalOptions:
        samples = turn.profile.samples
        whole = likelihood_scale == "global" and samples
        scale = all_rows(observations, turn.profile) / samples if whole else 1.0
        if not returns:
            return work.options(turn.round, samples, scale=scale)
        return work.options_as(Asked, turn.round, samples, scale=scale, returns=asked(turn))

    def model(state: Tree) -> Model:
        weights = {
            name: state[f"mean/{name}"].reshape(site.shape) for name, site in declared.sites.items()
        }
        return Model(declared.net, under(state, f"{POINT}/") | weights)

    def posterior(state: Tree) -> DeclaredPosterior:
        return DeclaredPosterior(declared, server.belief(state), under(state, f"{POINT}/"))

    def unfinished(state: Tree, rounds: int) -> str:
        return missed(server.policy, server.supports(state)) if server.policy else ""

    objective = MeanFieldElbo(declared, spread, blocks, use_prior, sample)
    descent = work.descent(objective, declared.net, "moments", Adam(2e-3))
    local: Local = Speaking(descent, objective) if returns else descent
    scored = Scored(HeldOut(local, objective) if auto else local, objective)
    heard: Server = server
    up, feeds = inner_codec(codec)
    layer = Holding(held=("support/*",), before=server.published_last, feedback=feeds)
    if changes:
        whole = (*server.spreads, NLL, f"{SAID}*", *([SCORES, TEMPERATURE] if auto else []))
        layer, initial = changes.exchanged(server, initial, layer, whole)
        codec, up = changes.codec, changes.uplink()
    elif link:
        heard = Scattered(server)
    made = compose(
        "d_turbo_vbi",
        declared.net,
        scored,
        heard,
        training=work,
        initial=initial,
        predictor=model,
        posterior=posterior,
        view=view,
        options=options,
        codec=codec,
        up=up,
        link=link,
        unfinished=unfinished,
        owner="",
        layers=(layer,),
    )
    return counting(made, observations)

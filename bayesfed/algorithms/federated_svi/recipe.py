"""Federated stochastic variational inference for any Pyro model and guide.

============================  ===========================================================
notation                      here
============================  ===========================================================
p(z), p(D_t | z)              the model's latent sites; its observed sites on client t
q(z)                          the guide's shared draws
t_t(z)                        a client's factor, in its memory (`ProductOfExperts`, `PVI`)
N, N_t                        `observations`, a client's rows
============================  ===========================================================
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Literal, cast

import torch
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoNormal

from bayesfed.algorithms.federated_svi.defaults import (
    check_fusion,
    check_suited,
    exampled,
    unguarded,
    work_of,
)
from bayesfed.algorithms.federated_svi.exact.recipe import exact_svi
from bayesfed.algorithms.federated_svi.held_out import HeldOutNetwork, Tempered
from bayesfed.algorithms.federated_svi.local import Elbo, SviLocal, check_particles
from bayesfed.algorithms.federated_svi.network import TEMPERATURE, network_local
from bayesfed.algorithms.federated_svi.server import Fuse
from bayesfed.algorithms.federated_svi.tempering import (
    is_auto,
    network_guide,
    network_model,
    weights_of,
)
from bayesfed.algorithms.registry import recipe
from bayesfed.compress import Codec
from bayesfed.compress.codecs import exact
from bayesfed.data import Dataset
from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import ITSELF, number, one_of, shown, whole
from bayesfed.errors.roles import Role
from bayesfed.federated import (
    Adam,
    Algorithm,
    Assignment,
    Digital,
    Ivon,
    Link,
    Local,
    Phase,
    Profile,
    Server,
    Training,
    Whole,
)
from bayesfed.federated.core import MODEL
from bayesfed.federated.core.layering import of_core
from bayesfed.federated.core.settings import with_settings
from bayesfed.federated.training.held_out_scores import FACTORS, SCORES
from bayesfed.federated.training.observations import all_rows, counting
from bayesfed.inference.exact.stages import LARGEST
from bayesfed.inference.variational import (
    LOCAL,
    PVI,
    FittedGuide,
    Fused,
    Fusion,
    Program,
    ReverseKL,
    Runs,
    read_layout,
)
from bayesfed.keys import Key
from bayesfed.models import BayesianNet
from bayesfed.models.likelihoods.rows import temperature_of
from bayesfed.models.live import check_modes
from bayesfed.trees import Tree, shapes, without

# What chooses a guide's fit, from `fusion` to `stay`, where it is not given.
PLAIN = (None, None, None, None, None, None, 0.5, True, ())


@recipe(
    cites=("bingham2019pyro",),
    model=ITSELF,
    guide=ITSELF,
    fusion=ITSELF,
    scale=one_of(("local", "global")),
    example=Role(
        lambda rows: isinstance(rows, Dataset) and len(rows) > 0,
        "a data set of at least one row",
        "train[:2]",
    ),
    averaging=number("[0, 1]", "0.5"),
    least_rows=whole(0, "20"),
    secure=whole(3, "10"),
)
def federated_svi(
    model: Runs,
    guide: Runs | FittedGuide | None = None,
    *,
    fusion: Fusion | None = None,
    scale: Literal["local", "global"] | None = None,
    observations: int | None = None,
    example: Dataset | None = None,
    temperature: float | Literal["auto"] | None = None,
    training: Training | None = None,
    averaging: float = 0.5,
    antithetic: bool = True,
    elbo: Elbo | None = None,
    client_plate: str = "client",
    stay: tuple[str, ...] = (),
    codec: Codec | None = None,
    link: Link | None = None,
    seed: int = 0,
    least_rows: int | None = None,
    secure: int | None = None,
    vault: str | Path | None = None,
) -> Algorithm:
    """Find the posterior of a Pyro model, given the rows of all clients; or fit a guide to them.

    ``bf.run(bf.federated_svi(model), clients)`` needs no other argument and ends by itself. Up to
    50 shared unconstrained values it finds the mode, fits a Gaussian with all correlations, and
    weights 4,096 points of it. For larger models it fits independent Gaussians and checks them by
    weights of points. ``result.posterior.status`` says how far to trust it. Priors may be improper.

    `client_plate`, `link`, `least_rows`, `secure` and `vault` may be given; `observations` and
    `example` are checked against the clients' rows, and `seed` changes nothing. Any other argument
    chooses a guide's fit, as does a `bayesian` network with more than 50 weights.

    Sites answer with sums over their rows: log likelihoods, gradients and Hessians. Sums of few
    rows reveal these rows; `SECURITY.md` says what helps.

    Parameters
    ----------
    model
        ``model(inputs, targets=None)``: a PyroModule, or a function that calls `pyro.sample` and
        `pyro.param`.
    guide
        The same for the guide: an automatic guide of the model, or what makes one (``AutoNormal``,
        ``partial(AutoNormal, init_scale=0.01)``, ``lambda model: AutoNormal(block(model, ...))``).
        A model with local latents needs the latter. A fit's posterior is weighed in one round.
        Default: `AutoNormal`, for a `bayesian` network at its own weights.
    fusion
        Rule that makes one posterior of the clients': `MeanParameters`, `Wasserstein`, `ReverseKL`,
        `ProductOfExperts`, `PVI`, `SummedGradients`, or one of your own
        (`bayesfed.inference.variational.fusion.Fusion`). Default: `PVI()`; `ReverseKL()` for a
        `bayesian` network without a guide.
    scale
        "local": a row counts once. "global": each client's rows stand for all N, as in D-Turbo-VBI
        (21). Rules that add clients up take "local" only, their default; others "global".
    observations
        N, the number of rows of all clients. Default: those of the pool. A `bayesian` network needs
        it where its temperature, or its guide's first width, comes from it. A run refuses a number
        that is more than a tenth off the pool's.
    example
        A few rows, which a guide's fit needs for names and shapes; nothing is learned from them.
    temperature
        Temperature of the likelihood of a `bayesian` network that leaves it open; 1 is Bayes' rule.
        "auto", for `ReverseKL` with `Ivon`: it is chosen in every round on a tenth of each client's
        rows, which are not trained on. Default: "auto" where possible and no guide is given; else,
        with `Ivon`, a tenth of the number of rows for each weight, at most 1; else 1.
    training
        Local work of a round. Default: 50 steps of all rows with ``Adam(1e-2)``; if `fusion` is not
        given either, with ``NaturalGradient(0.1)`` and the schedule ``inverse(10)``. Default for a
        `bayesian` network without a guide: 50 steps of 64 rows with ``Ivon()``, which training
        without an optimiser has too, and the schedule ``inverse(5)``; ``cosine(0.05, rounds)``
        suits it as well. With `SummedGradients`, whose clients take no steps of their own, the
        schedule is the server's, the optimiser is not used, and `steps` counts the draws of a
        gradient.
    averaging
        Share of a round's steps, the last ones, whose parameters are averaged; 0 takes the last.
        Not for `SummedGradients` and `Ivon`.
    antithetic
        Whether every second step mirrors the Gaussian draws of the one before, which removes most
        of the noise of the gradients. Each step of `Ivon` has both draws, whatever this says.
    elbo
        Bound to maximise. Default: `pyro.infer.Trace_ELBO()`; `TraceMeanField_ELBO`,
        `TraceEnum_ELBO`, `RenyiELBO` and others work too. Not with `Ivon`.
    client_plate
        Name of the plate of local latents: the parameters of sites under it never travel.
    stay
        Patterns of the names of further parameters that never travel.
    codec
        Codec of both directions. Default: the guide's floats, 32 or 64 bits.
    link
        How payloads reach the server. Default: `Digital()`. `OverTheAir` adds noise to precisions
        too, which `SummedGradients` bears best.
    seed
        Seed of the parameters' first values.
    least_rows
        Fewest rows of a site of a model alone: a site that has fewer, and any, refuses to answer.
        Default: none does; sites with less than three rows for each shared value are warned of.
    secure
        Largest number of sites of a model alone, 3 or more, whose answers are summed under masks:
        the server sees only sums (`bayesfed.secure`). Default: no masks.
    vault
        With `secure`, the folder on each site's machine for its keys, as of `bayesfed.secure`.
        Needed over Flower.

    Raises
    ------
    ArgumentError
        If an argument is outside its domain, `fusion` is not a rule, or its scale would count rows
        twice.
    PosteriorError
        If the rule cannot serve the guide.

    References
    ----------
    Bingham et al., "Pyro: Deep Universal Probabilistic Programming" (2019).
    """
    settings = (fusion, scale, temperature, training, elbo, codec, averaging, antithetic, stay)
    alone = settings == PLAIN and (guide is None or isinstance(guide, FittedGuide))
    large = isinstance(model, BayesianNet) and weights_of(model) > LARGEST
    if alone and not large:
        fit = partial(federated_svi, model, AutoNormal, client_plate=client_plate)
        return exact_svi(
            model,
            fit,
            guide,
            client_plate,
            link,
            observations,
            example,
            least_rows,
            secure,
            vault,
        )
    guide = unguarded(guide, least_rows=least_rows, secure=secure, vault=vault)
    example = exampled(example, large, model)
    check_fusion(fusion)
    network = guide is None and isinstance(model, BayesianNet)
    work = work_of(training, network, fusion)
    ivon = work.optimiser if isinstance(work.optimiser, Ivon) else None
    fusion = fusion or (ReverseKL() if network and ivon else PVI())
    scale = scale or ("local" if fusion.adds else "global")
    check_suited(fusion, scale, ivon, elbo)
    auto = is_auto(model, fusion, ivon, temperature, network)
    if isinstance(model, BayesianNet):
        model = network_model(
            model, None if isinstance(temperature, str) else temperature, observations, ivon
        )
    elif temperature is not None:
        hint = "poutine.scale in the model"
        raise ArgumentError(
            "federated_svi, temperature", "a model made by bayesian(net)", shown(model), hint
        )
    check_modes(model, "federated_svi")
    program = Program(model, network_guide(model, observations) if guide is None else guide)
    pair = program.at(example, Key(seed, "federated_svi", "first"))
    fused = Fused(
        pair,
        read_layout(
            pair,
            example,
            Key(seed, "federated_svi", "layout"),
            client_plate=client_plate,
            stay=stay,
        ),
    )
    fusion.check(fused)
    check_particles(elbo, pair, example, Key(seed, "federated_svi", "elbo"))
    server = Fuse(fused, fusion, work.schedule)
    initial, stepping = server.initial(), cast(Server, server)
    if auto and isinstance(model, BayesianNet):
        stepping = Tempered(server, temperature_of(model.likelihood))
        initial |= {TEMPERATURE: torch.tensor(temperature_of(model.likelihood))}
    scored = {SCORES: (len(FACTORS),)} if auto else {}
    view = Whole(shapes(server.publish(server.initial(), 0, None)) | scored)

    @with_settings(
        codec=codec,
        fusion=fusion,
        initial=initial,
        observations=observations,
        scale=scale,
        view=view,
        work=work,
    )
    def assign(state: Tree, round: int, profile: Profile, key: Key) -> Assignment:
        rows = all_rows(observations, profile)
        times = rows / profile.samples if scale == "global" and profile.samples else 1.0
        share = profile.samples / rows if fusion.adds and rows else 1.0
        options = work.options(round, profile.samples, scale=times, share=share)
        sent = codec or exact(initial)
        return Assignment(view, 1.0 if fusion.adds else profile.samples, sent, sent, options)

    def posterior(state: Tree) -> FittedGuide:
        return FittedGuide(
            pair,
            fused.layout,
            fusion.parameters(fusion.publish(without(state, TEMPERATURE)), fused),
            program,
            place=f"{MODEL}/{LOCAL}",
        )

    local: Local
    if ivon:
        step = network_local(model, fused, fusion, ivon, work)
        local = HeldOutNetwork(step) if auto else step
    else:
        local = SviLocal(
            fused,
            fusion,
            work.steps,
            work.batch_size,
            program=program,
            elbo=elbo or Trace_ELBO(),
            optimiser=work.optimiser or Adam(1e-2),
            averaging=averaging,
            antithetic=antithetic,
        )
    phase = Phase("train", assign, local, stepping, link or Digital())
    made = of_core(
        "federated_svi", initial, (phase,), lambda state: posterior(state).predictor, posterior
    )
    return counting(made, observations)

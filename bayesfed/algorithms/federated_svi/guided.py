"""A guide's fit: the parts of the method, made of its arguments. The rules are in
`bayesfed.inference.variational.fusion`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, cast

import torch
from pyro.infer import Trace_ELBO

from bayesfed.algorithms.federated_svi.defaults import check_fusion, check_suited, work_of
from bayesfed.algorithms.federated_svi.held_out import HeldOutNetwork, Tempered
from bayesfed.algorithms.federated_svi.local import Elbo, SviLocal, check_particles
from bayesfed.algorithms.federated_svi.network import TEMPERATURE, network_local
from bayesfed.algorithms.federated_svi.server import Fuse
from bayesfed.algorithms.federated_svi.tempering import is_auto, network_guide, network_model
from bayesfed.compress import Codec
from bayesfed.compress.codecs import exact
from bayesfed.data import Dataset
from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import shown
from bayesfed.federated import (
    Adam,
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
from bayesfed.federated.training.held_out_scores import FACTORS, SCORES
from bayesfed.federated.training.observations import all_rows
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
from bayesfed.models.live import check_modes
from bayesfed.models.priors.likelihoods import temperature_of
from bayesfed.trees import Tree, shapes, without


class Guided(NamedTuple):
    """The core of a guide's fit: its state before the first round, its phase, and the posterior of
    a state.
    """

    initial: Tree
    phase: Phase
    posterior: Callable[[Tree], FittedGuide]


def guided(
    model: Runs,
    guide: Runs | None,
    example: Dataset,
    *,
    fusion: Fusion | None = None,
    scale: Literal["local", "global"] | None = None,
    observations: int | None = None,
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
) -> Guided:
    """Return the parts of a guide's fit; parameters and errors are those of `federated_svi`."""
    if fusion is not None:
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
    return Guided(initial, phase, posterior)

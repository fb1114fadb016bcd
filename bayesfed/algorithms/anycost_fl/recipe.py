"""AnycostFL (Li et al., "AnycostFL: efficient on-demand federated learning over heterogeneous edge
devices", 2023).

======================  ==============================================
paper                   here
======================  ==============================================
w_t, sorted             the whole network in the state, channels by norm
alpha                   one of `alphas`; `shrunk(net, graph, alpha)`
beta, rho, L            `Plan.beta`; `Budgeted(settings, beta)`
T_max, E_max            `deadline_s`, `Device.energy_j`
p (13), m (5)           `aggregation_weight`, `Kept`
P1 to P4                `bayesfed.wireless.allocation`, with measured work
======================  ==============================================

Alphas are a list here, so that every size is a measured network and one of `Algorithm.sizes`. Zeros
of an update do not count (5), so each entry is the mean over those who sent it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from bayesfed.algorithms.anycost_fl.weights import aggregation_weight
from bayesfed.algorithms.registry import recipe
from bayesfed.algorithms.wrappers.on_devices import EPOCHS, Planner, with_header
from bayesfed.compress import Codec
from bayesfed.compress.budgets import Budgeted, FlexibleMap, fit_flexible, full_bits
from bayesfed.compress.budgets.fitting import LEVELS, SHARES
from bayesfed.compress.codecs import exact
from bayesfed.compress.flexible import Flexible
from bayesfed.data import Dataset
from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import checked
from bayesfed.federated import (
    Add,
    Algorithm,
    Assignment,
    Cell,
    Descent,
    Digital,
    Kept,
    Link,
    LocalOptions,
    Model,
    Phase,
    Profile,
    Server,
    Sized,
    Skip,
    Slice,
    Sorted,
    Training,
    View,
)
from bayesfed.federated.core.layering import of_core
from bayesfed.federated.core.settings import with_settings
from bayesfed.federated.training.batch_norm import travelling
from bayesfed.inference import MaximumLikelihood
from bayesfed.keys import Key
from bayesfed.models import (
    Categorical,
    Likelihood,
    channel_graph,
    shrunk,
    shrunk_shares,
    sort_channels,
)
from bayesfed.trees import Tree, frozen, shapes, trainable

# Widths from 16 to 8 sixteenths: alpha from 1 down to the paper's least, 1/4.
ALPHAS = tuple((number / 16) ** 2 for number in range(16, 7, -1))
Aggregation = Literal["optimal", "uniform"]


@recipe(cites=("li2023anycostfl",))
def anycost_fl(
    net: nn.Module,
    sample: Tensor,
    *,
    deadline_s: float,
    settings: FlexibleMap | None = None,
    alphas: Sequence[float] = ALPHAS,
    beta: tuple[float, float] | None = None,
    likelihood: Likelihood | None = None,
    training: Training | None = None,
    aggregation: Aggregation = "optimal",
    codec: Codec | None = None,
    link: Link | None = None,
) -> Algorithm:
    """Let every device train as wide a network, and send as much of its update, as its deadline,
    battery and channel allow in a round.

    Clients need a `Device` in their profiles:
    ``InProcess(data, devices={name: device.figures()})``. A client that cannot take one step and
    send its result is left out of a round with the reason, and one past the deadline is dropped.

    Parameters
    ----------
    net
        The network, of layers whose channels can be cut; it is not changed.
    sample
        Inputs of the network, ``(B, ...)``, with which the sizes are measured.
    deadline_s
        T_max, the seconds of a round for training and sending.
    settings
        Compression settings by message size, from `public_settings` or `fit_flexible`. Default:
        settings fitted on normal draws of the network's shapes, coarser than those of an update, so
        that messages fit devices' channels; with ``beta=(1.0, 1.0)``, or where these are shorter,
        32-bit floats.
    alphas
        Shrinking factors that devices choose from, falling. ``(1,)`` never shrinks.
    beta
        Least and largest share of an update's bits; equal ones fix it. Default: from the least that
        `settings` knows to the paper's 1/15, or to that least where it is larger.
    training
        Local work of a round, given in epochs, whose duration is planned; a client whose budgets
        are too small for them takes the steps that fit. Default: five epochs in batches of 32
        rows with ``Sgd(0.05)``, which learn in ten rounds; the paper makes one.
    aggregation
        "optimal" uses the weights (13) and averages each entry over those who sent it (5).
        "uniform" uses equal weights, over those who have it.
    codec
        Codec of the down-link. Default: 32-bit floats.
    link
        Link that carries payloads within the cell. Default: `Digital()`.
    likelihood
        As in `fed_avg`.

    Raises
    ------
    ArgumentError
        If alphas do not fall or one is outside (0, 1], the network has running statistics, cannot
        be traced or, where devices shrink it, has frozen parameters, local work is not given in
        epochs, or `beta` or `aggregation` is invalid.

    References
    ----------
    Li et al., "AnycostFL: Efficient On-Demand Federated Learning over Heterogeneous Edge Devices"
    (2023).
    """
    if not alphas or list(alphas) != sorted(set(alphas), reverse=True):
        raise ArgumentError(
            "anycost_fl, alphas", "falling shrinking factors", list(alphas), "[1, 1 / 2, 1 / 4]"
        )
    work = training or Training(epochs=EPOCHS, batch_size=32)
    if work.epochs is None or work.batch_size is None:
        raise ArgumentError(
            "anycost_fl, training",
            "local work in epochs of batches",
            work,
            "Training(epochs=1.0, batch_size=32)",
        )
    initial, graph = travelling(net, "static", where="anycost_fl"), channel_graph(net, sample)
    nets = [shrunk(net, graph, alpha) for alpha in alphas]
    # Where nobody shrinks there is no order to keep.
    shrinks = alphas[-1] < 1
    if shrinks and (still := list(frozen(net))):
        expected = "parameters that are all trained, since channels are sorted"
        raise ArgumentError("anycost_fl", expected, f"frozen {still}", "alphas=(1,)")
    draws, coding = Key(0, "anycost_fl", "draws"), Key(0, "anycost_fl", "settings")
    if settings is None and beta != (1.0, 1.0):
        fitted = fit_flexible([_drawn(net, draws)], coding, shares=SHARES[::3], levels=LEVELS[::2])
        # A tiny network's floats are shorter than anything coded.
        settings = fitted if beta or fitted.least < 1 else None
    bounds = beta or ((settings.least, max(settings.least, 1 / 15)) if settings else (1.0, 1.0))
    shares = tuple(shrunk_shares(net, graph, sample, alphas))
    planner = Planner(shares, deadline_s, bounds, work.epochs, work.batch_size)
    if settings:
        # What the shortest message of each size is, and a little more: updates differ.
        shortest = Flexible(*settings(settings.least))
        updates = [_drawn(made, draws) for made in nets]
        bits = [8 * len(shortest.encode(update, {}, coding)) for update in updates]
        floors = [
            1.2 * sent / full_bits(update) for sent, update in zip(bits, updates, strict=True)
        ]
        planner = replace(planner, floors=tuple(min(floor, 1.0) for floor in floors))
    else:
        planner = with_header(planner, trainable(net))
    slices = [Slice(shapes(initial), shapes(trainable(made))) for made in nets]
    views: list[View] = [
        Kept(view) if settings and aggregation == "optimal" else view for view in slices
    ]
    as_is = exact(initial)
    down = codec or as_is

    @with_settings(
        aggregation=aggregation,
        as_is=as_is,
        down=down,
        planner=planner,
        settings=settings,
        views=views,
        work=work,
    )
    def assign(state: Tree, round: int, profile: Profile, key: Key) -> Assignment | Skip:
        planned = planner(profile, round, key)
        if isinstance(planned, Skip):
            return planned
        weight = (
            aggregation_weight(planned.load.alpha, planned.load.beta)
            if aggregation == "optimal"
            else 1.0
        )
        up = Budgeted(settings, planned.load.beta) if settings else as_is
        options = LocalOptions(
            rate_factor=work.schedule(round), size=planned.size, steps=planned.steps
        )
        return Assignment(views[planned.size], weight, down, up, options, planned.load)

    def local(made: nn.Module) -> Descent:
        return replace(work, steps=1, epochs=None).descent(
            MaximumLikelihood(made, likelihood or Categorical()), made, "delta"
        )

    def model(size: int, state: Tree) -> Model:
        return Model(nets[size], slices[size].restrict(state))

    server: Server = Sorted(Add(), graph) if shrinks else Add()
    phase = Phase(
        "train",
        assign,
        Sized(tuple(local(made) for made in nets)),
        server,
        Cell(deadline_s, link or Digital()),
    )
    sizes = {f"{alpha:.3g}": partial(model, size) for size, alpha in enumerate(alphas)}
    start = sort_channels(graph, initial) if shrinks else initial
    return of_core("anycost_fl", start, (phase,), partial(model, 0), sizes=sizes)


def _drawn(net: nn.Module, key: Key) -> Tree:
    """Return normal draws of the shapes of an update."""
    generator = key.generator()
    return {
        name: torch.randn(leaf.shape, generator=generator) for name, leaf in trainable(net).items()
    }


@checked()
def public_settings(
    net: nn.Module,
    public: Dataset,
    key: Key,
    *,
    likelihood: Likelihood | None = None,
    training: Training | None = None,
) -> FlexibleMap:
    """Fit compression settings by message size on an update from a few public rows; the paper uses
    16 (section III-C).

    Parameters
    ----------
    net
        The network that will be trained; it is not changed.
    public
        Public rows that the server may train on.
    key
        Key of the batches of these steps.
    likelihood
        Likelihood of the targets. Default: `Categorical()`.
    training
        Steps on them. Default: 20 steps of all rows with ``Sgd(0.05)``.

    Raises
    ------
    ArgumentError
        If there are no rows.
    """
    if not len(public):
        raise ArgumentError("public_settings", "public rows", "none", "train[:16]")
    work = training or Training(steps=20, batch_size=None)
    fit = work.fitting(net, likelihood, "delta").fit(
        trainable(net), {}, public, key.child("public"), LocalOptions()
    )
    return fit_flexible([fit.payload], key.child("settings"))

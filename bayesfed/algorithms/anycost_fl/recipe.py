"""AnycostFL (Li et al., "AnycostFL: efficient on-demand federated learning over heterogeneous edge devices", 2023).

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

Alphas are a list here, so that every size is a network that was measured, and one of `Algorithm.sizes`. An update's zeros do not count (5), which
makes of each entry the mean of those that sent it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal, get_args

from torch import Tensor, nn

from bayesfed.algorithms.anycost_fl.weights import aggregation_weight
from bayesfed.algorithms.wrappers.on_devices import Planner
from bayesfed.compress.budgets import Budgeted, FlexibleMap, fit_flexible
from bayesfed.compress.codecs import Cast, Codec
from bayesfed.data.dataset import Dataset
from bayesfed.errors import ArgumentError, complain
from bayesfed.federated.aggregation.servers import Add, Sorted
from bayesfed.federated.aggregation.views import Kept, Slice
from bayesfed.federated.core.algorithm import Algorithm, Model, Phase, Server
from bayesfed.federated.core.protocols import Assignment, Link, Profile, Skip, View
from bayesfed.federated.links.deadline import Cell
from bayesfed.federated.links.digital import Digital
from bayesfed.federated.training.batch_norm import travelling
from bayesfed.federated.training.descent import Descent, draws_globally
from bayesfed.federated.training.model_sizes import Sized
from bayesfed.federated.training.optimisers import Optimiser, Sgd
from bayesfed.federated.training.schedules import Schedule, constant
from bayesfed.inference.objectives.likelihood import MaximumLikelihood
from bayesfed.keys import Key
from bayesfed.models.elastic.shares import shrunk_shares
from bayesfed.models.elastic.shrinking import shrunk
from bayesfed.models.elastic.sorting import sort_channels
from bayesfed.models.elastic.tracing import channel_graph
from bayesfed.models.priors.likelihoods import Categorical, Likelihood
from bayesfed.trees import Tree, parameters, shapes

# Widths of 16 sixteenths down to 8: alpha from 1 to the paper's least, 1/4.
ALPHAS = tuple((number / 16) ** 2 for number in range(16, 7, -1))
Aggregation = Literal["optimal", "uniform"]


def anycost_fl(
    net: nn.Module,
    sample: Tensor,
    *,
    deadline_s: float,
    settings: FlexibleMap | None = None,
    alphas: Sequence[float] = ALPHAS,
    beta: tuple[float, float] | None = None,
    epochs: float = 1.0,
    batch_size: int = 32,
    likelihood: Likelihood | None = None,
    optimiser: Optimiser | None = None,
    schedule: Schedule = constant,
    aggregation: Aggregation = "optimal",
    codec: Codec | None = None,
    link: Link | None = None,
) -> Algorithm:
    """Let every device train as wide a network and send as much of its update as its deadline, battery and channel allow this round.

    Clients need a `Device` in their profiles: ``InProcess(data, devices={name: device.figures()})``. One that cannot take part in a round
    is left out of it with the reason, one past the deadline is dropped.

    Parameters
    ----------
    sample
        Inputs as the network gets them, ``(B, ...)``: what sizes are measured with.
    deadline_s
        T_max, of one round's training and sending.
    settings
        What a size of message buys: `public_settings` or `fit_flexible`. None: 32-bit floats, and beta = 1.
    alphas
        Shrinking factors that devices choose from, falling; (1,) never shrinks.
    beta
        Least and largest share of an update's bits; default from the least that `settings` knows to the paper's 1/15. Equal ones fix it.
    epochs, batch_size, optimiser, schedule
        Local work of a round; default SGD at 0.05.
    aggregation
        "optimal": weights (13), each entry averaged over those that sent it (5). "uniform": equal weights, over those that have it.
    codec
        Of the down-link; default 32-bit floats.
    link
        What carries payloads within the cell; default `Digital()`.

    Raises
    ------
    ArgumentError
        If alphas do not fall or one is outside (0, 1], the network has running statistics or cannot be traced, or `beta` or `aggregation` is not
        what it should be.
    """
    if not alphas or list(alphas) != sorted(set(alphas), reverse=True):
        raise ArgumentError(complain("anycost_fl, alphas", expected="falling shrinking factors", actual=list(alphas), hint="[1, 1 / 2, 1 / 4]"))
    if aggregation not in get_args(Aggregation):
        raise ArgumentError(complain("anycost_fl, aggregation", expected="'optimal' or 'uniform'", actual=repr(aggregation), hint="'optimal'"))
    initial, graph = travelling(net, "static", where="anycost_fl"), channel_graph(net, sample)
    nets = [shrunk(net, graph, alpha) for alpha in alphas]
    bounds = beta or ((settings.least, 1 / 15) if settings else (1.0, 1.0))
    planner = Planner(tuple(shrunk_shares(net, graph, sample, alphas)), deadline_s, bounds, epochs, batch_size)
    slices = [Slice(shapes(initial), shapes(parameters(made))) for made in nets]
    views: list[View] = [Kept(view) if settings and aggregation == "optimal" else view for view in slices]
    down = codec or Cast(32)

    def assign(state: Tree, round: int, profile: Profile, key: Key) -> Assignment | Skip:
        planned = planner(profile, round, key)
        if isinstance(planned, Skip):
            return planned
        weight = aggregation_weight(planned.load.alpha, planned.load.beta) if aggregation == "optimal" else 1.0
        up = Budgeted(settings, planned.load.beta) if settings else Cast(32)
        options = {"learning_rate": schedule(round), "size": planned.size, "steps": planned.steps}
        return Assignment(views[planned.size], weight, down, up, options, planned.load)

    def local(made: nn.Module) -> Descent:
        objective = MaximumLikelihood(made, likelihood or Categorical())
        return Descent(objective, optimiser or Sgd(), 1, batch_size, "delta", draws_globally(made))

    def model(size: int, state: Tree) -> Model:
        return Model(nets[size], slices[size].restrict(state))

    # Where nobody shrinks there is no order to keep.
    shrinks = alphas[-1] < 1
    server: Server = Sorted(Add(), graph) if shrinks else Add()
    phase = Phase("train", assign, Sized(tuple(local(made) for made in nets)), server, Cell(deadline_s, link or Digital()))
    sizes = {f"{alpha:.3g}": partial(model, size) for size, alpha in enumerate(alphas)}
    start = sort_channels(graph, initial) if shrinks else initial
    return Algorithm("anycost_fl", start, (phase,), partial(model, 0), sizes=sizes)


def public_settings(
    net: nn.Module, public: Dataset, key: Key, *, likelihood: Likelihood | None = None, optimiser: Optimiser | None = None, steps: int = 20
) -> FlexibleMap:
    """Fit what a size of message buys on the update that a few public rows make: 16 are enough, says the paper (section III-C).

    Parameters
    ----------
    public
        Rows that the server may train on.
    steps
        Of all rows each.

    Raises
    ------
    ArgumentError
        If there are no rows.
    """
    if not len(public):
        raise ArgumentError(complain("public_settings", expected="public rows", actual="none", hint="train[:16]"))
    objective = MaximumLikelihood(net, likelihood or Categorical())
    descent = Descent(objective, optimiser or Sgd(), steps, len(public), "delta", draws_globally(net))
    return fit_flexible([descent.fit(parameters(net), {}, public, key.child("public"), {}).payload], key.child("settings"))

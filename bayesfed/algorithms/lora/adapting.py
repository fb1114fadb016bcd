"""What methods that train adapters share: checks of their network and ranks, the clients' descent, and the phase of a round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from torch import nn

from bayesfed.compress.codecs import Cast, Codec
from bayesfed.errors import ArgumentError, complain
from bayesfed.federated.core.algorithm import Phase, Server
from bayesfed.federated.core.protocols import Assignment, Link, Local, Profile, View
from bayesfed.federated.core.update import Kind, Reducer, Sum
from bayesfed.federated.links.digital import Digital
from bayesfed.federated.training.batch_norm import travelling
from bayesfed.federated.training.descent import Descent, draws_globally
from bayesfed.federated.training.model_sizes import Capacity, Sized
from bayesfed.federated.training.optimisers import Optimiser, Sgd
from bayesfed.federated.training.schedules import Schedule
from bayesfed.inference.objectives.likelihood import MaximumLikelihood
from bayesfed.keys import Key
from bayesfed.models.adapters.lora import lora_rank, resized
from bayesfed.models.priors.likelihoods import Categorical, Likelihood
from bayesfed.trees import Tree


def adapted(net: nn.Module, *, where: str) -> tuple[int, Tree]:
    """Return the rank of a network's adapters and a copy of what it trains.

    Raises
    ------
    ArgumentError
        If it has no adapters, or running statistics, or trains nothing.
    """
    return lora_rank(net), travelling(net, "static", where=where)


def by_rank(net: nn.Module, ranks: Sequence[int], *, where: str, sketched: bool = False, by_slice: bool = False) -> list[nn.Module]:
    """Return the network at every rank, over the same frozen weights; scaled by ``r / k`` for sketches that have it alike for all slices.

    Raises
    ------
    ArgumentError
        If there are no ranks, they do not fall, or one is outside of 1 to the network's.
    """
    rank = lora_rank(net)
    if not ranks or any(b >= a for a, b in pairwise(ranks)) or not 1 <= min(ranks) <= max(ranks) <= rank:
        hint = f"{sorted({max(1, rank // part) for part in (1, 2, 4)}, reverse=True)}"
        raise ArgumentError(complain(f"{where}, ranks", expected=f"falling numbers from 1 to {rank}", actual=list(ranks), hint=hint))
    return [resized(net, k, factor=rank / k if sketched and not by_slice else 1.0, by_slice=by_slice) for k in ranks]


def descent(net: nn.Module, kind: Kind, likelihood: Likelihood | None, steps: int, batch_size: int, optimiser: Optimiser | None) -> Descent:
    """Return the clients' steps on what a network trains; default SGD at 0.05."""
    objective = MaximumLikelihood(net, likelihood or Categorical())
    return Descent(objective, optimiser or Sgd(), steps, batch_size, kind, draws_globally(net))


def exchange(
    capacity: Capacity,
    view: Callable[[Tree, int, Key], View],
    locals: Sequence[Local],
    server: Server,
    *,
    by_rows: bool,
    schedule: Schedule,
    codec: Codec | None,
    up: Codec | None = None,
    link: Link | None = None,
    reducer: Callable[[], Reducer] = Sum,
) -> Phase:
    """Return the phase in which every client trains adapters of its size.

    Parameters
    ----------
    view
        ``(state, number of the size, key) -> view`` of one client and round.
    locals
        One for each size.
    by_rows
        Weigh clients by their rows; or alike, those without rows by 0.
    up
        Codec of payloads; default that of the down-link.
    """
    down = codec or Cast(32)

    def assign(state: Tree, round: int, profile: Profile, key: Key) -> Assignment:
        size = capacity(profile, round, key)
        weight = float(profile.samples if by_rows else profile.samples > 0)
        return Assignment(view(state, size, key.child("sketch")), weight, down, up or down, {"learning_rate": schedule(round), "size": size})

    return Phase("train", assign, Sized(tuple(locals)), server, link or Digital(), reducer)


def alike(profile: Profile, round: int, key: Key) -> int:
    """Give every client the first size."""
    return 0

"""`server_optimised`: any method whose server averages, with momentum or an adaptive optimiser at
the server.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from bayesfed.algorithms.wrappers.noising import Noised
from bayesfed.algorithms.wrappers.phases import each_phase
from bayesfed.errors import ArgumentError
from bayesfed.federated.aggregation.robust import Robust
from bayesfed.federated.aggregation.server_optimisers import (
    OPTIMISER,
    FedAvgM,
    Optimised,
    ServerOptimiser,
    TakesMomentum,
)
from bayesfed.federated.aggregation.servers import Add, Average
from bayesfed.federated.core.algorithm import Algorithm, Phase
from bayesfed.federated.core.protocols import Assignment, Local, Profile, Skip
from bayesfed.federated.training.batch_norm import Buffered
from bayesfed.keys import Key
from bayesfed.trees import Tree, without

Served = TypeVar("Served")


def server_optimised(algorithm: Algorithm, optimiser: ServerOptimiser) -> Algorithm:
    """Let the server step along the averaged change of a round by an optimiser: FedAvgM, FedAdam,
    FedYogi, FedAdagrad.

    This is the one way to a server optimiser, for every method whose server is `Average` or `Add`:
    `fed_avg`, `fed_prox`, `fed_paq`, `fed_lora`, `hetero_fl` and others, also inside or outside of
    `private` and `robust`. The moments belong to the server's state: they are never sent, and a run
    that is resumed continues with them bit for bit. Entries that no client of a round covers count
    as unchanged.

    `flex_lora` and `fed_stack_lora` take `FedAvgM`: momentum of the product of their adapters and
    of the merged weights. Clients of `fed_stack_lora` keep the velocity beside the delta; those
    that did not hear the last round are sent both. `bayesian_lora` and `federated_svi` take any
    optimiser with `MeanParameters`; `SummedGradients` has one of its own.

    Parameters
    ----------
    algorithm
        Method of one phase, whose server averages, or takes momentum (`TakesMomentum`).
    optimiser
        `FedAvgM()`, `FedAdam()`, `FedYogi()` or `FedAdagrad()`, or a `ServerOptimiser` of your own.

    Raises
    ------
    ArgumentError
        If `optimiser` is not an optimiser of the server, the method has several phases or another
        server, or running statistics travel with the parameters, which are no directions of
        descent.

    References
    ----------
    Reddi et al., "Adaptive federated optimization" (2021), Algorithm 2; Hsu, Qi and Brown (2019)
    for momentum.

    Examples
    --------
    >>> algorithm = server_optimised(fed_avg(net), FedAdam(0.01))
    """
    where = f"server_optimised, {algorithm.name!r}"
    if (
        isinstance(optimiser, type)
        or not hasattr(optimiser, "step")
        or not hasattr(optimiser, "initial")
    ):
        actual = optimiser.__name__ if isinstance(optimiser, type) else repr(optimiser)
        raise ArgumentError(
            where, "an optimiser of the server as a value", actual, "FedAdam(0.01), FedAvgM()"
        )
    if len(algorithm.phases) != 1:
        names = [phase.name for phase in algorithm.phases]
        raise ArgumentError(where, "a method of one phase", names, "fed_avg, fed_prox, fed_lora")

    def planned(phase: Phase) -> Phase:
        def plan(state: Tree, round: int, profile: Profile, key: Key) -> Assignment | Skip:
            return phase.assign(without(state, OPTIMISER), round, profile, key)

        return replace(phase, assign=plan)

    def changed(phase: Phase) -> Phase:
        _check_averages(phase, where)
        return replace(planned(phase), server=Optimised(phase.server, optimiser))

    def carried(phase: Phase, server: TakesMomentum) -> tuple[Algorithm, Tree]:
        if not isinstance(optimiser, FedAvgM):
            actual = type(optimiser).__name__
            raise ArgumentError(where, "momentum of products", actual, "FedAvgM(1.0, 0.5)")
        phase, moments = server.with_momentum(planned(phase), optimiser, algorithm.initial)
        return replace(algorithm, phases=(phase,)), moments

    (only,) = algorithm.phases
    if isinstance(only.server, TakesMomentum):
        served, moments = carried(only, only.server)
    else:
        served, moments = (
            each_phase(algorithm, "server_optimised", changed),
            optimiser.initial(algorithm.initial),
        )

    def bare(served: Callable[[Tree], Served]) -> Callable[[Tree], Served]:
        return lambda state: served(without(state, OPTIMISER))

    personal = algorithm.personal
    return replace(
        served,
        initial=algorithm.initial | moments,
        predictor=bare(algorithm.predictor),
        posterior=bare(algorithm.posterior) if algorithm.posterior else None,
        sizes={name: bare(size) for name, size in algorithm.sizes.items()},
        personal=(lambda state, memory: personal(without(state, OPTIMISER), memory))
        if personal
        else None,
    )


def _check_averages(phase: Phase, where: str) -> None:
    """Raise `ArgumentError` unless the server averages, possibly behind noise or a robust rule, and
    no running statistics travel.
    """
    server = phase.server
    while isinstance(server, Noised | Robust):
        server = server.server
    if not isinstance(server, Average | Add) and not getattr(server, "averages", False):
        hint = "fed_avg, fed_prox, fed_paq, fed_lora, hetero_fl"
        raise ArgumentError(where, "a server that is Average or Add", type(server).__name__, hint)
    local: Local | None = phase.local
    while local is not None:
        if isinstance(local, Buffered) and local.travels:
            actual = "running statistics that travel"
            raise ArgumentError(
                where, "parameters alone", actual, "buffers='local', or static norms"
            )
        local = getattr(local, "local", None)

"""`server_optimised`: any method whose server averages, with momentum or an adaptive optimiser at
the server.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import checked
from bayesfed.federated import (
    Algorithm,
    FedAvgM,
    Layer,
    Model,
    Moment,
    ServerOptimiser,
    Traits,
    Update,
    layered,
)
from bayesfed.federated.aggregation.changes import VECTORS
from bayesfed.federated.core import Info, Inner, of, seams
from bayesfed.federated.core.layering import only_phase
from bayesfed.trees import Tree, running_statistics


@checked()
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
    phase = only_phase(algorithm, where)
    server = seams.takes_momentum(phase.server)
    if server is None:
        model = algorithm.predictor(algorithm.initial)
        (core, _) = phase.scope.parted(algorithm.initial)
        if isinstance(model, Model) and set(running_statistics(model.net)) & core.keys():
            raise ArgumentError(
                where,
                "parameters alone",
                "running statistics that travel",
                "buffers='local', or static norms",
            )
        return layered(algorithm, Optimised(optimiser=optimiser), where=where)
    if not seams.momentum_alone(optimiser):
        raise ArgumentError(
            where, "momentum of products", type(optimiser).__name__, "FedAvgM(1.0, 0.5)"
        )
    core, _ = phase.scope.parted(algorithm.initial)
    made, moments = server.with_momentum(phase, optimiser, core)
    return replace(algorithm, phases=(made,), initial=algorithm.initial | of(phase.within, moments))


@dataclass(frozen=True)
class Optimised(Layer):
    """The step of an optimiser from the model before a round to the average of the round.

    Parameters
    ----------
    optimiser
        Optimiser that takes the step.
    """

    owner: str = "optimiser"
    optimiser: ServerOptimiser = FedAvgM()
    traits: ClassVar[Traits] = Traits(takes=VECTORS, averages=True)

    def start(self, moment: Moment) -> Tree:
        """Return the moments before round 0."""
        return self.optimiser.initial(moment.model)

    def step(
        self, own: Tree, moment: Moment, total: Update | None, inner: Inner
    ) -> tuple[Tree, Tree, Info]:
        """Average, then step. A round in which no client has data changes nothing."""
        averaged, info = inner(total)
        if averaged is moment.model:
            return own, averaged, info
        model, moments = self.optimiser.step(moment.model, averaged, own)
        return moments, model, info

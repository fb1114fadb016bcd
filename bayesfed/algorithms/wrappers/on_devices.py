"""`Planner`: which size of a network a client trains, how much of its update it sends and how fast it computes; `on_devices` gives any method one.

The plan is `bayesfed.wireless.allocation`'s, with what was measured in place of the paper's alpha W and alpha S: of the sizes there are, that of the
largest learning gain within the deadline and the client's own budget.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from bayesfed.compress.codecs import Codec
from bayesfed.errors import ArgumentError, complain
from bayesfed.federated.core.algorithm import Algorithm
from bayesfed.federated.core.protocols import Assignment, Profile, Skip
from bayesfed.federated.links.deadline import Cell
from bayesfed.keys import Key
from bayesfed.models.elastic.shares import Share
from bayesfed.trees import Tree
from bayesfed.wireless.allocation import Infeasible, plan
from bayesfed.wireless.devices import Device
from bayesfed.wireless.energy import Load, work_cycles


@dataclass(frozen=True)
class Planned:
    """One client's round.

    Parameters
    ----------
    size
        Number of the size it trains.
    steps
        Of its training.
    load
        With the shrinking factor of that size, and the share of its update's bits to send at most.
    """

    size: int
    steps: int
    load: Load

    @property
    def learning_gain(self) -> float:
        """``alpha^4 beta`` (19)."""
        return self.load.alpha**4 * self.load.beta


@dataclass(frozen=True)
class Planner:
    """Plan one client's round from its device and where it is; needs nothing of the others.

    Parameters
    ----------
    sizes
        Sub-models to choose from, of any order: `shrunk_shares`, or one row for methods that never shrink.
    deadline_s
        T_max, of training and sending together.
    beta
        Least and largest share of an update's bits, equal where a method has no choice.
    energy_j
        Budget of a round in place of the devices' own; infinity for methods that know none.
    epochs, batch_size
        Local work: ``epochs * samples / batch_size`` steps, at least one.

    Raises
    ------
    ArgumentError
        If there is no size, `deadline_s` or `epochs` is not positive, `batch_size` is below 1, or beta is not two numbers in (0, 1] in order.
    """

    sizes: tuple[Share, ...]
    deadline_s: float
    beta: tuple[float, float] = (1.0, 1.0)
    epochs: float = 1.0
    batch_size: int = 32
    energy_j: float | None = None

    def __post_init__(self) -> None:
        if not self.sizes or not self.deadline_s > 0 or not self.epochs > 0 or self.batch_size < 1:
            actual = (len(self.sizes), self.deadline_s, self.epochs, self.batch_size)
            expected = "a size, deadline_s > 0, epochs > 0 and batch_size >= 1"
            raise ArgumentError(complain("Planner", expected=expected, actual=actual, hint="shrunk_shares(...), 5.0, 1.0, 32"))
        if not 0 < self.beta[0] <= self.beta[1] <= 1:
            raise ArgumentError(complain("Planner.beta", expected="0 < least <= largest <= 1", actual=self.beta, hint="(1 / 500, 1 / 15)"))

    def __call__(self, profile: Profile, round: int, key: Key) -> Planned | Skip:
        """Return the plan, or why there is none: that of the size which comes nearest."""
        if not profile.samples:
            return Skip("no rows")
        device = Device.from_figures(profile.device)
        gain = device.gain(device.distance_m(key, profile.name, round))
        steps = max(1, int(self.epochs * profile.samples / self.batch_size))
        epochs = steps * min(self.batch_size, profile.samples) / profile.samples
        best, reasons = None, list[Infeasible]()
        for number, size in enumerate(self.sizes):
            cycles = work_cycles(size.macs, profile.samples, macs_per_cycle=device.macs_per_cycle, epochs=epochs)
            found = plan(
                device, gain, cycles=cycles, size_bits=32 * size.parameters, latency_s=self.deadline_s, energy_j=self.energy_j,
                alpha_min=1.0, alpha_max=1.0, beta_min=self.beta[0], beta_max=self.beta[1],
            )  # fmt: skip
            if isinstance(found, Infeasible):
                reasons.append(found)
                continue
            load = Load(device, gain, cycles, cycles * device.macs_per_cycle, found.frequency_hz, size.alpha, found.beta, found.bits)
            here = Planned(number, steps, load)
            best = here if best is None or here.learning_gain > best.learning_gain else best
        return best or Skip(min(reasons, key=lambda reason: abs(reason.excess) / max(reason.allowed, 1e-300)).reason)


def on_devices(algorithm: Algorithm, planner: Planner, *, up: Callable[[float], Codec] | None = None) -> Algorithm:
    """Run a method on devices: each client's seconds and joules are counted, who cannot take part in a round is left out and who is late is dropped.

    Clients take the planner's steps in place of the method's own, and compute as slowly as the deadline allows.

    Parameters
    ----------
    algorithm
        Of one phase, its locals descents. If it has sizes (`hetero_fl`), let `planned_size(planner)` be its capacity.
    planner
        Its sizes are the method's, in the method's order.
    up
        Makes the up-link's codec of the planned beta; default: the method's own, whose messages should keep to the planner's beta.

    Raises
    ------
    ArgumentError
        If the method has several phases.
    """
    if len(algorithm.phases) != 1:
        names = [phase.name for phase in algorithm.phases]
        raise ArgumentError(complain("on_devices", expected="a method of one phase", actual=names, hint="fed_avg, hetero_fl, stc"))
    (phase,) = algorithm.phases

    def assign(state: Tree, round: int, profile: Profile, key: Key) -> Assignment | Skip:
        planned = planner(profile, round, key)
        if isinstance(planned, Skip):
            return planned
        found = phase.assign(state, round, profile, key)
        if isinstance(found, Skip):
            return found
        return replace(found, up=up(planned.load.beta) if up else found.up, options=replace(found.options, steps=planned.steps), load=planned.load)

    return replace(algorithm, phases=(replace(phase, assign=assign, link=Cell(planner.deadline_s, phase.link)),))


def planned_size(planner: Planner) -> Callable[[Profile, int, Key], int]:
    """Return a `Capacity`: the size that the planner gives a client, 0 for one that it leaves out.

    Parameters
    ----------
    planner
        With the sizes of the method's networks, largest first.
    """

    def capacity(profile: Profile, round: int, key: Key) -> int:
        planned = planner(profile, round, key)
        return 0 if isinstance(planned, Skip) else planned.size

    return capacity

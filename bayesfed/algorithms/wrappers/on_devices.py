"""`Planner` chooses a client's size of network, the share of its update that it sends and its
speed; `on_devices` uses it for any method.

Plans come from `bayesfed.wireless.allocation`, with measured work and size in place of the paper's
alpha W and alpha S: the planner takes the size with the largest learning gain within the deadline
and the client's own budget, for one epoch, and makes more epochs of what is left. A client whose
epoch fits at no size takes the steps that fit.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from bayesfed.compress import Codec
from bayesfed.compress.budgets import full_bits
from bayesfed.compress.codecs import exact
from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import (
    COUNT,
    NOT_NEGATIVE,
    POSITIVE,
    Role,
    checked,
    checked_class,
    number,
)
from bayesfed.federated import Algorithm, Assignment, Cell, Layer, Link, Profile, Skip, layered
from bayesfed.federated.core import Turn
from bayesfed.federated.core.seams import inner_codec
from bayesfed.federated.core.settings import with_settings
from bayesfed.keys import Key
from bayesfed.models import Share
from bayesfed.trees import Tree
from bayesfed.wireless import Device, Infeasible, Load, device_rate, plan, work_cycles


@dataclass(frozen=True)
class Planned:
    """The plan of one client's round.

    Parameters
    ----------
    size
        Number of the size that the client trains.
    steps
        Number of local steps.
    load
        What the client spends, with the shrinking factor of that size and the largest share of its
        update's bits to send.
    """

    size: int
    steps: int
    load: Load

    @property
    def learning_gain(self) -> float:
        """``alpha^4 beta`` (19)."""
        return self.load.alpha**4 * self.load.beta


# Most passes over its rows that a device makes in a round, unless told otherwise.
EPOCHS = 5.0
ABOVE_0 = number("(0, inf]", "5.0")


@checked_class(
    sizes=Role(lambda sizes: len(sizes) > 0, "one size or more", "shrunk_shares(...)"),
    deadline_s=ABOVE_0,
    epochs=POSITIVE,
    batch_size=COUNT,
    energy_j=ABOVE_0,
    header_bits=NOT_NEGATIVE,
)
@dataclass(frozen=True)
class Planner:
    """Plan one client's round from its device and its position, independently of other clients.

    Parameters
    ----------
    sizes
        Sub-models to choose from, in any order: the result of `shrunk_shares`, or a single row for
        methods that never shrink.
    deadline_s
        T_max, the seconds for training and sending together.
    beta
        Least and largest share of an update's bits; equal where a method has no choice.
    energy_j
        Energy budget of a round in joules, in place of the devices' own.
    epochs, batch_size
        Most local work: ``epochs * samples / batch_size`` steps, at least one; fewer where the
        budgets are too small for them. AnycostFL's paper makes one epoch. Those beyond the first
        are made as far as they cost neither size nor bits.
    header_bits
        Bits of a message beside beta's share, such as names and shapes beside 32-bit floats.
    floors
        Least beta of each size, where a small network's shortest message is a larger share of it
        than the whole network's. Default: `beta`'s least for all.

    Raises
    ------
    ArgumentError
        If there is no size, `deadline_s` or `epochs` is not positive, `batch_size` is below 1, or
        beta is not two numbers in (0, 1] in order.
    """

    sizes: tuple[Share, ...]
    deadline_s: float
    beta: tuple[float, float] = (1.0, 1.0)
    epochs: float = EPOCHS
    batch_size: int = 32
    energy_j: float | None = None
    header_bits: int = 0
    floors: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.beta[0] <= self.beta[1] <= 1:
            raise ArgumentError(
                "Planner.beta", "0 < least <= largest <= 1", self.beta, "(1 / 500, 1 / 15)"
            )

    def __call__(self, profile: Profile, round: int, key: Key) -> Planned | Skip:
        """Return the plan; if not even one step fits, the reason of the size that comes nearest.

        Where one epoch fits at no size, the plan is of as many steps as fit at any.
        """
        if not profile.samples:
            return Skip("no rows")
        device = Device.from_figures(profile.device)
        gain = device.gain(device.distance_m(key, profile.name, round))
        planned = partial(self._planned, profile, device, gain)
        once, most = (
            max(1, int(epochs * profile.samples / self.batch_size))
            for epochs in (min(self.epochs, 1.0), self.epochs)
        )
        # Fewer steps cost less of both budgets, so those that fit come before those that do not.
        fit = bisect_left(
            range(1, 1 + once), True, key=lambda steps: isinstance(planned(steps), Skip)
        )
        found = planned(max(fit, 1))
        if isinstance(found, Skip) or fit < once:
            return found

        def costs(steps: int) -> bool:
            more = planned(steps)
            return isinstance(more, Skip) or more.learning_gain < found.learning_gain

        # What one epoch leaves of the budgets goes into more of them.
        return planned(fit + bisect_left(range(fit + 1, most + 1), True, key=costs))

    def _planned(self, profile: Profile, device: Device, gain: float, steps: int) -> Planned | Skip:
        """Plan a number of steps, at the size with the largest gain."""
        epochs = steps * min(self.batch_size, profile.samples) / profile.samples
        header_s = self.header_bits / device_rate(device, gain)
        energy_j = device.energy_j if self.energy_j is None else self.energy_j
        best, reasons = None, list[Infeasible]()
        floors = self.floors or [0.0] * len(self.sizes)
        for index, (size, floor) in enumerate(zip(self.sizes, floors, strict=True)):
            cycles = work_cycles(
                size.macs, profile.samples, macs_per_cycle=device.macs_per_cycle, epochs=epochs
            )
            found = plan(
                device,
                gain,
                cycles=cycles,
                size_bits=32 * size.parameters,
                latency_s=max(self.deadline_s - header_s, 0.0),
                energy_j=max(energy_j - header_s * device.power_w, 0.0),
                alpha_min=1.0,
                alpha_max=1.0,
                beta_min=min(max(self.beta[0], floor), self.beta[1]),
                beta_max=self.beta[1],
            )
            if isinstance(found, Infeasible):
                reasons.append(found)
                continue
            load = Load(
                device,
                gain,
                cycles,
                cycles * device.macs_per_cycle,
                found.frequency_hz,
                size.alpha,
                found.beta,
                found.bits + self.header_bits,
            )
            here = Planned(index, steps, load)
            best = here if best is None or here.learning_gain > best.learning_gain else best
        return best or Skip(
            min(reasons, key=lambda reason: abs(reason.excess) / max(reason.allowed, 1e-300)).reason
        )


@checked()
def on_devices(algorithm: Algorithm, planner: Planner) -> Algorithm:
    """Run a method on devices under their budgets of energy and time: count each client's seconds
    and joules, leave out clients that have not enough for one step, and drop late ones.

    Clients take the planner's number of steps in place of the method's own, as many as fit, and
    compute as slowly as the deadline allows.

    Parameters
    ----------
    algorithm
        A method of one phase whose local steps are descents. If it has sizes (`hetero_fl`), give it
        ``capacity=planned_size(planner)``.
    planner
        The planner, with the method's sizes in the method's order. Messages of the method's own
        codec should keep to its beta; where that is 1, names and shapes are added.

    Raises
    ------
    ArgumentError
        If the method has several phases.
    """
    planner = with_header(planner, algorithm.initial)
    layer = Devices(planner=planner, deadline_s=planner.deadline_s)
    return layered(algorithm, layer, where="on_devices")


def with_header(planner: Planner, payload: Tree) -> Planner:
    """Return a planner that knows of names and shapes beside 32-bit floats, if its beta is 1."""
    if planner.beta[0] < 1 or planner.header_bits:
        return planner
    # An address travels with it.
    message = exact(payload).encode(payload, {"address": " " * 128}, Key(0))
    return replace(planner, header_bits=8 * len(message) - full_bits(payload))


@dataclass(frozen=True)
class Devices(Layer):
    """Turns that are planned for a device, whose seconds and joules are counted.

    Parameters
    ----------
    planner
        Plan of a client's round, or the reason why it has none.
    up
        ``beta -> codec`` of the up-link; None for the method's own.
    deadline_s
        Seconds for training and sending together.
    """

    owner: str = "devices"
    planner: Callable[[Profile, int, Key], Planned | Skip] | None = None
    up: Callable[[float], Codec] | None = None
    deadline_s: float = math.inf

    def plan(self, own: Tree, turn: Turn, assignment: Assignment) -> Assignment | Skip:
        """Plan the number of steps, the codec and the load."""
        planned = (
            self.planner(turn.profile, turn.round, turn.key) if self.planner else Skip("no plan")
        )
        if isinstance(planned, Skip):
            return planned
        options, up = replace(assignment.options, steps=planned.steps), assignment.up
        if self.up:
            up, _ = inner_codec(self.up(planned.load.beta))
        return replace(assignment, up=up, options=options, load=planned.load)

    def link(self, link: Link) -> Link:
        """Leave out who is late."""
        return Cell(self.deadline_s, link)


@checked()
def planned_size(planner: Planner) -> Callable[[Profile, int, Key], int]:
    """Return a `Capacity`: the size that the planner gives a client, 0 for one that it leaves out.

    Parameters
    ----------
    planner
        A planner with the sizes of the method's networks, largest first.
    """

    @with_settings(planner=planner)
    def capacity(profile: Profile, round: int, key: Key) -> int:
        planned = planner(profile, round, key)
        return 0 if isinstance(planned, Skip) else planned.size

    return capacity

"""`timed`: count the seconds and joules of clients that compute as fast as their devices can, with
or without a deadline.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from bayesfed.algorithms.registry import ALGORITHM
from bayesfed.algorithms.wrappers.on_devices import Devices
from bayesfed.errors.checks import checked
from bayesfed.federated import Algorithm, Assignment, Profile, Skip, layered
from bayesfed.federated.core import Turn
from bayesfed.trees import Tree
from bayesfed.wireless import Device, Load, work_cycles


@checked(algorithm=ALGORITHM)
def timed(
    algorithm: Algorithm,
    macs: float,
    *,
    rows: Callable[[Profile], float] | None = None,
    deadline_s: float = math.inf,
) -> Algorithm:
    """Run a method on devices at their highest clock frequency, and count each client's seconds and
    joules. `on_devices` saves energy instead.

    Parameters
    ----------
    algorithm
        A method of one phase. The clients have a `Device` in their profiles:
        ``InProcess(data, devices={name: device.figures()})``.
    macs
        Multiply-accumulates of one forward pass on one row:
        ``total_cost(costs(net, example)).macs``.
    rows
        ``(profile) -> rows`` that a client computes with in a turn, a row as often as it is used.
        Default: each of its rows once.
    deadline_s
        Seconds for training and sending together. Clients that take longer are left out of the
        round. Default: no deadline.

    Raises
    ------
    ArgumentError
        If the method has several phases, or `deadline_s` is not positive.
    """
    return layered(algorithm, Timed(deadline_s=deadline_s, macs=macs, rows=rows), where="timed")


@dataclass(frozen=True)
class Timed(Devices):
    """Turns at the highest clock frequency of a device.

    Parameters
    ----------
    macs
        Multiply-accumulates of one forward pass on one row.
    rows
        ``(profile) -> rows`` that a client computes with in a turn; None for each of its rows once.
    """

    macs: float = 0.0
    rows: Callable[[Profile], float] | None = None

    def plan(self, own: Tree, turn: Turn, assignment: Assignment) -> Assignment | Skip:
        """Plan the load."""
        profile = turn.profile
        if not profile.samples:
            return Skip("no rows")
        device = Device.from_figures(profile.device)
        gain = device.gain(device.distance_m(turn.key, profile.name, turn.round))
        epochs = (self.rows(profile) if self.rows else profile.samples) / profile.samples
        speed = device.macs_per_cycle
        cycles = work_cycles(self.macs, profile.samples, macs_per_cycle=speed, epochs=epochs)
        load = Load(device, gain, cycles, cycles * speed, device.max_frequency_hz)
        return replace(assignment, load=load)

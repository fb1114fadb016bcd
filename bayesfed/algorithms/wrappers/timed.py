"""`timed`: any method on devices that compute as fast as they can."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from bayesfed.algorithms.wrappers.on_devices import Devices
from bayesfed.errors.checks import POSITIVE, checked
from bayesfed.federated import Algorithm, Assignment, Skip, layered
from bayesfed.federated.core import Turn
from bayesfed.trees import Tree
from bayesfed.wireless import Device, Load, work_cycles


@checked(macs=POSITIVE)
def timed(algorithm: Algorithm, macs: float, *, deadline_s: float = math.inf) -> Algorithm:
    """Run a method on devices at their highest clock frequency, and count each client's seconds and
    joules. `on_devices` saves energy instead.

    Parameters
    ----------
    algorithm
        A method of one phase. The clients have a `Device` in their profiles:
        ``InProcess(data, devices={name: device.figures()})``.
    macs
        Multiply-accumulates of one forward pass on one row:
        ``total_cost(costs(net, example)).macs``. A turn takes as many as the client has rows.
    deadline_s
        Seconds for training and sending together. Clients that take longer are left out of the
        round. Default: no deadline.

    Raises
    ------
    ArgumentError
        If the method has several phases, or `deadline_s` is not positive.
    """
    return layered(algorithm, Timed(deadline_s=deadline_s, macs=macs), where="timed")


@dataclass(frozen=True)
class Timed(Devices):
    """Turns at the highest clock frequency of a device.

    Parameters
    ----------
    macs
        Multiply-accumulates of one forward pass on one row.
    """

    macs: float = 0.0

    def plan(self, own: Tree, turn: Turn, assignment: Assignment) -> Assignment | Skip:
        """Plan the load."""
        profile = turn.profile
        if not profile.samples:
            return Skip("no rows")
        device = Device.from_figures(profile.device)
        gain = device.gain(device.distance_m(turn.key, profile.name, turn.round))
        speed = device.macs_per_cycle
        cycles = work_cycles(self.macs, profile.samples, macs_per_cycle=speed)
        load = Load(device, gain, cycles, cycles * speed, device.max_frequency_hz)
        return replace(assignment, load=load)

"""`timed`: count the seconds and joules of clients that compute as fast as their devices can, with
or without a deadline.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from bayesfed.algorithms.registry import ALGORITHM
from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import checked
from bayesfed.federated.core.algorithm import Algorithm
from bayesfed.federated.core.protocols import Assignment, Profile, Skip
from bayesfed.federated.links.deadline import Cell
from bayesfed.keys import Key
from bayesfed.trees import Tree
from bayesfed.wireless.devices import Device
from bayesfed.wireless.energy import Load, work_cycles


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
    if len(algorithm.phases) != 1:
        names = [phase.name for phase in algorithm.phases]
        raise ArgumentError("timed", "a method of one phase", names, "fed_avg, stc, federated_svi")
    (phase,) = algorithm.phases

    def assign(state: Tree, round: int, profile: Profile, key: Key) -> Assignment | Skip:
        if not profile.samples:
            return Skip("no rows")
        assigned = phase.assign(state, round, profile, key)
        if isinstance(assigned, Skip):
            return assigned
        device = Device.from_figures(profile.device)
        gain = device.gain(device.distance_m(key, profile.name, round))
        epochs = (rows(profile) if rows else profile.samples) / profile.samples
        cycles = work_cycles(
            macs, profile.samples, macs_per_cycle=device.macs_per_cycle, epochs=epochs
        )
        return replace(
            assigned,
            load=Load(
                device, gain, cycles, cycles * device.macs_per_cycle, device.max_frequency_hz
            ),
        )

    return replace(
        algorithm, phases=(replace(phase, assign=assign, link=Cell(deadline_s, phase.link)),)
    )

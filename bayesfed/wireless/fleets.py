"""Several devices at once: random fleets as in AnycostFL's section V-A."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from bayesfed.errors import ArgumentError
from bayesfed.keys import Key
from bayesfed.wireless.devices import Device

Range = tuple[float, float]


def fleet(
    names: Sequence[str],
    key: Key,
    *,
    joules_per_cycle_hz2: Range = (5e-27, 1e-26),
    energy_j: Range = (1.5, 4.5),
    distance_m: Range | None = None,
    like: Device | None = None,
) -> dict[str, Device]:
    """Draw a device for each client. Each figure is uniform and has its own random stream.

    The defaults are the paper's values for Fashion-MNIST (T_max of 5 s); for CIFAR-10 it doubles
    `energy_j` to (3, 9) and T_max to 10 s. Budgets are drawn once and hold in every round.

    Parameters
    ----------
    names
        Names of the clients.
    key
        Key of the draws. The device of a name depends neither on the order nor on the number of
        names.
    joules_per_cycle_hz2
        Least and largest energy coefficient.
    energy_j
        Least and largest energy budget of a round.
    distance_m
        Least and largest distance. It is drawn once, and the device stays there. None: the device
        moves in the ring of `like`.
    like
        Device with all other figures. Default: ``Device()``.

    Raises
    ------
    ArgumentError
        If names are not distinct, or a range is not two positive finite numbers, the smaller one
        first.
    """
    if len(set(names)) != len(names):
        raise ArgumentError("fleet", "distinct names", sorted(names), "sorted(clients)")
    ranges = {
        "joules_per_cycle_hz2": joules_per_cycle_hz2,
        "energy_j": energy_j,
        **({} if distance_m is None else {"distance_m": distance_m}),
    }
    for what, (low, high) in ranges.items():
        if not 0 < low <= high < math.inf:
            raise ArgumentError(f"fleet.{what}", "0 < low <= high", (low, high), "(1.5, 4.5)")
    like = Device() if like is None else like
    devices = {}
    for name in names:
        drawn = {
            what: float(key.child("device", name, what).numpy().uniform(*bounds))
            for what, bounds in ranges.items()
        }
        if distance_m is not None:
            drawn["min_distance_m"] = drawn["max_distance_m"] = drawn.pop("distance_m")
        devices[name] = replace(like, **drawn)
    return devices

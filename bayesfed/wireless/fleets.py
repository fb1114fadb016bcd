"""Several devices at once: random fleets as in AnycostFL's section V-A, with the spreads of its
Fig. 5, and the three boards of its Fig. 1.
"""

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
            raise ArgumentError(
                f"fleet.{what}", "0 < low <= high", (low, high), "uniform_range(mean, variance)"
            )
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


def uniform_range(mean: float, variance: float) -> Range:
    """Return the range of a uniform distribution with this mean and variance, for the heterogeneity
    sweeps of Fig. 5(b, c).

    The paper varies the variances around 7.5e-27 J/(cycle Hz^2) and 400 m without naming the
    distribution; its default of the former is uniform with that mean.

    Raises
    ------
    ArgumentError
        If the variance is negative or not finite, or so large that the range reaches 0.
    """
    if not (0 < mean < math.inf and 0 <= variance < mean**2 / 3):
        expected = "a positive mean and a variance in [0, mean^2 / 3)"
        raise ArgumentError("uniform_range", expected, (mean, variance), "a smaller variance")
    half = math.sqrt(3 * variance)
    return mean - half, mean + half


def _board(cores: int, hertz: float, watts: float) -> Device:
    # All power of the module is attributed to the clock, epsilon = P / f^3. Small networks reach
    # 0.1 of the peak of one MAC per core and cycle.
    return Device(
        macs_per_cycle=0.1 * cores,
        min_frequency_hz=hertz / 8,
        max_frequency_hz=hertz,
        joules_per_cycle_hz2=watts / hertz**3,
    )


def jetsons() -> dict[str, Device]:
    """Return devices like the boards of Fig. 1, with their GPU at its highest clock frequency.

    CUDA cores, GPU clock and power budget of the power modes are those of NVIDIA's data sheets and
    Jetson Linux guides ("Supported Modes and Power Efficiency"): Nano 128 at 921.6 MHz in 10 W,
    Xavier NX 384 at 1100 MHz in 15 W, AGX Xavier 512 at 900 MHz in 30 W. The share of the peak that
    training reaches is a guess, 0.1 for all three; it scales seconds and joules of computing alike.
    """
    return {
        "Nano": _board(128, 921.6e6, 10.0),
        "Xavier NX": _board(384, 1100e6, 15.0),
        "AGX Xavier": _board(512, 900e6, 30.0),
    }

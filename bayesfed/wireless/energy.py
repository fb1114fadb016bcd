"""The cost of a round for a device: seconds and joules of computing and of the up-link, eqs. (6) to
(9).

=========================  ============================================
paper                      here
=========================  ============================================
``tau |D_i| W``            `work_cycles`, of the whole network
``f``, ``epsilon``         ``frequency_hz``, ``joules_per_cycle_hz2``
``|h|``, ``P``, ``b``      ``gain``, ``power_w``, ``bandwidth_hz``
``N0``, ``r``              ``noise_w_per_hz``, `device_rate`
``alpha W``, ``beta S``    cycles and bits that are really spent
=========================  ============================================

As in the paper, the down-link costs the device nothing.

References
----------
Li et al., AnycostFL, INFOCOM 2023, section IV-A.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from bayesfed.errors.checks import NOT_NEGATIVE, POSITIVE, checked, whole
from bayesfed.wireless.devices import Device


@dataclass(frozen=True)
class RoundCost:
    """Seconds and joules of one client's round, separately for computing and up-link."""

    compute_s: float
    uplink_s: float
    compute_j: float
    uplink_j: float

    @property
    def latency_s(self) -> float:
        """Seconds of computing and then sending, the left side of (10a)."""
        return self.compute_s + self.uplink_s

    @property
    def energy_j(self) -> float:
        """Joules of computing and sending, the left side of (10b)."""
        return self.compute_j + self.uplink_j


@dataclass(frozen=True)
class Load:
    """The work that a plan gives a client for a round.

    Parameters
    ----------
    device
        The client's device.
    gain
        Power gain of its channel in this round.
    cycles, macs
        Cycles and multiply-accumulates of its training.
    frequency_hz
        Clock frequency it computes at.
    alpha, beta
        Planned share of the network's work, and largest planned share of the update's bits.
    bits
        Length in bits of the longest message that keeps to the plan.
    """

    device: Device
    gain: float
    cycles: float
    macs: float
    frequency_hz: float
    alpha: float = 1.0
    beta: float = 1.0
    bits: float = math.inf

    def cost(self, bits: float) -> RoundCost:
        """Return the cost of the round if that many bits are sent."""
        return round_cost(
            self.device, self.gain, cycles=self.cycles, bits=bits, frequency_hz=self.frequency_hz
        )


@checked(
    macs=POSITIVE,
    samples=whole(1, "leaving this client out of the round"),
    macs_per_cycle=POSITIVE,
    epochs=POSITIVE,
    passes=POSITIVE,
)
def work_cycles(
    macs: float, samples: int, *, macs_per_cycle: float, epochs: float = 1.0, passes: float = 3.0
) -> float:
    """Return the processor cycles of a round's training, ``tau |D_i| W``.

    Parameters
    ----------
    macs
        Multiply-accumulates of one forward pass on one example:
        ``total_cost(costs(net, example)).macs``.
    samples
        Number of rows of the client, |D_i|.
    macs_per_cycle
        Multiply-accumulates per cycle of the device.
    epochs
        tau. If a round is a number of steps: ``steps * batch_size / samples``.
    passes
        Forward passes that one step of training is equal to. The default 3 counts the backward pass
        as two; 1 counts forward passes only.

    Raises
    ------
    ArgumentError
        If the client has no data, or a figure is not positive and finite.
    """
    return macs * passes * samples * epochs / macs_per_cycle


@checked(gain=POSITIVE)
def device_rate(device: Device, gain: float) -> float:
    """Return the rate of a device over its channel in bits per second,
    ``b log2(1 + |h| P / (N0 b))`` (8).

    Raises
    ------
    ArgumentError
        If the gain is not positive and finite.
    """
    noise_w = device.noise_w_per_hz * device.bandwidth_hz
    return device.bandwidth_hz * math.log1p(gain * device.power_w / noise_w) / math.log(2)


@checked(cycles=NOT_NEGATIVE, bits=NOT_NEGATIVE, frequency_hz=POSITIVE)
def round_cost(
    device: Device, gain: float, *, cycles: float, bits: float, frequency_hz: float
) -> RoundCost:
    """Return the cost of a round for a device.

    Parameters
    ----------
    device
        The device.
    gain
        Power gain of its channel in this round:
        ``device.gain(device.distance_m(key, client, round))``.
    cycles
        Cycles of its training. For a network shrunk by alpha: alpha times `work_cycles`.
    bits
        Bits that are really sent, ``8 * len(message)``; the ledger records them.
    frequency_hz
        Clock frequency it computes at. Whether the device supports it is not checked here.

    Raises
    ------
    ArgumentError
        If gain or frequency is not positive, or cycles or bits are negative.
    """
    # (9), (6) and (7).
    uplink_s = bits / device_rate(device, gain)
    return RoundCost(
        cycles / frequency_hz,
        uplink_s,
        device.joules_per_cycle_hz2 * frequency_hz**2 * cycles,
        uplink_s * device.power_w,
    )

"""What a round costs a device: seconds and joules of computing and of the up-link, eqs. (6) to (9).

=========================  ============================================
paper                      here
=========================  ============================================
``tau |D_i| W``            `work_cycles`, of the whole network
``f``, ``epsilon``         ``frequency_hz``, ``joules_per_cycle_hz2``
``|h|``, ``P``, ``b``      ``gain``, ``power_w``, ``bandwidth_hz``
``N0``, ``r``              ``noise_w_per_hz``, ``rate_bits_per_s``
``alpha W``, ``beta S``    cycles and bits, those really spent
=========================  ============================================

The down-link costs the device nothing here, as in the paper.

References
----------
Li et al., AnycostFL, INFOCOM 2023, section IV-A.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from bayesfed.errors import ArgumentError, complain
from bayesfed.wireless.devices import Device


@dataclass(frozen=True)
class RoundCost:
    """Seconds and joules of one client's round, computing and up-link apart."""

    compute_s: float
    uplink_s: float
    compute_j: float
    uplink_j: float

    @property
    def latency_s(self) -> float:
        """Both one after the other, the left side of (10a)."""
        return self.compute_s + self.uplink_s

    @property
    def energy_j(self) -> float:
        """Both together, the left side of (10b)."""
        return self.compute_j + self.uplink_j


@dataclass(frozen=True)
class Load:
    """What a client is asked to spend in a round, and on what.

    Parameters
    ----------
    gain
        Power gain of its channel in this round.
    cycles, macs
        Of its training.
    frequency_hz
        That it computes at.
    alpha, beta
        Share of the network's work, and of the update's bits at most, that the plan is made of.
    bits
        Those bits: the longest message that keeps to the plan.
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
        """Return what the round costs if that many bits are sent."""
        return round_cost(self.device, self.gain, cycles=self.cycles, bits=bits, frequency_hz=self.frequency_hz)


def work_cycles(macs: float, samples: int, *, macs_per_cycle: float, epochs: float = 1.0, passes: float = 3.0) -> float:
    """Return the cycles of a round's training, ``tau |D_i| W``.

    Parameters
    ----------
    macs
        Of one forward of one example: ``total_cost(costs(net, example)).macs``.
    samples
        Rows of the client, |D_i|.
    macs_per_cycle
        Of the device.
    epochs
        tau; ``steps * batch_size / samples`` where a round is a number of steps.
    passes
        Forwards that a step of training amounts to: 3, as a backward is two; 1 counts forwards alone.

    Raises
    ------
    ArgumentError
        If the client has no data, or a figure is not positive and finite.
    """
    if samples < 1:
        raise ArgumentError(complain("work_cycles.samples", expected="at least one row", actual=samples, hint="leaving this client out of the round"))
    _positive("work_cycles", macs=macs, macs_per_cycle=macs_per_cycle, epochs=epochs, passes=passes)
    return macs * passes * samples * epochs / macs_per_cycle


def compute_latency_s(cycles: float, frequency_hz: float) -> float:
    """Return the seconds of computing ``cycles / f`` (6)."""
    _positive("compute_latency_s", frequency_hz=frequency_hz)
    _not_negative("compute_latency_s", cycles=cycles)
    return cycles / frequency_hz


def compute_energy_j(cycles: float, frequency_hz: float, joules_per_cycle_hz2: float) -> float:
    """Return the joules of computing ``epsilon f^2 cycles`` (7)."""
    _positive("compute_energy_j", frequency_hz=frequency_hz, joules_per_cycle_hz2=joules_per_cycle_hz2)
    _not_negative("compute_energy_j", cycles=cycles)
    return joules_per_cycle_hz2 * frequency_hz**2 * cycles


def uplink_rate(gain: float, *, power_w: float, bandwidth_hz: float, noise_w_per_hz: float) -> float:
    """Return the rate in bits per second that the channel bears, ``b log2(1 + |h| P / (N0 b))`` (8).

    Raises
    ------
    ArgumentError
        If a figure is not positive and finite.
    """
    _positive("uplink_rate", gain=gain, power_w=power_w, bandwidth_hz=bandwidth_hz, noise_w_per_hz=noise_w_per_hz)
    return bandwidth_hz * math.log1p(gain * power_w / (noise_w_per_hz * bandwidth_hz)) / math.log(2)


def uplink_latency_s(bits: float, rate_bits_per_s: float) -> float:
    """Return the seconds that sending takes (9)."""
    _positive("uplink_latency_s", rate_bits_per_s=rate_bits_per_s)
    _not_negative("uplink_latency_s", bits=bits)
    return bits / rate_bits_per_s


def uplink_energy_j(uplink_s: float, power_w: float) -> float:
    """Return the joules that sending takes (9)."""
    _positive("uplink_energy_j", power_w=power_w)
    _not_negative("uplink_energy_j", uplink_s=uplink_s)
    return uplink_s * power_w


def device_rate(device: Device, gain: float) -> float:
    """Return the rate of a device over a channel, in bits per second (8)."""
    return uplink_rate(gain, power_w=device.power_w, bandwidth_hz=device.bandwidth_hz, noise_w_per_hz=device.noise_w_per_hz)


def round_cost(device: Device, gain: float, *, cycles: float, bits: float, frequency_hz: float) -> RoundCost:
    """Return what a round costs a device.

    Parameters
    ----------
    gain
        Power gain of its channel in this round: ``device.gain(device.distance_m(key, client, round))``.
    cycles
        Of its training: of a network shrunk by alpha, alpha times `work_cycles`.
    bits
        Really sent, ``8 * len(message)``; the ledger has them.
    frequency_hz
        That it computes at; whether the device can is not checked here.

    Raises
    ------
    ArgumentError
        If gain or frequency is not positive, or cycles or bits are negative.
    """
    uplink_s = uplink_latency_s(bits, device_rate(device, gain))
    return RoundCost(
        compute_latency_s(cycles, frequency_hz),
        uplink_s,
        compute_energy_j(cycles, frequency_hz, device.joules_per_cycle_hz2),
        uplink_energy_j(uplink_s, device.power_w),
    )


def _positive(where: str, **figures: float) -> None:
    for name, value in figures.items():
        if not 0 < value < math.inf:
            raise ArgumentError(complain(f"{where}.{name}", expected="a positive finite figure", actual=value, hint="a figure in SI units"))


def _not_negative(where: str, **figures: float) -> None:
    for name, value in figures.items():
        if not 0 <= value < math.inf:
            raise ArgumentError(complain(f"{where}.{name}", expected="a finite figure from 0 up", actual=value, hint="a figure in SI units"))

"""`Cost`: what it took to send one message, in bits, channel uses, seconds, joules and
multiply-accumulates.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """What it took to send one message.

    Parameters
    ----------
    bits
        Length of the messages in bits, headers included.
    channel_uses
        Sub-carriers that an analog link used, shared by all clients of a round.
    mean_power_w, peak_power_w
        Mean and largest power of an analog link's symbols, in watts.
    compute_s, uplink_s, compute_j, uplink_j
        Seconds and joules that a client with a `Load` spent on training and on sending.
    macs
        Multiply-accumulates of that training.
    alpha, beta
        Planned shares of the network's work and of the update's bits.
    overrun_bits
        Bits by which the message is longer than planned.
    """

    bits: int = 0
    channel_uses: int = 0
    mean_power_w: float = 0.0
    peak_power_w: float = 0.0
    compute_s: float = 0.0
    uplink_s: float = 0.0
    compute_j: float = 0.0
    uplink_j: float = 0.0
    macs: float = 0.0
    alpha: float = 0.0
    beta: float = 0.0
    overrun_bits: int = 0

    @property
    def latency_s(self) -> float:
        """Seconds of training and sending together."""
        return self.compute_s + self.uplink_s

    @property
    def energy_j(self) -> float:
        """Joules of training and sending together."""
        return self.compute_j + self.uplink_j

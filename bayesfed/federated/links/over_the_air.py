"""`OverTheAir`: all clients send at once, and the channel adds (Xue and Lau, eqs. 27 to 31).

There are no messages for single payloads. Each client lifts, weights and flattens its payload and
turns the numbers into symbols; the server receives their sum with fading and noise. A codec rounds
the numbers before they are sent (uniform quantisation over the air), but its bytes are not sent.
Beside the symbols, each client sends its weight and the energy of each leaf digitally: the weights
are needed for the mean, the energies for the amplitude that all clients share.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from bayesfed.compress import Codec
from bayesfed.errors import ArgumentError, UpdateError
from bayesfed.errors.checks import check, checked_class, number
from bayesfed.federated.core import Arrival, Cost, Reducer, Scalar, Sum, Update, checked, gathered
from bayesfed.federated.links.compressed_sensing import Compressed
from bayesfed.federated.links.digital import opened
from bayesfed.keys import Key
from bayesfed.trees import Tree, check_shapes, shapes, zeros_like
from bayesfed.wireless import Gbma
from bayesfed.wireless.channels import Reals, Received, Spent, channel_uses, fading, pack, transmit
from bayesfed.wireless.power_control import PowerControl, common_amplitude


@checked_class(
    {},
    snr_db=number("(-inf, inf)", "snr_db=25.0"),
    noise_w=number("[0, inf)", "noise_w=1.0"),
    estimate_variance=number("[0, inf)", "0.0, a perfectly known channel"),
    max_norm=number("(0, inf]", "1e6"),
)
@dataclass(frozen=True)
class OverTheAir:
    """A link that sends all payloads at once over a fading multiple-access channel.

    Updates of any kind can be added, but all payloads must have equal shapes. A client with another
    shape, or with NaN, is refused by name; the others go on. Clients that power control keeps
    silent are not heard: they are left out of the mean, and their memory does not advance.

    Parameters
    ----------
    power
        Power control: `Gbma` (default) or `ChannelInversion`.
    snr_db, power_w
        Transmit power relative to N0 in dB, or in watts. Exactly one of the two is given.
    noise_w
        N0 in watts per complex channel use. 0 together with `power_w` is a channel without noise.
    per
        What has that power: an average "symbol", or a whole "matrix" as in the paper, where 25 dB
        are -10 dB per symbol for 784 x 4.
    budget
        Energy that sets the shared amplitude: that of the "mean" client, so that power is kept on
        average, or the "largest", so that no client exceeds it.
    reals
        Real numbers per symbol: 1 as the paper counts, or 2, on both axes.
    estimate_variance
        Variance sigma_e^2 of the clients' estimates of their channels. 0 is perfect knowledge.
    sensing
        Random projections that are sent for each leaf, from which the server recovers its numbers.
        Default: the numbers are sent.
    max_norm
        Largest Euclidean norm of a leaf. A client with a larger one is refused.

    Raises
    ------
    ArgumentError
        If not exactly one of `snr_db` and `power_w` is given, or one of the arguments is outside
        its domain.
    """

    power: PowerControl = field(default_factory=Gbma)
    snr_db: float | None = None
    power_w: float | None = None
    noise_w: float = 1.0
    per: Literal["symbol", "matrix"] = "symbol"
    budget: Literal["mean", "largest"] = "mean"
    reals: Reals = 1
    estimate_variance: float = 0.0
    sensing: Compressed | None = None
    max_norm: float = 1e6

    def __post_init__(self) -> None:
        if (self.snr_db is None) == (self.power_w is None):
            raise ArgumentError(
                "OverTheAir",
                "snr_db or power_w",
                (self.snr_db, self.power_w),
                "OverTheAir(snr_db=25.0)",
            )
        check("OverTheAir, power_w", self.transmit_power_w, number("(0, inf)", "power_w=1.0 alone"))

    @property
    def transmit_power_w(self) -> float:
        """Transmit power in watts."""
        if self.power_w is not None:
            return self.power_w
        return float(self.noise_w * 10 ** ((self.snr_db or 0.0) / 10))

    def pack(self, payload: Tree, codec: Codec, meta: Mapping[str, Scalar], key: Key) -> bytes:
        """Round a payload as its codec does. The bytes only carry it to the simulated channel."""
        return codec.encode(payload, meta, key)

    def collect(self, arrivals: Iterable[Arrival], reducer: Reducer, key: Key) -> Iterator[Arrival]:
        """Check all payloads, send the sound ones together, and add what was received.

        Raises
        ------
        ArgumentError
            If the reducer is not a sum.
        """
        if gathered(reducer, Sum) is None:
            raise ArgumentError(
                "OverTheAir",
                "a sum",
                type(reducer).__name__,
                "Digital() for rules that need updates apart",
            )
        everyone, signal = list(arrivals), _Signal(self)
        for arrival in everyone:
            try:
                signal.note(arrival)
            except Exception as problem:
                # As in `Digital`.
                arrival.refuse(problem)
        sound = [arrival for arrival in everyone if not arrival.refusal]
        if sound and signal.amplitudes:
            self._send(sound, signal, reducer, key)
        elif sound:
            # All payloads are zero, so that only the weights are sent.
            weight = math.fsum(signal.weights.values())
            reducer.add("air", Update(signal.zeros, weight, sound[0].kind))
        yield from everyone

    def _send(self, sound: list[Arrival], signal: _Signal, reducer: Reducer, key: Key) -> None:
        round, variance = sound[0].round, self.estimate_variance
        gains = {
            arrival.client: fading(key, arrival.client, round, estimate_variance=variance)
            for arrival in sound
        }
        known = {client: gain.known for client, gain in gains.items()}
        true = {client: gain.true for client, gain in gains.items()}
        try:
            plan = self.power.precode(known, 1.0, estimate_variance=variance)
        except UpdateError as problem:
            for arrival in sound:
                arrival.silence, arrival.cost = str(problem), signal.cost(None)
            return
        payloads = ((arrival.client, signal.symbols(arrival)) for arrival in sound)
        received = transmit(payloads, true, plan, noise_w=self.noise_w, key=key, round=round)
        weight = math.fsum(signal.weights[client] for client in received.heard)
        reducer.add("air", Update(signal.tree(received), weight, sound[0].kind))
        for arrival in sound:
            arrival.cost = signal.cost(received.spent.get(arrival.client))
            if arrival.client not in plan.coefficients:
                strength = f"|h| = {abs(known[arrival.client]):.3f}"
                arrival.silence = f"silent: its channel, {strength}, is below the threshold"


class _Signal:
    """A round's payloads as symbols. They are checked one by one, then decoded again one by one to
    be sent, so that memory holds only the sum.
    """

    def __init__(self, link: OverTheAir) -> None:
        self.link = link
        self.weights: dict[str, float] = {}
        self.zeros: Tree = {}
        self._energies: dict[str, dict[str, float]] = {}
        self._lengths: dict[str, int] = {}

    def note(self, arrival: Arrival) -> None:
        """Check a payload, and note its weight and its energy by leaf.

        Raises
        ------
        UpdateError, WireError
            If the payload cannot be added to those before it.
        """
        update = opened(arrival, self.link.max_norm)
        if update.by_entry:
            raise UpdateError(
                "OverTheAir", "payloads of equal shapes", "a weight for each entry", "Digital()"
            )
        if self.zeros:
            check_shapes(update.total, shapes(self.zeros), where="OverTheAir")
        checked(update)
        sent = self._sent(update.total)
        self.weights[arrival.client] = update.number()
        self._energies[arrival.client] = {
            name: float(leaf.double().square().sum()) for name, leaf in sent.items()
        }
        if not self.zeros:
            self.zeros = zeros_like(update.total)
            self._lengths = {name: len(leaf) for name, leaf in sent.items()}

    @cached_property
    def amplitudes(self) -> dict[str, float]:
        """The shared amplitude of each leaf that is not zero for all clients. Only to be read after
        all payloads are checked.
        """
        amplitudes = {}
        for name, length in self._lengths.items():
            energies = [by_leaf[name] for by_leaf in self._energies.values()]
            mean, uses = math.fsum(energies) / len(energies), channel_uses(length, self.link.reals)
            energy = max(energies) if self.link.budget == "largest" else mean
            if energy > 0:
                power_w = self.link.transmit_power_w
                amplitudes[name] = common_amplitude(power_w, energy, uses, self.link.per)
        return amplitudes

    def symbols(self, arrival: Arrival) -> Tensor:
        """Return a client's symbols, leaf after leaf."""
        sent = self._sent(opened(arrival, self.link.max_norm).total)
        scaled = [amplitude * sent[name] for name, amplitude in self.amplitudes.items()]
        return pack(torch.cat(scaled), self.link.reals)

    def tree(self, received: Received) -> Tree:
        """Return the sum that the server recovers from the received symbols."""
        values, total, start = received.sum(self._count, self.link.reals), dict(self.zeros), 0
        for name, amplitude in self.amplitudes.items():
            numbers = values[start : start + self._lengths[name]] / amplitude
            like, start = self.zeros[name], start + self._lengths[name]
            if self.link.sensing:
                numbers = self.link.sensing.back(numbers, like.numel(), name)
            total[name] = numbers.reshape(like.shape).to(like.dtype)
        return total

    def cost(self, spent: Spent | None) -> Cost:
        """Return the bits of a client's digital side message, the round's channel uses, and the
        client's power if it was heard.
        """
        # The weight and the energies, as numbers of double precision.
        bits, uses = 64 * (1 + len(self._lengths)), channel_uses(self._count, self.link.reals)
        return Cost(bits, uses, spent.mean_w, spent.peak_w) if spent else Cost(bits, uses)

    @property
    def _count(self) -> int:
        return sum(self._lengths[name] for name in self.amplitudes)

    def _sent(self, total: Tree) -> Tree:
        double = any(leaf.dtype is torch.float64 for leaf in total.values())
        dtype = torch.float64 if double else torch.float32
        sent = {name: total[name].to(dtype).flatten() for name in sorted(total)}
        if sensing := self.link.sensing:
            sent = {name: sensing.forward(values, name) for name, values in sent.items()}
        return sent

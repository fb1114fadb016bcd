"""The air between clients and server: fading, power control, the sum, and what the server makes of it.

In round t client k sends the symbols ``p_k s_k``, and the server hears (Xue and Lau, eq. 27) ::

    y = sum_k h_k p_k s_k + z,    h_k ~ CN(0, 1),    z ~ CN(0, N0) in each channel use

and takes ``Re(y) / rho`` for the sum (eq. 28). One h_k a client and round (block fading), so whatever a client sends in a round fades alike.
|h_k| is Rayleigh: ``E|h| = sqrt(pi) / 2``, ``E|h|^2 = 1``. N0 is noise power per complex channel use, half of it on each real axis. Powers are in
watts, of a symbol: one of ``|s|^2 = 1`` is sent with 1 W; the paper's N0 is 1 W.

What is known: a client's ``h + e``, ``e ~ CN(0, sigma_e^2)``, and nothing else is known of the gain. Estimates are Rayleigh too, of mean square
``1 + sigma_e^2``, and ``E[h | h + e] = (h + e) / (1 + sigma_e^2)``, from which the receive scales below follow.

References
----------
Xue, Lau, Riemannian low-rank model compression for federated learning with over-the-air aggregation, eqs. 27 to 30.
Sery, Cohen, On analog gradient descent learning over multiple access fading channels, IEEE Trans. Signal Process. 2020 (GBMA).
Xing, Simeone, Bi, Federated learning over wireless device-to-device networks, IEEE J. Sel. Areas Commun. 2021 (channel inversion).
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from scipy.special import exp1
from torch import Tensor

from bayesfed.errors import ArgumentError, UpdateError, complain
from bayesfed.keys import Key
from bayesfed.trees import is_finite

MEAN_GAIN = math.sqrt(math.pi) / 2
Reals = Literal[1, 2]


@dataclass(frozen=True)
class Gain:
    """One client's channel in one round: what it is, and what the client knows of it."""

    true: complex
    known: complex


def fading(key: Key, client: str, round: int, *, estimate_variance: float = 0.0) -> Gain:
    """Draw a client's gain ``h ~ CN(0, 1)`` and its estimate ``h + e``, ``e ~ CN(0, estimate_variance)``.

    Gain and error have streams of their own under ``key / "fading" / round / client``: neither the order of clients nor how many there are, nor
    the variance, changes a gain.

    Raises
    ------
    ArgumentError
        If the variance is negative or not finite.
    """
    _error_variance("fading", estimate_variance)
    stream = key.child("fading", round, client)
    true = _standard_complex(stream.child("gain"))
    error = _standard_complex(stream.child("error")) if estimate_variance else 0.0
    return Gain(true, true + math.sqrt(estimate_variance) * error)


def _standard_complex(key: Key) -> complex:
    return complex(torch.randn((), dtype=torch.complex128, generator=key.generator()).item())


def _error_variance(where: str, value: float) -> None:
    if not 0 <= value < math.inf:
        raise ArgumentError(complain(where, expected="estimate_variance >= 0", actual=value, hint="0.0, a perfectly known channel"))


# Packing: real numbers into complex symbols.


def channel_uses(count: int, reals: Reals) -> int:
    """Return how many sub-carriers `count` real numbers take: one each as the paper counts, or half as many with one on each axis."""
    if reals not in (1, 2) or count < 0:
        raise ArgumentError(complain("channel_uses", expected="count >= 0, 1 or 2 reals", actual=(count, reals), hint="channel_uses(count, 1)"))
    return -(-count // reals)


def pack(values: Tensor, reals: Reals) -> Tensor:
    """Return the complex symbols ``(channel_uses,)`` of real values ``(D,)``; with two a symbol, neighbours share one and an odd end is padded by 0.

    Two a symbol is a view of contiguous values if D is even. The energy ``sum |s|^2`` is that of the values either way.

    Raises
    ------
    ArgumentError
        If the values are not one-dimensional float32 or float64, or `reals` is neither 1 nor 2.
    """
    if values.ndim != 1 or values.dtype not in (torch.float32, torch.float64):
        found = f"{tuple(values.shape)} of {values.dtype}"
        raise ArgumentError(complain("pack", expected="float32 or float64 numbers (D,)", actual=found, hint="leaf.flatten().float()"))
    uses = channel_uses(len(values), reals)
    if reals == 1:
        return torch.complex(values, torch.zeros_like(values))
    even = torch.nn.functional.pad(values, (0, 1)) if len(values) % 2 else values.contiguous()
    return torch.view_as_complex(even.view(uses, 2))


def unpack(symbols: Tensor, count: int, reals: Reals) -> Tensor:
    """Return the `count` real numbers of `pack`'s symbols; what is on the unused axis, noise, is left out.

    Raises
    ------
    ArgumentError
        If there are not as many symbols as `count` numbers take, or they are not complex.
    """
    uses = channel_uses(count, reals)
    if tuple(symbols.shape) != (uses,) or not symbols.is_complex():
        found = f"{tuple(symbols.shape)} of {symbols.dtype}"
        raise ArgumentError(complain("unpack", expected=f"complex symbols {(uses,)} for {count} numbers", actual=found, hint="the count packed"))
    return symbols.real if reals == 1 else torch.view_as_real(symbols).reshape(-1)[:count]


# Power: how loud.


def transmit_power_w(snr_db: float, noise_w: float) -> float:
    """Return the transmit power ``N0 10^(snr_db / 10)`` in watts; what it is the power of is chosen in `common_amplitude`.

    Raises
    ------
    ArgumentError
        If the SNR is not finite (a noiseless channel has none: state the power itself) or N0 not positive.
    """
    if not (math.isfinite(snr_db) and 0 < noise_w < math.inf):
        raise ArgumentError(
            complain("transmit_power_w", expected="a finite snr_db and noise_w > 0", actual=(snr_db, noise_w), hint="transmit_power_w(25, 1.0)")
        )
    return float(noise_w * 10 ** (snr_db / 10))


def common_amplitude(power_w: float, energy: float, uses: int, per: Literal["symbol", "matrix"]) -> float:
    """Return the amplitude a at which a payload of `energy` ``sum |s|^2`` spends its power over a channel of gain 1.

    - ``per="symbol"``: an average symbol has the power, ``a^2 energy / uses = power_w``: SNR per symbol.
    - ``per="matrix"``: the whole payload has it, ``a^2 energy = power_w``: the paper's ``P_k = p_k^2 |S_k|_F^2`` against the noise of one entry. Its
      25 dB are ``25 - 10 log10(uses)`` dB per symbol: -10 dB for 784 x 4.

    One amplitude serves all clients, or they would not add with equal weight. So it is that of an energy all know: the mean over clients if the power
    is a mean (the paper's P_ave), the largest if nobody may exceed it.

    Raises
    ------
    ArgumentError
        If power or energy is not positive and finite, or there are no channel uses.
    """
    if not (0 < power_w < math.inf and 0 < energy < math.inf and uses >= 1) or per not in ("symbol", "matrix"):
        found = (power_w, energy, uses, per)
        raise ArgumentError(
            complain(
                "common_amplitude", expected="power_w, energy > 0, uses >= 1, 'symbol' or 'matrix'", actual=found, hint="the energy of a payload"
            )
        )
    return math.sqrt(power_w / energy * (uses if per == "symbol" else 1))


@dataclass(frozen=True)
class Plan:
    """Who sends how: the coefficients ``p_k`` of (27) of those on the air, who stays silent, and rho of (28)."""

    coefficients: Mapping[str, complex]
    silent: tuple[str, ...]
    scale: float


class PowerControl(Protocol):
    """Turns what clients know of their channels into coefficients."""

    def plan(self, known: Mapping[str, complex], amplitude: float, *, estimate_variance: float = 0.0) -> Plan:
        """Return the plan of a round for estimated gains by client and a `common_amplitude`; raise `UpdateError` if nobody may send."""
        ...


def _asked(where: str, known: Mapping[str, complex], amplitude: float, estimate_variance: float) -> None:
    _error_variance(where, estimate_variance)
    if not 0 < amplitude < math.inf:
        raise ArgumentError(complain(where, expected="a finite amplitude > 0", actual=amplitude, hint="common_amplitude(...)"))
    for client, gain in known.items():
        if not cmath.isfinite(gain):
            raise ArgumentError(complain(f"{where}, client {client!r}", expected="a finite gain", actual=gain, hint="fading(key, client, round)"))


def _nobody(where: str, count: int) -> UpdateError:
    return UpdateError(complain(where, expected="a client on the air", actual=f"none of {count}", hint="a lower threshold, or skipping the round"))


@dataclass(frozen=True)
class Gbma:
    """Turn the phase and leave the modulus: ``p_k = a e^{-j arg h_k}`` (Xue and Lau, eq. 29; Sery and Cohen). Everybody sends, at exactly its power.

    The server hears ``a sum_k |h_k| s_k``. With perfect knowledge:

    - ``unbiased="sum"``, ``rho = a sqrt(pi) / 2``: the expectation is ``sum_k s_k``. An entry's variance is
      ``(4 / pi - 1) sum_k s_k^2 + N0 / (2 rho^2)``: K equal payloads spread by ``sqrt(4 / pi - 1) / sqrt(K)`` of their sum, 16.5 % at K = 10.
    - ``unbiased="product"``, ``rho = a``, the paper's: the sum is too small by ``sqrt(pi) / 2``, but for *products* of two things sent in the same
      round the own terms ``|h_k|^2 u_k v_k`` have expectation ``u_k v_k``, which with cross terms of mean zero is (30).

    With estimates the phase is off and ``E Re(h e^{-j arg(h + e)}) = sqrt(pi) / 2 / sqrt(1 + sigma_e^2)``. The rho of "sum" takes account of it; the
    variance becomes ``(4 / pi (1 + sigma_e^2 / 2) - 1) sum_k s_k^2 + N0 / (2 rho^2)``. The mean of the square falls to
    ``(1 + sigma_e^2 / 2) / (1 + sigma_e^2)``, of which the rho of "product" takes account.

    Raises
    ------
    ArgumentError
        If `unbiased` is neither.
    """

    unbiased: Literal["sum", "product"] = "sum"

    def __post_init__(self) -> None:
        if self.unbiased not in ("sum", "product"):
            raise ArgumentError(complain("Gbma", expected="unbiased 'sum' or 'product'", actual=repr(self.unbiased), hint="'sum'"))

    def plan(self, known: Mapping[str, complex], amplitude: float, *, estimate_variance: float = 0.0) -> Plan:
        """Return coefficients of modulus `amplitude` for everyone.

        Raises
        ------
        ArgumentError
            If the amplitude is not positive, a gain not finite, or the variance negative.
        UpdateError
            If there are no clients.
        """
        _asked("Gbma", known, amplitude, estimate_variance)
        if not known:
            raise _nobody("Gbma", 0)
        spread = 1 + estimate_variance
        scale = MEAN_GAIN / math.sqrt(spread) if self.unbiased == "sum" else math.sqrt((1 + estimate_variance / 2) / spread)
        return Plan({client: cmath.rect(amplitude, -cmath.phase(gain)) for client, gain in known.items()}, (), amplitude * scale)


@dataclass(frozen=True)
class ChannelInversion:
    """Undo the gain: ``p_k = a b / h_k`` where ``|h_k| >= threshold``; below it, with probability ``1 - exp(-threshold^2)``, stay silent.

    The server hears ``a b sum_k s_k`` over the clients on the air, whom it knows from a digital side link: their sum, exactly, and noise of variance
    ``N0 / (2 rho^2)``, ``rho = a b``. A client spends ``b^2 / |h|^2`` of the power; the back-off b keeps to a constraint:

    - ``"average"``: over fading, silent rounds counted as zero: ``b^2 = 1 / E1(threshold^2)``, as ``E[1 / |h|^2; |h| >= g]`` is the exponential
      integral ``E1(g^2)``. A round may cost more: up to ``1 / (E1(g^2) g^2)`` times the power.
    - ``"peak"``: in every round: ``b = threshold``, met with equality at the threshold.
    - ``"weakest"``: in every round, by the client that fades most among those on the air: ``b = min_k |h_k|``. Needs no threshold (0 is legal), but a
      server that tells everyone b; plain inversion under an instantaneous budget.

    With estimates ``E[h / (h + e)] = 1 / (1 + sigma_e^2)`` whatever the estimate is, so rho is ``a b / (1 + sigma_e^2)``. The sum is then unbiased,
    not exact: an entry's variance is ``sigma_e^2 / 2 e^u E1(u) sum_k s_k^2`` more, ``u = threshold^2 / (1 + sigma_e^2)``; with two numbers a symbol,
    s_k^2 is that of both numbers of the pair. The threshold is on the estimate: on the air with probability ``e^-u``.

    Raises
    ------
    ArgumentError
        If the threshold is negative, or zero where the constraint needs one.
    """

    threshold: float
    constraint: Literal["average", "peak", "weakest"] = "average"

    def __post_init__(self) -> None:
        if self.constraint not in ("average", "peak", "weakest"):
            raise ArgumentError(
                complain("ChannelInversion", expected="'average', 'peak' or 'weakest'", actual=repr(self.constraint), hint="'average'")
            )
        if not (0 <= self.threshold < math.inf and (self.threshold > 0 or self.constraint == "weakest")):
            expected = "a finite threshold > 0: the mean of 1/|h|^2 is infinite" if self.constraint != "weakest" else "a finite threshold >= 0"
            raise ArgumentError(complain("ChannelInversion", expected=expected, actual=self.threshold, hint="ChannelInversion(0.3)"))

    def on_air_probability(self, estimate_variance: float = 0.0) -> float:
        """Return ``P(|h + e| >= threshold) = exp(-threshold^2 / (1 + sigma_e^2))``."""
        return math.exp(-(self.threshold**2) / (1 + estimate_variance))

    def plan(self, known: Mapping[str, complex], amplitude: float, *, estimate_variance: float = 0.0) -> Plan:
        """Return coefficients of those whose channel reaches the threshold.

        Raises
        ------
        ArgumentError
            If the amplitude is not positive, a gain not finite, or the variance negative.
        UpdateError
            If nobody's does: the round has no sum.
        """
        _asked("ChannelInversion", known, amplitude, estimate_variance)
        moduli = {client: abs(gain) for client, gain in known.items() if abs(gain) >= self.threshold and gain != 0}
        if not moduli:
            raise _nobody("ChannelInversion", len(known))
        spread = 1 + estimate_variance
        if self.constraint == "average":
            # E[1/|h + e|^2; on air] = E1(g^2 / spread) / spread: an estimate is sqrt(spread) times a standard gain.
            inverse = float(exp1(self.threshold**2 / spread)) / spread
            if not inverse > 0:
                raise ArgumentError(complain("ChannelInversion", expected="a threshold ever reached", actual=self.threshold, hint="0.3"))
            backoff = 1 / math.sqrt(inverse)
        else:
            backoff = self.threshold if self.constraint == "peak" else min(moduli.values())
        coefficients = {client: amplitude * backoff / known[client] for client in moduli}
        return Plan(coefficients, tuple(client for client in known if client not in moduli), amplitude * backoff / spread)


# The multiple-access channel.


@dataclass(frozen=True)
class Spent:
    """What one client sent with, in watts: the mean and the largest of its symbols, and their total, the paper's ``P_k = |p_k|^2 |S_k|_F^2``."""

    mean_w: float
    peak_w: float
    matrix_w: float


@dataclass(frozen=True)
class Received:
    """What the server has after a round.

    Parameters
    ----------
    symbols
        y of (27), complex ``(channel_uses,)``.
    spent
        By client, those heard.
    scale
        rho of (28).
    """

    symbols: Tensor
    spent: Mapping[str, Spent]
    scale: float

    @property
    def heard(self) -> tuple[str, ...]:
        """The clients in the sum, as they arrived."""
        return tuple(self.spent)

    def sum(self, count: int, reals: Reals) -> Tensor:
        """Return the least-squares estimate ``Re(y) / rho`` of the sum, `count` real numbers (28); divide by ``len(heard)`` for the mean.

        The noise in each has variance ``N0 / (2 rho^2)``, with one number a symbol or two. With two, an error of a client's phase turns one number
        of a pair into the other, with mean zero.
        """
        return unpack(self.symbols, count, reals) / self.scale


def transmit(payloads: Iterable[tuple[str, Tensor]], gains: Mapping[str, complex], plan: Plan, *, noise_w: float, key: Key, round: int) -> Received:
    """Add up what the clients on the air send: ``sum_k h_k p_k s_k + z`` (27). Holds one sum beside the payload at hand, whatever their number.

    Parameters
    ----------
    payloads
        Client and complex symbols ``(channel_uses,)``, one after the other; those of silent clients are passed over.
    gains
        True gains by client.
    plan
        Of this round. Clients on the air that send nothing after all are simply not heard.
    noise_w
        N0 in W per channel use; 0 is a noiseless channel.
    key
        The noise is drawn under ``key / "noise" / round``, on the CPU and in the symbols' dtype.
    round
        Of the streams and of the errors.

    Raises
    ------
    UpdateError
        If a client's symbols are not finite or of another shape, dtype or device than the first one's, a client sends twice or is not in the plan, or
        nobody is heard; with client and round.
    ArgumentError
        If the noise power is negative or not finite, or a client has no gain.
    """
    if not 0 <= noise_w < math.inf:
        raise ArgumentError(complain("transmit", expected="a finite noise_w >= 0", actual=noise_w, hint="1.0"))
    total: Tensor | None = None
    spent: dict[str, Spent] = {}
    for client, symbols in payloads:
        if client in plan.silent:
            continue
        where = f"client {client!r}, round {round}"
        if client in spent or client not in plan.coefficients:
            actual = "a second one" if client in spent else "a client that is not in it"
            raise UpdateError(complain(where, expected="one payload of each client of the plan", actual=actual, hint="the clients planned for"))
        if client not in gains or not cmath.isfinite(gains[client]):
            raise ArgumentError(complain(where, expected="a finite gain", actual=gains.get(client), hint="fading(key, client, round)"))
        _sound(where, symbols, total)
        total = torch.zeros_like(symbols) if total is None else total
        total.add_(symbols, alpha=gains[client] * plan.coefficients[client])
        spent[client] = _spent(symbols, abs(plan.coefficients[client]))
    if total is None:
        raise UpdateError(complain(f"round {round}", expected="a client on the air", actual="none heard", hint="skipping the round"))
    if noise_w:
        z = torch.randn(total.shape, dtype=total.dtype, generator=key.child("noise", round).generator())
        total.add_(z.to(total.device), alpha=math.sqrt(noise_w))
    return Received(total, spent, plan.scale)


def _sound(where: str, symbols: Tensor, total: Tensor | None) -> None:
    like = symbols if total is None else total
    if symbols.ndim != 1 or not symbols.is_complex() or not symbols.numel() or symbols.shape != like.shape:
        expected = "complex symbols (channel_uses,), at least one" if total is None else f"complex symbols {tuple(like.shape)}"
        found = f"{tuple(symbols.shape)} of {symbols.dtype}"
        raise UpdateError(complain(where, expected=expected, actual=found, hint="pack(values, reals), of equal length for all"))
    if (symbols.dtype, symbols.device) != (like.dtype, like.device):
        found = f"{symbols.dtype} on {symbols.device}"
        raise UpdateError(complain(where, expected=f"{like.dtype} on {like.device}", actual=found, hint="one dtype and device for all"))
    if not is_finite(torch.view_as_real(symbols.resolve_conj())):
        raise UpdateError(complain(where, expected="finite symbols", actual="NaN or Inf", hint="a smaller learning rate; the client diverged"))


def _spent(symbols: Tensor, coefficient: float) -> Spent:
    matrix_w = (coefficient * float(torch.linalg.vector_norm(symbols))) ** 2
    peak_w = (coefficient * float(torch.linalg.vector_norm(symbols, math.inf))) ** 2
    return Spent(matrix_w / len(symbols), peak_w, matrix_w)

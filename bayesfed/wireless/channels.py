"""The analogue channel between clients and server: fading, the sum of what is sent, and the
server's estimate of it.

In round t client k sends the symbols ``p_k s_k``, and the server receives (Xue and Lau, eq. 27) ::

    y = sum_k h_k p_k s_k + z,    h_k ~ CN(0, 1),    z ~ CN(0, N0) in each channel use

and estimates the sum by ``Re(y) / rho`` (eq. 28). There is one h_k for each client and round (block
fading), so all that a client sends in a round fades alike. |h_k| is Rayleigh:
``E|h| = sqrt(pi) / 2``, ``E|h|^2 = 1``. N0 is the noise power per complex channel use, half of it
on each real axis. Powers are in watts per symbol: a symbol with ``|s|^2 = 1`` is sent with 1 W; the
paper's N0 is 1 W.

All that is known of a gain is the client's estimate ``h + e``, ``e ~ CN(0, sigma_e^2)``. Estimates
are Rayleigh too, with mean square ``1 + sigma_e^2``, and
``E[h | h + e] = (h + e) / (1 + sigma_e^2)``, from which the receive scales of
`bayesfed.wireless.power_control` follow.

References
----------
Xue, Lau, Riemannian low-rank model compression for federated learning with over-the-air
aggregation, eqs. 27 to 30. Sery, Cohen, On analog gradient descent learning over multiple access
fading channels, IEEE Trans. Signal Process. 2020 (GBMA). Xing, Simeone, Bi, Federated learning over
wireless device-to-device networks, IEEE J. Sel. Areas Commun. 2021 (channel inversion).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bayesfed.errors import UpdateError
from bayesfed.keys import Key
from bayesfed.wireless.power_control import Precoding

Reals = Literal[1, 2]


@dataclass(frozen=True)
class Gain:
    """The channel of one client in one round: its true gain, and the client's estimate of it."""

    true: complex
    known: complex


def fading(key: Key, client: str, round: int, *, estimate_variance: float = 0.0) -> Gain:
    """Draw a client's gain ``h ~ CN(0, 1)`` and its estimate ``h + e``,
    ``e ~ CN(0, estimate_variance)``.

    Gain and error have their own streams under ``key / "fading" / round / client``, so a gain
    depends neither on the order or number of clients nor on the variance.
    """
    stream = key.child("fading", round, client)
    true = _standard_complex(stream.child("gain"))
    error = _standard_complex(stream.child("error")) if estimate_variance else 0.0
    return Gain(true, true + math.sqrt(estimate_variance) * error)


def _standard_complex(key: Key) -> complex:
    return complex(torch.randn((), dtype=torch.complex128, generator=key.generator()).item())


# Packing: real numbers into complex symbols.


def channel_uses(count: int, reals: Reals) -> int:
    """Return the number of sub-carriers for `count` real numbers: one each as in the paper, or half
    as many with a number on each axis.
    """
    return -(-count // reals)


def pack(values: Tensor, reals: Reals) -> Tensor:
    """Return the complex symbols ``(channel_uses,)`` of real values ``(D,)``. With ``reals=2``
    neighbours share a symbol; an odd end is padded.

    With ``reals=2`` and an even D the result is a view of contiguous values. Either way the energy
    ``sum |s|^2`` is that of the values.
    """
    if reals == 1:
        return torch.complex(values, torch.zeros_like(values))
    even = torch.nn.functional.pad(values, (0, 1)) if len(values) % 2 else values.contiguous()
    return torch.view_as_complex(even.view(-1, 2))


def unpack(symbols: Tensor, count: int, reals: Reals) -> Tensor:
    """Return the `count` real numbers in symbols made by `pack`; noise on an unused axis is left
    out.
    """
    return symbols.real if reals == 1 else torch.view_as_real(symbols).reshape(-1)[:count]


# The multiple-access channel.


@dataclass(frozen=True)
class Spent:
    """The power one client sent with, in watts.

    Parameters
    ----------
    mean_w, peak_w
        Mean and largest power of its symbols. Their total is the paper's
        ``P_k = |p_k|^2 |S_k|_F^2``.
    """

    mean_w: float
    peak_w: float


@dataclass(frozen=True)
class Received:
    """What the server receives in a round.

    Parameters
    ----------
    symbols
        y of (27), complex ``(channel_uses,)``.
    spent
        Power spent, by client that was received.
    scale
        rho of (28).
    """

    symbols: Tensor
    spent: Mapping[str, Spent]
    scale: float

    @property
    def heard(self) -> tuple[str, ...]:
        """The clients in the sum, in the order in which they arrived."""
        return tuple(self.spent)

    def sum(self, count: int, reals: Reals) -> Tensor:
        """Return the least-squares estimate of the sum, ``Re(y) / rho``, `count` real numbers (28);
        divide by ``len(heard)`` for the mean.

        The noise of each number has variance ``N0 / (2 rho^2)``, with one or two numbers per
        symbol. With two, a phase error of a client mixes the two numbers of a pair, with mean zero.
        """
        return unpack(self.symbols, count, reals) / self.scale


def transmit(
    payloads: Iterable[tuple[str, Tensor]],
    gains: Mapping[str, complex],
    precoding: Precoding,
    *,
    noise_w: float,
    key: Key,
    round: int,
) -> Received:
    """Add up what the clients send: ``sum_k h_k p_k s_k + z`` (27). Memory holds the sum and one
    payload, for any number of clients.

    Parameters
    ----------
    payloads
        Pairs of a client and its complex symbols ``(channel_uses,)``. Payloads of silent clients
        are ignored.
    gains
        True gains by client.
    precoding
        Precoding of this round. Clients that are not in it are left out of the sum.
    noise_w
        N0 in W per channel use; 0 for a noiseless channel.
    key
        Key of the noise, which is drawn under ``key / "noise" / round``, on the CPU and in the
        dtype of the symbols.
    round
        Number of the round, for the random stream and for errors.

    Raises
    ------
    UpdateError
        If no client is received.
    """
    total: Tensor | None = None
    spent: dict[str, Spent] = {}
    for client, symbols in payloads:
        if client not in precoding.coefficients:
            continue
        coefficient = precoding.coefficients[client]
        total = torch.zeros_like(symbols) if total is None else total
        total.add_(symbols, alpha=gains[client] * coefficient)
        norm, largest = (
            abs(coefficient) * float(torch.linalg.vector_norm(symbols, order))
            for order in (2, math.inf)
        )
        spent[client] = Spent(norm**2 / len(symbols), largest**2)
    if total is None:
        raise UpdateError(
            f"round {round}", "a client on the air", "none heard", "skipping the round"
        )
    if noise_w:
        z = torch.randn(
            total.shape, dtype=total.dtype, generator=key.child("noise", round).generator()
        )
        total.add_(z.to(total.device), alpha=math.sqrt(noise_w))
    return Received(total, spent, precoding.scale)

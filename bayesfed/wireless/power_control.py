"""Power control: the amplitude and phase at which each client sends, so that the server receives a
sum it can scale back.

Powers are in watts per symbol: a symbol with ``|s|^2 = 1`` is sent with 1 W. Gains are Rayleigh,
``E|h| = sqrt(pi) / 2``, ``E|h|^2 = 1``; a client knows its own gain as ``h + e``,
``e ~ CN(0, sigma_e^2)``. Sources: see `bayesfed.wireless.channels`.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from bayesfed.errors import ArgumentError, UpdateError
from bayesfed.errors.checks import NOT_NEGATIVE, POSITIVE, Role, checked, checked_class

MEAN_GAIN = math.sqrt(math.pi) / 2


def common_amplitude(
    power_w: float, energy: float, uses: int, per: Literal["symbol", "matrix"]
) -> float:
    """Return the amplitude a at which a payload with ``energy = sum |s|^2`` spends exactly its
    power over a channel of gain 1.

    - ``per="symbol"``: the power is that of the average symbol, ``a^2 energy / uses = power_w``;
      the SNR is per symbol.
    - ``per="matrix"``: the power is that of the whole payload, ``a^2 energy = power_w``. This is
      the paper's ``P_k = p_k^2 |S_k|_F^2`` against the noise of one entry; its 25 dB are
      ``25 - 10 log10(uses)`` dB per symbol, which is -10 dB for 784 x 4.

    All clients use one amplitude; otherwise they would not add with equal weight. Its energy must
    therefore be known to all: the mean over clients if the power is a mean (the paper's P_ave), or
    the largest if no client may exceed it.
    """
    return math.sqrt(power_w / energy * (uses if per == "symbol" else 1))


@dataclass(frozen=True)
class Precoding:
    """How the clients send in a round.

    Parameters
    ----------
    coefficients
        ``p_k`` of (27) for each client that sends.
    scale
        rho of (28).
    """

    coefficients: Mapping[str, complex]
    scale: float


class PowerControl(Protocol):
    """Turns the clients' channel estimates into coefficients."""

    def precode(
        self, known: Mapping[str, complex], amplitude: float, *, estimate_variance: float = 0.0
    ) -> Precoding:
        """Return the plan of a round, given estimated gains by client and a `common_amplitude`;
        raise `UpdateError` if no client may send.
        """


asked = checked(
    known=Role(
        lambda known: all(map(cmath.isfinite, known.values())),
        "finite gains by client",
        "fading(key, client, round)",
    ),
    amplitude=POSITIVE,
    estimate_variance=NOT_NEGATIVE,
)


def _nobody(where: str, count: int) -> UpdateError:
    return UpdateError(
        where, "a client on the air", f"none of {count}", "a lower threshold, or skipping the round"
    )


@checked_class()
@dataclass(frozen=True)
class Gbma:
    """Correct the phase and keep the modulus: ``p_k = a e^{-j arg h_k}`` (Xue and Lau, eq. 29; Sery
    and Cohen). All clients send at full power.

    The server receives ``a sum_k |h_k| s_k``. With perfect channel knowledge:

    - ``unbiased="sum"``, ``rho = a sqrt(pi) / 2``: the expectation is ``sum_k s_k``. An entry's
      variance is ``(4 / pi - 1) sum_k s_k^2 + N0 / (2 rho^2)``; for K equal payloads the sd is
      ``sqrt(4 / pi - 1) / sqrt(K)`` of their sum, 16.5 % at K = 10.
    - ``unbiased="product"``, ``rho = a``, as in the paper: the sum is too small by the factor
      ``sqrt(pi) / 2``. For *products* of two quantities sent in the same round, however, the terms
      ``|h_k|^2 u_k v_k`` have expectation ``u_k v_k``, and with cross terms of mean zero this is
      (30).

    With estimated gains the phase is not exact, and ``E Re(h e^{-j arg(h + e)}) = sqrt(pi) / 2 /
    sqrt(1 + sigma_e^2)``. The rho of "sum" accounts for this; the variance becomes ``(4 / pi (1 +
    sigma_e^2 / 2) - 1) sum_k s_k^2 + N0 / (2 rho^2)``. The mean of the square falls to
    ``(1 + sigma_e^2 / 2) / (1 + sigma_e^2)``, which the rho of "product" accounts for.

    Parameters
    ----------
    unbiased
        What the scale makes unbiased: the "sum" of payloads, or the "product" of two quantities
        sent in one round.

    Raises
    ------
    ArgumentError
        If `unbiased` is neither of these.
    """

    unbiased: Literal["sum", "product"] = "sum"

    @asked
    def precode(
        self, known: Mapping[str, complex], amplitude: float, *, estimate_variance: float = 0.0
    ) -> Precoding:
        """Return coefficients of modulus `amplitude` for all clients.

        Raises
        ------
        ArgumentError
            If the amplitude is not positive, a gain not finite, or the variance negative.
        UpdateError
            If there are no clients.
        """
        if not known:
            raise _nobody("Gbma", 0)
        spread = 1 + estimate_variance
        scale = (
            MEAN_GAIN / math.sqrt(spread)
            if self.unbiased == "sum"
            else math.sqrt((1 + estimate_variance / 2) / spread)
        )
        return Precoding(
            {client: cmath.rect(amplitude, -cmath.phase(gain)) for client, gain in known.items()},
            amplitude * scale,
        )


@checked_class()
@dataclass(frozen=True)
class ChannelInversion:
    """Invert the gain: ``p_k = a b / h_k`` if ``|h_k| >= threshold``; otherwise, with probability
    ``1 - exp(-threshold^2)``, the client is silent.

    The server receives ``a b sum_k s_k`` over the clients that send, which it knows from a digital
    side link: their exact sum, and noise of variance ``N0 / (2 rho^2)``, ``rho = a b``. A client
    spends ``b^2 / |h|^2`` of the power. The back-off b enforces a constraint on it:

    - ``"average"``: on average over fading, with silent rounds counted as zero:
      ``b^2 = 1 / E1(threshold^2)``, as ``E[1 / |h|^2; |h| >= g]`` is the exponential integral
      ``E1(g^2)``. A single round may cost up to ``1 / (E1(g^2) g^2)`` times the power.
    - ``"peak"``: in every round: ``b = threshold``, met with equality at the threshold.
    - ``"weakest"``: in every round, set by the weakest channel among the clients that send:
      ``b = min_k |h_k|``. This is plain inversion under an instantaneous budget. It needs no
      threshold (0 is legal), but the server must tell all clients b.

    With estimated gains ``E[h / (h + e)] = 1 / (1 + sigma_e^2)`` for every estimate, so rho is
    ``a b / (1 + sigma_e^2)``. The sum is then unbiased but not exact: the variance of an entry
    grows by ``sigma_e^2 / 2 e^u E1(u) sum_k s_k^2``, ``u = threshold^2 / (1 + sigma_e^2)``; with
    two numbers per symbol, s_k^2 is the sum of both squares of the pair. The threshold applies to
    the estimate, so a client sends with probability ``e^-u``.

    Parameters
    ----------
    threshold
        Least modulus of the estimated gain at which a client sends.
    constraint
        "average", "peak" or "weakest".

    Raises
    ------
    ArgumentError
        If the constraint is none of these, or the threshold is negative, or zero although the
        constraint needs one.
    """

    threshold: float
    constraint: Literal["average", "peak", "weakest"] = "average"

    def __post_init__(self) -> None:
        if not (
            0 <= self.threshold < math.inf and (self.threshold > 0 or self.constraint == "weakest")
        ):
            raise ArgumentError(
                "ChannelInversion",
                (
                    "a finite threshold > 0: the mean of 1/|h|^2 is infinite"
                    if self.constraint != "weakest"
                    else "a finite threshold >= 0"
                ),
                self.threshold,
                "ChannelInversion(0.3)",
            )

    @asked
    def precode(
        self, known: Mapping[str, complex], amplitude: float, *, estimate_variance: float = 0.0
    ) -> Precoding:
        """Return the coefficients of the clients whose channel reaches the threshold.

        Raises
        ------
        ArgumentError
            If the amplitude is not positive, a gain not finite, or the variance negative.
        UpdateError
            If no channel does, so that the round has no sum.
        """
        from scipy.special import exp1

        heard = {
            client: gain for client, gain in known.items() if abs(gain) >= self.threshold and gain
        }
        if not heard:
            raise _nobody("ChannelInversion", len(known))
        spread = 1 + estimate_variance
        if self.constraint == "average":
            # E[1/|h + e|^2; on air] = E1(g^2 / spread) / spread: an estimate is sqrt(spread) times
            # a standard gain.
            inverse = float(exp1(self.threshold**2 / spread)) / spread
            if not inverse > 0:
                raise ArgumentError(
                    "ChannelInversion", "a threshold ever reached", self.threshold, "0.3"
                )
            backoff = 1 / math.sqrt(inverse)
        else:
            backoff = self.threshold if self.constraint == "peak" else min(map(abs, heard.values()))
        return Precoding(
            {client: amplitude * backoff / gain for client, gain in heard.items()},
            amplitude * backoff / spread,
        )

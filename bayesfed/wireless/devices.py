"""Devices on a radio cell: what they compute with, what they send with, and where they are.

A `Device` is twelve numbers, so it travels in `Profile.device`. Its position is drawn anew each round, uniformly over the ring between two distances
(a whole cell by default), or stays where both distances are equal. The channel is the path loss alone, as in the paper; multiply the gain by
``|h|^2`` of `bayesfed.wireless.channels.fading` for Rayleigh fading on top.

What the paper does not print, and what stands here instead:

- Path loss at a reference distance: ``128.1 + 37.6 log10(d / km)`` dB of 3GPP's urban macro cell at 2 GHz (TR 36.814, table A.2.1.1.2-3), whose
  exponent is the paper's 3.76, and 20 dB for walls (its simulation case 1). Without the walls the edge of a 550 m cell sends 5.2 Mb/s and beta_max
  fits nearly always. With them it is 0.45 Mb/s at the edge, 1.4 at 367 m (the mean distance), 7.8 at 100 m. The paper's own traffic, 0.3 to
  0.4 Mb a device and round of 5 s (Table I), asks for rates as low as these or lower.
- Nearest distance: 35 m, 3GPP's for macro cells.
- Frequencies: 0.1 to 1.5 GHz, about what GPU and CPU of the boards of its Fig. 1 are clocked at.
- MACs per cycle: see `Device`.

References
----------
Li et al., AnycostFL, INFOCOM 2023, sections IV-A and V-A, as "the paper".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from bayesfed.errors import ArgumentError, complain
from bayesfed.keys import Key


@dataclass(frozen=True)
class Device:
    """What a client computes and sends with.

    Parameters
    ----------
    macs_per_cycle
        Multiply-accumulates that it gets done in a cycle; turns a network's MACs into the paper's W, which was measured and is not printed. 16 makes
        the budgets bite for the CNN of 1.66 M parameters, 1000 rows a device, 5 s and 1.5 to 4.5 J: with 4 three devices in four cannot keep to
        them, with 32 none has to shrink. VGG-9 on CIFAR-10 is nine times the work for twice the budgets; there it takes 64.
    min_frequency_hz, max_frequency_hz
        Bounds of the clock (10e).
    joules_per_cycle_hz2
        Energy coefficient epsilon of (7): a cycle at f Hz takes ``epsilon f^2`` J.
    power_w
        Transmit power.
    bandwidth_hz
        Its own band (FDMA).
    noise_w_per_hz
        N0; the paper's -114 dBm/MHz, which is thermal noise, -174 dBm/Hz.
    energy_j
        Energy budget of a round.
    min_distance_m, max_distance_m
        Of the base station: the ring it moves in, or one distance twice.
    loss_db_at_1_km, path_loss_exponent
        Of the channel: ``loss + 10 exponent log10(d / km)`` dB.

    Raises
    ------
    ArgumentError
        If a figure is not finite, one other than those of the path loss is not positive, or bounds are reversed.
    """

    macs_per_cycle: float = 16.0
    min_frequency_hz: float = 0.1e9
    max_frequency_hz: float = 1.5e9
    joules_per_cycle_hz2: float = 7.5e-27
    power_w: float = 0.1
    bandwidth_hz: float = 1e6
    noise_w_per_hz: float = 10**-11.4 * 1e-3 / 1e6
    energy_j: float = 3.0
    min_distance_m: float = 35.0
    max_distance_m: float = 550.0
    loss_db_at_1_km: float = 128.1 + 20.0
    path_loss_exponent: float = 3.76

    def __post_init__(self) -> None:
        for name, value in self.figures().items():
            least = -math.inf if name == "loss_db_at_1_km" else 0.0
            # An energy budget of 0 is a device that cannot take part, a flat exponent a channel without distance.
            legal = math.isfinite(value) and (value >= least if name in ("energy_j", "path_loss_exponent") else value > least)
            if not legal:
                hint = "figures in SI units, as the suffixes say"
                raise ArgumentError(complain(f"Device.{name}", expected="a finite figure that is positive", actual=value, hint=hint))
        for low, high in (("min_frequency_hz", "max_frequency_hz"), ("min_distance_m", "max_distance_m")):
            bounds = (getattr(self, low), getattr(self, high))
            if bounds[0] > bounds[1]:
                raise ArgumentError(complain(f"Device.{low}", expected=f"at most {high}", actual=bounds, hint="the bounds the other way round"))

    def figures(self) -> dict[str, float]:
        """Return the figures by name, as `Profile.device` carries them: ``InProcess(data, devices={name: device.figures()})``."""
        return asdict(self)

    @classmethod
    def from_figures(cls, figures: Mapping[str, float]) -> Device:
        """Return the device of a profile's figures, the very same one that they were taken of; figures of other names are passed over.

        Raises
        ------
        ArgumentError
            If a figure is missing or out of its range.
        """
        names = [field.name for field in fields(cls)]
        missing = [name for name in names if name not in figures]
        if missing:
            hint = "devices={name: device.figures()} when the pool is built"
            raise ArgumentError(complain("Device.from_figures", expected=f"{', '.join(missing)}", actual=sorted(figures), hint=hint))
        return cls(**{name: float(figures[name]) for name in names})

    def distance_m(self, key: Key, client: str, round: int) -> float:
        """Draw where the client is in a round: its distance of the base station, uniform over the area of its ring.

        Drawn under ``key / "position" / round / client``, so neither the order of clients nor how many there are changes it.
        """
        near, far = self.min_distance_m, self.max_distance_m
        share = float(key.child("position", round, client).numpy().random())
        return min(max(math.sqrt(near**2 + share * (far**2 - near**2)), near), far)

    def gain(self, distance_m: float) -> float:
        """Return the channel's power gain at a distance, the |h| of (8): the paper calls it path loss, so it is a ratio of powers, not of amplitudes.

        Raises
        ------
        ArgumentError
            If the distance is not positive and finite.
        """
        if not 0 < distance_m < math.inf:
            raise ArgumentError(complain("Device.gain", expected="a distance_m > 0", actual=distance_m, hint="device.distance_m(key, client, round)"))
        loss_db = self.loss_db_at_1_km + 10 * self.path_loss_exponent * math.log10(distance_m / 1e3)
        return float(10 ** (-loss_db / 10))

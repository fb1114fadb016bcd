"""Devices in a radio cell, one or a random fleet: their processor, radio and position.

A `Device` is twelve numbers, so it can travel in `Profile.device`. Its position is drawn anew in
each round, uniformly over the ring between two distances (the whole cell by default), or stays
fixed if both distances are equal. As in the paper, the channel is the path loss alone; for Rayleigh
fading in addition, multiply the gain by ``|h|^2`` of `bayesfed.wireless.channels.fading`.

The paper does not state these values; the defaults here are:

- Path loss at a reference distance: ``128.1 + 37.6 log10(d / km)`` dB of 3GPP's urban macro cell at
  2 GHz (TR 36.814, table A.2.1.1.2-3), whose exponent is the paper's 3.76, and 20 dB for walls (its
  simulation case 1). Without the walls a device at the edge of a 550 m cell sends 5.2 Mb/s, and
  beta_max is nearly always feasible. With them the rate is 0.45 Mb/s at the edge, 1.4 at 367 m (the
  mean distance) and 7.8 at 100 m. The paper's own traffic, 0.3 to 0.4 Mb per device and round of 5
  s (Table I), implies rates as low as these or lower.
- Nearest distance: 35 m, 3GPP's value for macro cells.
- Frequencies: 0.1 to 1.5 GHz, about the clock rates of GPU and CPU on the boards of its Fig. 1.
- MACs per cycle: see `Device`.

References
----------
Li et al., AnycostFL, INFOCOM 2023, sections IV-A and V-A, as "the paper".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace

from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import checked, checked_class, number
from bayesfed.keys import Key


@checked_class()
@dataclass(frozen=True)
class Device:
    """The processor, radio and position of one client.

    Parameters
    ----------
    macs_per_cycle
        Multiply-accumulates per cycle. They turn a network's MACs into the paper's W, which was
        measured and is not printed. With 16 the budgets bind for the CNN of 1.66 M parameters, 1000
        rows per device, 5 s and 1.5 to 4.5 J: with 4 three devices in four cannot keep to the
        budgets, with 32 no device has to shrink. VGG-9 on CIFAR-10 is nine times the work for twice
        the budgets and needs 64.
    min_frequency_hz, max_frequency_hz
        Bounds of the clock frequency (10e).
    joules_per_cycle_hz2
        Energy coefficient epsilon of (7): a cycle at f Hz takes ``epsilon f^2`` J.
    power_w
        Transmit power.
    bandwidth_hz
        Bandwidth of the device's own band (FDMA).
    noise_w_per_hz
        Noise density N0; the paper's -114 dBm/MHz, which is thermal noise, -174 dBm/Hz.
    energy_j
        Energy budget of a round.
    min_distance_m, max_distance_m
        Least and largest distance from the base station; equal for a device that does not move.
    loss_db_at_1_km, path_loss_exponent
        Path loss of the channel: ``loss + 10 exponent log10(d / km)`` dB.

    Raises
    ------
    ArgumentError
        If a figure is not finite, a figure that must be positive is not, or bounds are reversed.
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
            # An energy budget of 0 means a device that cannot take part; an exponent of 0 a channel
            # that does not depend on distance.
            legal = math.isfinite(value) and (
                value >= least if name in ("energy_j", "path_loss_exponent") else value > least
            )
            if not legal:
                raise ArgumentError(
                    f"Device.{name}",
                    "a finite figure that is positive",
                    value,
                    "figures in SI units, as the suffixes say",
                )
        for what in ("frequency_hz", "distance_m"):
            low, high = bounds = getattr(self, f"min_{what}"), getattr(self, f"max_{what}")
            if low > high:
                raise ArgumentError(
                    f"Device.min_{what}",
                    f"at most max_{what}",
                    bounds,
                    "the bounds the other way round",
                )

    def figures(self) -> dict[str, float]:
        """Return the figures by name, in the form of `Profile.device`:
        ``InProcess(data, devices={name: device.figures()})``.
        """
        return asdict(self)

    @classmethod
    def from_figures(cls, figures: Mapping[str, float]) -> Device:
        """Return the device with these figures, the inverse of `figures`. Figures of other names
        are ignored.

        Raises
        ------
        ArgumentError
            If a figure is missing or out of its range.
        """
        names = [field.name for field in fields(cls)]
        missing = [name for name in names if name not in figures]
        if missing:
            raise ArgumentError(
                "Device.from_figures",
                f"{', '.join(missing)}",
                sorted(figures),
                "devices={name: device.figures()} when the pool is built",
            )
        return cls(**{name: float(figures[name]) for name in names})

    def distance_m(self, key: Key, client: str, round: int) -> float:
        """Draw the client's distance from the base station in a round, uniformly over the area of
        its ring.

        The stream is ``key / "position" / round / client``, so the distance depends neither on the
        order nor on the number of clients.
        """
        near, far = self.min_distance_m, self.max_distance_m
        share = float(key.child("position", round, client).numpy().random())
        return min(max(math.sqrt(near**2 + share * (far**2 - near**2)), near), far)

    @checked(distance_m=number("(0, inf)", "device.distance_m(key, client, round)"))
    def gain(self, distance_m: float) -> float:
        """Return the power gain of the channel at a distance, the |h| of (8). The paper calls it
        path loss: a ratio of powers, not of amplitudes.

        Raises
        ------
        ArgumentError
            If the distance is not positive and finite.
        """
        loss_db = self.loss_db_at_1_km + 10 * self.path_loss_exponent * math.log10(distance_m / 1e3)
        return float(10 ** (-loss_db / 10))


Range = tuple[float, float]


@checked()
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
    if not 0 < len(set(names)) == len(names):
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

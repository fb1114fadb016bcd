"""Messages of `bayesfed.wireless`."""

from dataclasses import replace

import torch

from bayesfed.wireless import ChannelInversion, Device, Gbma, fleet, plan
from bayesfed.wireless.channels import Precoding, transmit
from tests.house.wrong_calls.given import KEY

COMPLETE = ("bayesfed/wireless",)
WORK = {"cycles": 1e8, "size_bits": 1e5, "latency_s": 10.0}


def planned(**bounds):
    """Plan a round of a device."""
    return plan(Device(), 1e-13, **WORK, **bounds)


def sent(clients):
    """Send the symbols of these clients over the air."""
    symbols = [(name, torch.ones(2, dtype=torch.complex64)) for name in clients]
    known = dict.fromkeys(clients, 1.0 + 0j)
    return transmit(symbols, known, Precoding(known, 1.0), noise_w=0.0, key=KEY, round=4)


def quiet():
    """Invert channels of which none reaches the threshold."""
    return ChannelInversion(0.5).precode({"a": 0.1, "b": 0.2j}, 1.0)


CASES = [
    (
        lambda: planned(alpha_min=1.5),
        "alpha_min=1/4",
        lambda: planned(alpha_min=1 / 4),
    ),
    (lambda: planned(beta_max=2.0), "beta_max=1/15", lambda: planned(beta_max=1 / 15)),
    # A round without clients is skipped: there is nothing to transmit.
    (lambda: sent([]), "skipping the round", lambda: sent(["a"])),
    (
        lambda: Device(energy_j=-1.0),
        "figures in SI units",
        lambda: Device(energy_j=5.0),
    ),
    (
        lambda: Device(min_distance_m=500.0, max_distance_m=50.0),
        "the bounds the other way round",
        lambda: Device(min_distance_m=50.0, max_distance_m=500.0),
    ),
    (
        lambda: Device.from_figures({"energy_j": 1.0}),
        "device.figures()",
        lambda: Device.from_figures(replace(Device(), energy_j=1.0).figures()),
    ),
    (lambda names: fleet(names, KEY), ["a", "a"]),
    (lambda energy: fleet(["a"], KEY, energy_j=energy), (2.0, 1.0)),
    (
        lambda: Gbma().precode({}, 1.0),
        "skipping the round",
        lambda: Gbma().precode({"a": 1j}, 1.0),
    ),
    (
        quiet,
        "a lower threshold",
        lambda: ChannelInversion(0.1).precode({"a": 0.1, "b": 0.2j}, 1.0),
    ),
    (
        lambda: ChannelInversion(0.0),
        "ChannelInversion(0.3)",
        lambda: ChannelInversion(0.3),
    ),
    (lambda value: ChannelInversion(value).precode({"a": 31.0}, 1.0), 30.0),
]

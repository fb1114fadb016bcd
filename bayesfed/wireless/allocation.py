"""Plans: how much of the network a device trains and how much of its update it sends, within a
deadline and an energy budget.

The problem and its solution are in `bayesfed.wireless.optimum`.

References
----------
Li et al., AnycostFL, INFOCOM 2023, section IV-D, eqs. (10) and (19) to (26).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import POSITIVE, Role, checked
from bayesfed.wireless.devices import Device
from bayesfed.wireless.energy import RoundCost, device_rate, round_cost
from bayesfed.wireless.optimum import Problem, clip, largest_alpha, sizeable, solve

# Shares by which the budgets are cut before planning; the smallest at which the plan keeps to the
# budgets in spite of rounding is used.
_SHORT = (1e-15, 1e-12, 1e-9, 1e-6)


_BUDGET = Role(lambda budget: budget >= 0, "a budget from 0 up", "math.inf for none")


@dataclass(frozen=True)
class Plan:
    """The plan of one device for one round.

    Parameters
    ----------
    alpha
        Share of the network's work. Hidden layers keep ``sqrt(alpha)`` of their width.
    beta
        Largest share of the shrunk update's bits to send.
    frequency_hz
        Clock frequency to compute at.
    bits
        Largest number of bits to send, ``alpha beta S``.
    cost
        Cost of the round if that many bits are sent. It is within the budgets.
    """

    alpha: float
    beta: float
    frequency_hz: float
    bits: float
    cost: RoundCost

    @property
    def learning_gain(self) -> float:
        """``alpha^4 beta`` (19), in (0, 1]."""
        return self.alpha**4 * self.beta


@dataclass(frozen=True)
class Infeasible:
    """Why a device cannot take part in a round: it cannot even do the least that it may be asked.

    Parameters
    ----------
    binding
        "frequency" if another clock could keep to the budgets, but this one cannot run fast or slow
        enough; "latency" if computing at f_max and sending take too long; "energy" if meeting the
        deadline costs too much.
    needed, allowed
        What the least alpha and beta need, and what the device has, in Hz, s or J.
    """

    binding: Literal["latency", "energy", "frequency"]
    needed: float
    allowed: float

    @property
    def excess(self) -> float:
        """How much is missing, ``needed - allowed``; negative if the clock cannot run slowly
        enough.
        """
        return self.needed - self.allowed

    @property
    def reason(self) -> str:
        """The reason in words, for the report of a round."""
        unit = {"latency": "s", "energy": "J", "frequency": "Hz"}[self.binding]
        return f"{self.binding}: needs {self.needed:.4g} {unit}, has {self.allowed:.4g} {unit}"


@checked(cycles=POSITIVE, size_bits=POSITIVE, latency_s=_BUDGET, energy_j=_BUDGET)
def plan(
    device: Device,
    gain: float,
    *,
    cycles: float,
    size_bits: float,
    latency_s: float,
    energy_j: float | None = None,
    alpha_min: float = 1 / 4,
    alpha_max: float = 1.0,
    beta_min: float = 0.0,
    beta_max: float = 1 / 15,
) -> Plan | Infeasible:
    """Plan the round of one client, independently of all others.

    Equal bounds fix a variable: ``alpha_min=alpha_max=1`` for compression alone,
    ``beta_min=beta_max`` for width alone.

    Parameters
    ----------
    device
        The client's device.
    gain
        Power gain of the channel in this round:
        ``device.gain(device.distance_m(key, client, round))``.
    cycles
        Cycles of training the whole network: `work_cycles`.
    size_bits
        Size of the whole network's uncompressed update: 32 times its number of parameters.
    latency_s, energy_j
        Deadline and energy budget, from 0 to infinity. Default of `energy_j`: the budget of the
        device. Plans keep to both, rounding included.
    alpha_min, alpha_max, beta_min, beta_max
        Bounds (10c) and (10d). With ``beta_min=0`` a device that has time and energy for only a few
        bits still gets a plan; state the share that the codec needs.

    Returns
    -------
    Plan or Infeasible
        The learning gain is that of the optimum up to rounding, and no plan exceeds a constraint. A
        device that cannot send one bit by the deadline is infeasible.

    Raises
    ------
    ArgumentError
        If a figure is negative or not a number, or bounds are reversed or outside (0, 1].
    """
    energy_j = device.energy_j if energy_j is None else energy_j
    if not 0 < alpha_min <= alpha_max <= 1:
        raise ArgumentError(
            "plan, alpha_min",
            "0 < alpha_min <= alpha_max <= 1",
            (alpha_min, alpha_max),
            "alpha_min=1/4",
        )
    if not 0 <= beta_min <= beta_max <= 1 or not beta_max:
        raise ArgumentError(
            "plan, beta_max",
            "0 <= beta_min <= beta_max <= 1, beta_max > 0",
            (beta_min, beta_max),
            "beta_max=1/15",
        )
    frequencies = device.min_frequency_hz, device.max_frequency_hz
    rate = device_rate(device, gain)
    fastest_s = alpha_min * cycles / frequencies[1]
    if not rate * latency_s >= 1:  # 0 times infinity is NaN, which fails too
        return Infeasible("latency", fastest_s + (1 / rate if rate else math.inf), latency_s)
    send_s = size_bits / rate
    # No larger budget binds, so infinite ones can be replaced by these.
    enough_s = 2 * alpha_max * (cycles / frequencies[0] + beta_max * send_s)
    enough_j = (
        2
        * alpha_max
        * (
            device.joules_per_cycle_hz2 * frequencies[1] ** 2 * cycles
            + device.power_w * beta_max * send_s
        )
    )
    whole = Problem(
        cycles,
        send_s,
        min(latency_s, enough_s),
        min(energy_j, enough_j),
        device.power_w,
        device.joules_per_cycle_hz2,
        (alpha_min, alpha_max),
        (beta_min, beta_max),
        frequencies,
    )
    if sizeable(whole):
        for short in _SHORT:
            optimum = solve(
                whole._replace(
                    latency_s=whole.latency_s * (1 - short), energy_j=whole.energy_j * (1 - short)
                )
            )
            if optimum is None:
                break
            alpha, beta, frequency_hz = optimum
            bits = alpha * beta * size_bits
            cost = round_cost(
                device, gain, cycles=alpha * cycles, bits=bits, frequency_hz=frequency_hz
            )
            if cost.latency_s <= latency_s and cost.energy_j <= energy_j:
                return Plan(alpha, beta, frequency_hz, bits, cost)
    return _diagnose(whole)


def _diagnose(problem: Problem) -> Infeasible:
    """Return the constraint that rules out the least alpha and beta."""
    alpha, beta = problem.alpha[0], problem.beta[0]
    slowest, fastest = problem.frequency_hz
    cycles, sending = alpha * problem.cycles, alpha * beta * problem.send_s
    latency_s = cycles / fastest + sending
    if sizeable(problem) and largest_alpha(problem, beta, free=True) > alpha * (1 + 1e-9):
        if latency_s > problem.latency_s:
            return Infeasible("frequency", cycles / (problem.latency_s - sending), fastest)
        left_j = problem.energy_j - problem.power_w * sending
        return Infeasible("frequency", math.sqrt(left_j / (problem.epsilon * cycles)), slowest)
    if latency_s >= problem.latency_s:
        return Infeasible("latency", latency_s, problem.latency_s)
    frequency_hz = clip(cycles / (problem.latency_s - sending), problem.frequency_hz)
    energy_j = problem.epsilon * frequency_hz**2 * cycles + problem.power_w * sending
    return Infeasible("energy", max(energy_j, problem.energy_j), problem.energy_j)

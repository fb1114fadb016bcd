"""How much of the network a device trains and how much of its update it sends, within a deadline and an energy budget.

Maximise the learning gain ``alpha^4 beta`` (19) subject to (10a) to (10e), with C the cycles and S the bits of the whole network and r the rate::

    alpha C / f           + alpha beta S / r   <=  T        alpha_min <= alpha <= alpha_max,  beta_min <= beta <= beta_max
    epsilon f^2 alpha C   + P alpha beta S / r <=  E        f_min <= f <= f_max

In logarithms this is a concave problem (it is a geometric programme), so as a function of alpha alone, the others at their best, the gain rises
and then falls. Whatever the active constraints, alpha is therefore one of a handful of numbers, each in closed form or the one positive root of
``a f^3 + b f = c``, and the best of them is the optimum:

- both budgets spent, nothing else active: ``phi = 3/4 + (sqrt(psi) - 3 E) / (8 P T)``, the share of T that is computing (24);
- f at a bound: ``alpha = 3/4`` of what the budget that binds there would let it compute;
- f just leaving a bound; beta at a bound; alpha at a bound.

Then f is the slowest that meets the deadline, which is the cheapest.

Misprints and what is done instead: the second root of (24) has -3/4 for +3/4; with the right sign it is negative where E > P T, and otherwise leaves
no energy to compute with, so it is never wanted. (23) takes alpha = 1 or alpha_min and an undefined beta_min for bounds of phi; its plans often
exceed (10c) to (10e). Lemma 3, both budgets always spent, fails where alpha or beta is at its upper bound.

References
----------
Li et al., AnycostFL, INFOCOM 2023, section IV-D, eqs. (10) and (19) to (26).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from bayesfed.errors import ArgumentError, complain
from bayesfed.wireless.devices import Device
from bayesfed.wireless.energy import RoundCost, device_rate, round_cost

# Budgets are planned this much short, the least at which rounding does not exceed them.
_SHORT = (1e-15, 1e-12, 1e-9, 1e-6)


@dataclass(frozen=True)
class Plan:
    """What a device does in a round.

    Parameters
    ----------
    alpha
        Share of the network's work; hidden layers keep ``sqrt(alpha)`` of their width.
    beta
        Share of the shrunk update's bits: a cap.
    frequency_hz
        To compute at.
    bits
        ``alpha beta S``, the most that may be sent; `payload_bytes` in whole bytes.
    cost
        If as many are sent, at most the budgets.
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

    @property
    def payload_bytes(self) -> int:
        """The longest message that keeps to the plan."""
        return int(self.bits // 8)


@dataclass(frozen=True)
class Infeasible:
    """Why a device cannot take part in a round: even the least it may do is too much.

    Parameters
    ----------
    binding
        "frequency" if its clock can go neither fast nor slow enough, though another could; "latency" if computing at f_max and sending take too
        long; "energy" if what meets the deadline costs too much.
    needed, allowed
        In Hz, s or J: what the least alpha and beta need, and what there is.
    """

    binding: Literal["latency", "energy", "frequency"]
    needed: float
    allowed: float

    @property
    def excess(self) -> float:
        """How much is missing, ``needed - allowed``; negative where the clock cannot go slow enough."""
        return self.needed - self.allowed

    @property
    def reason(self) -> str:
        """In words, for the report of a round."""
        unit = {"latency": "s", "energy": "J", "frequency": "Hz"}[self.binding]
        return f"{self.binding}: needs {self.needed:.4g} {unit}, has {self.allowed:.4g} {unit}"


class _Problem(NamedTuple):
    cycles: float
    send_s: float  # of the whole update: S / r
    latency_s: float
    energy_j: float
    power_w: float
    epsilon: float
    alpha: tuple[float, float]
    beta: tuple[float, float]
    frequency_hz: tuple[float, float]


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
    """Plan one client's round; needs nothing of the others.

    Equal bounds fix a figure: ``alpha_min=alpha_max=1`` for compression alone, ``beta_min=beta_max`` for width alone.

    Parameters
    ----------
    gain
        Of the channel this round: ``device.gain(device.distance_m(key, client, round))``.
    cycles
        Of training the whole network: `work_cycles`.
    size_bits
        Of the whole network's uncompressed update: 32 times its parameters.
    latency_s, energy_j
        Deadline and budget, 0 and infinity included; `energy_j` defaults to the device's own. Plans stay within them, rounding included.
    alpha_min, alpha_max, beta_min, beta_max
        Bounds (10c) and (10d). With beta_min = 0 a device that has time and energy for a few bits still gets a plan; state what the codec needs.

    Returns
    -------
    Plan or Infeasible
        The gain is that of the optimum to rounding; never a plan that exceeds a constraint. Not even one bit by the deadline is infeasible.

    Raises
    ------
    ArgumentError
        If a figure is negative or not a number, or bounds are reversed or outside (0, 1].
    """
    energy_j = device.energy_j if energy_j is None else energy_j
    _check(cycles, size_bits, latency_s, energy_j, (alpha_min, alpha_max), (beta_min, beta_max))
    frequencies = device.min_frequency_hz, device.max_frequency_hz
    rate = device_rate(device, gain)
    fastest_s = alpha_min * cycles / frequencies[1]
    if not rate * latency_s >= 1:  # 0 times infinity is neither
        return Infeasible("latency", fastest_s + (1 / rate if rate else math.inf), latency_s)
    send_s = size_bits / rate
    # Beyond these no budget binds; so infinite ones do no harm.
    enough_s = 2 * alpha_max * (cycles / frequencies[0] + beta_max * send_s)
    enough_j = 2 * alpha_max * (device.joules_per_cycle_hz2 * frequencies[1] ** 2 * cycles + device.power_w * beta_max * send_s)
    whole = _Problem(
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
    if _sizeable(whole):
        for short in _SHORT:
            found = _solve(whole._replace(latency_s=whole.latency_s * (1 - short), energy_j=whole.energy_j * (1 - short)))
            if found is None:
                break
            alpha, beta, frequency_hz = found
            bits = alpha * beta * size_bits
            cost = round_cost(device, gain, cycles=alpha * cycles, bits=bits, frequency_hz=frequency_hz)
            if cost.latency_s <= latency_s and cost.energy_j <= energy_j:
                return Plan(alpha, beta, frequency_hz, bits, cost)
    return _diagnose(whole)


def _solve(problem: _Problem) -> tuple[float, float, float] | None:
    """Return alpha, beta and f, or None if nothing can be sent within the budgets."""
    low, high = problem.alpha
    most = min(high, _largest_alpha(problem, problem.beta[0]))
    if most < low:
        return None
    gain, alpha, sending, frequency_hz = max(_sent(problem, min(max(alpha, low), most)) for alpha in (low, most, *_candidates(problem)))
    if gain <= 0:
        return None
    beta = min(max(sending / (alpha * problem.send_s), problem.beta[0]), problem.beta[1])
    left_s = problem.latency_s - sending
    if left_s > 0:
        frequency_hz = min(frequency_hz, _clip(alpha * problem.cycles / left_s, problem.frequency_hz))
    return alpha, beta, frequency_hz


def _sent(problem: _Problem, alpha: float) -> tuple[float, float, float, float]:
    """Return the gain but for a constant, alpha, the seconds to send in, and the f at which they are most."""
    slope = problem.power_w * problem.latency_s - problem.energy_j
    work = problem.epsilon * alpha * problem.cycles
    # Time left to send rises with f, energy left falls: the best f is where both last equally long.
    frequency_hz = _clip(_root(work, slope, problem.power_w * alpha * problem.cycles), problem.frequency_hz)
    time_left = problem.latency_s - alpha * problem.cycles / frequency_hz
    energy_left = (problem.energy_j - work * frequency_hz**2) / problem.power_w
    wanted = [alpha * beta * problem.send_s for beta in problem.beta]
    # Rounding may leave a little less than the least at the largest alpha.
    sending = max(min(time_left, energy_left, wanted[1]), wanted[0])
    return alpha**3 * sending, alpha, sending, frequency_hz


def _largest_alpha(problem: _Problem, beta: float, *, free: bool = False) -> float:
    """Return the largest alpha at which this beta fits the budgets; `free` leaves out the bounds of f."""
    send = beta * problem.send_s
    cubic = problem.epsilon * problem.cycles * problem.latency_s
    slope = (problem.power_w * problem.latency_s - problem.energy_j) * send
    frequency_hz = _root(cubic, slope, problem.energy_j * problem.cycles)
    if not free:
        frequency_hz = _clip(frequency_hz, problem.frequency_hz)
    by_time = problem.latency_s / (problem.cycles / frequency_hz + send)
    by_energy = problem.energy_j / (problem.epsilon * frequency_hz**2 * problem.cycles + problem.power_w * send)
    return min(by_time, by_energy)


def _candidates(problem: _Problem) -> Iterator[float]:
    cycles, epsilon, energy_j, latency_s = problem.cycles, problem.epsilon, problem.energy_j, problem.latency_s
    by_radio = problem.power_w * latency_s
    # (24), the root in which nothing cancels.
    linear = 3 * (2 * by_radio - energy_j)
    root = math.sqrt(4 * by_radio**2 - 4 * energy_j * by_radio + 9 * energy_j**2)
    phi = (linear + root) / (8 * by_radio) if linear > 0 else 4 * (energy_j - by_radio) / (root - linear)
    computing_j = energy_j - (1 - phi) * by_radio
    if phi > 0 and computing_j > 0:
        yield math.cbrt((phi * latency_s / cycles) ** 2 * (computing_j / (epsilon * cycles)))
    slowest, fastest = problem.frequency_hz
    yield 0.75 * latency_s * fastest / cycles
    yield 0.75 * energy_j / (epsilon * slowest**2 * cycles)
    for frequency_hz in problem.frequency_hz:
        extra = epsilon * frequency_hz**2 - problem.power_w / frequency_hz
        if extra and (energy_j - by_radio) / extra > 0:
            yield (energy_j - by_radio) / (extra * cycles)
    yield _largest_alpha(problem, problem.beta[1])


def _sizeable(problem: _Problem) -> bool:
    # Budgets of nothing, which roots and quotients would underflow on.
    slowest, fastest = problem.frequency_hz
    work = problem.alpha[0] * problem.cycles
    return problem.latency_s > 1e-9 * work / fastest and problem.energy_j > 1e-9 * problem.epsilon * slowest**2 * work


def _diagnose(problem: _Problem) -> Infeasible:
    alpha, beta = problem.alpha[0], problem.beta[0]
    slowest, fastest = problem.frequency_hz
    cycles, sending = alpha * problem.cycles, alpha * beta * problem.send_s
    latency_s = cycles / fastest + sending
    if _sizeable(problem) and _largest_alpha(problem, beta, free=True) > alpha * (1 + 1e-9):
        if latency_s > problem.latency_s:
            return Infeasible("frequency", cycles / (problem.latency_s - sending), fastest)
        left_j = problem.energy_j - problem.power_w * sending
        return Infeasible("frequency", math.sqrt(left_j / (problem.epsilon * cycles)), slowest)
    if latency_s >= problem.latency_s:
        return Infeasible("latency", latency_s, problem.latency_s)
    frequency_hz = _clip(cycles / (problem.latency_s - sending), problem.frequency_hz)
    energy_j = problem.epsilon * frequency_hz**2 * cycles + problem.power_w * sending
    return Infeasible("energy", max(energy_j, problem.energy_j), problem.energy_j)


def _root(cubic: float, linear: float, constant: float) -> float:
    """Return the positive root of ``cubic x^3 + linear x = constant``; there is one, as cubic and constant are positive."""
    scale = math.cbrt(constant / cubic)
    slope = linear / cubic / scale**2
    # y^3 + slope y - 1 is convex and positive here, so Newton's steps come down to the root and stop.
    y = 1 + math.sqrt(-slope) if slope < 0 else min(1.0, 1 / max(slope, 1e-300))
    for _ in range(100):
        lower = (2 * y**3 + 1) / (3 * y**2 + slope)
        if not lower < y:
            break
        y = lower
    return y * scale


def _clip(value: float, bounds: tuple[float, float]) -> float:
    return min(max(value, bounds[0]), bounds[1])


def _check(cycles: float, size_bits: float, latency_s: float, energy_j: float, alpha: tuple[float, float], beta: tuple[float, float]) -> None:
    for name, value in (("cycles", cycles), ("size_bits", size_bits)):
        if not 0 < value < math.inf:
            hint = "work_cycles(...)" if name == "cycles" else "32 * parameters"
            raise ArgumentError(complain(f"plan.{name}", expected="a positive finite figure", actual=value, hint=hint))
    for name, value in (("latency_s", latency_s), ("energy_j", energy_j)):
        if not value >= 0:
            raise ArgumentError(complain(f"plan.{name}", expected="a budget from 0 up", actual=value, hint="math.inf for none"))
    if not 0 < alpha[0] <= alpha[1] <= 1:
        raise ArgumentError(complain("plan.alpha_min", expected="0 < alpha_min <= alpha_max <= 1", actual=alpha, hint="alpha_min=1/4"))
    if not 0 <= beta[0] <= beta[1] <= 1 or not beta[1]:
        raise ArgumentError(complain("plan.beta_max", expected="0 <= beta_min <= beta_max <= 1, beta_max > 0", actual=beta, hint="beta_max=1/15"))

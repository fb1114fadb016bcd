"""The solution of AnycostFL's planning problem (10): the alpha, beta and clock frequency of largest
learning gain.

Maximise the learning gain ``alpha^4 beta`` (19) subject to (10a) to (10e), with C the cycles and S
the bits of the whole network and r the rate::

    alpha C / f           + alpha beta S / r   <=  T
    alpha_min <= alpha <= alpha_max,  beta_min <= beta <= beta_max
    epsilon f^2 alpha C   + P alpha beta S / r <=  E        f_min <= f <= f_max

In logarithms this problem is concave (it is a geometric programme). As a function of alpha alone,
with the other variables at their best, the gain therefore rises and then falls. Whatever the active
constraints, the best alpha is one of a few numbers, each in closed form or from the positive root
of ``a f^3 + b f = c``; the best of them is the optimum:

- both budgets spent, nothing else active: ``phi = 3/4 + (sqrt(psi) - 3 E) / (8 P T)``, the share of
  T that is computing (24);
- f at a bound: ``alpha = 3/4`` of what the budget that binds there would let it compute;
- f just leaving a bound; beta at a bound; alpha at a bound.

f is then the slowest frequency that meets the deadline, which is the cheapest.

Misprints in the paper, and what is done instead: the second root of (24) has -3/4 where +3/4 is
right; with the right sign it is negative if E > P T, and otherwise leaves no energy for computing,
so it is never used. (23) takes alpha = 1 or alpha_min and an undefined beta_min as bounds of phi;
its plans often exceed (10c) to (10e). Lemma 3, by which both budgets are always spent, fails where
alpha or beta is at its upper bound.

References
----------
Li et al., AnycostFL, INFOCOM 2023, section IV-D, eqs. (10) and (19) to (26).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple


class Problem(NamedTuple):
    """The constants of (10a) to (10e), with C the cycles and S / r the seconds of sending the whole
    update.
    """

    cycles: float
    send_s: float
    latency_s: float
    energy_j: float
    power_w: float
    epsilon: float
    alpha: tuple[float, float]
    beta: tuple[float, float]
    frequency_hz: tuple[float, float]


def solve(problem: Problem) -> tuple[float, float, float] | None:
    """Return the best alpha, beta and f, or None if nothing can be sent within the budgets."""
    low, high = problem.alpha
    most = min(high, largest_alpha(problem, problem.beta[0]))
    if most < low:
        return None
    gain, alpha, sending, frequency_hz = max(
        _sent(problem, min(max(alpha, low), most)) for alpha in (low, most, *_candidates(problem))
    )
    if gain <= 0:
        return None
    beta = min(max(sending / (alpha * problem.send_s), problem.beta[0]), problem.beta[1])
    left_s = problem.latency_s - sending
    if left_s > 0:
        frequency_hz = min(
            frequency_hz, clip(alpha * problem.cycles / left_s, problem.frequency_hz)
        )
    return alpha, beta, frequency_hz


def _sent(problem: Problem, alpha: float) -> tuple[float, float, float, float]:
    """Return the gain up to a constant factor, alpha, the seconds of sending, and the f that
    maximises them.
    """
    slope = problem.power_w * problem.latency_s - problem.energy_j
    work = problem.epsilon * alpha * problem.cycles
    # The time left for sending rises with f and the energy left falls: the best f is where both
    # suffice equally long.
    frequency_hz = clip(
        _root(work, slope, problem.power_w * alpha * problem.cycles), problem.frequency_hz
    )
    time_left = problem.latency_s - alpha * problem.cycles / frequency_hz
    energy_left = (problem.energy_j - work * frequency_hz**2) / problem.power_w
    wanted = [alpha * beta * problem.send_s for beta in problem.beta]
    # At the largest alpha rounding may leave a little less than the least beta needs.
    sending = max(min(time_left, energy_left, wanted[1]), wanted[0])
    return alpha**3 * sending, alpha, sending, frequency_hz


def largest_alpha(problem: Problem, beta: float, *, free: bool = False) -> float:
    """Return the largest alpha at which this beta fits the budgets; `free` ignores the
    bounds of f.
    """
    send = beta * problem.send_s
    cubic = problem.epsilon * problem.cycles * problem.latency_s
    slope = (problem.power_w * problem.latency_s - problem.energy_j) * send
    frequency_hz = _root(cubic, slope, problem.energy_j * problem.cycles)
    if not free:
        frequency_hz = clip(frequency_hz, problem.frequency_hz)
    by_time = problem.latency_s / (problem.cycles / frequency_hz + send)
    by_energy = problem.energy_j / (
        problem.epsilon * frequency_hz**2 * problem.cycles + problem.power_w * send
    )
    return min(by_time, by_energy)


def _candidates(problem: Problem) -> Iterator[float]:
    """Yield the values of alpha at which the gain may be largest."""
    cycles = problem.cycles
    epsilon = problem.epsilon
    energy_j = problem.energy_j
    latency_s = problem.latency_s
    by_radio = problem.power_w * latency_s
    # The root (24), written without cancellation.
    linear = 3 * (2 * by_radio - energy_j)
    root = math.sqrt(4 * by_radio**2 - 4 * energy_j * by_radio + 9 * energy_j**2)
    phi = (
        (linear + root) / (8 * by_radio)
        if linear > 0
        else 4 * (energy_j - by_radio) / (root - linear)
    )
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
    yield largest_alpha(problem, problem.beta[1])


def sizeable(problem: Problem) -> bool:
    """Return whether the budgets are large enough for roots and quotients not to underflow."""
    slowest, fastest = problem.frequency_hz
    work = problem.alpha[0] * problem.cycles
    return (
        problem.latency_s > 1e-9 * work / fastest
        and problem.energy_j > 1e-9 * problem.epsilon * slowest**2 * work
    )


def _root(cubic: float, linear: float, constant: float) -> float:
    """Return the positive root of ``cubic x^3 + linear x = constant``; there is exactly one, as
    cubic and constant are positive.
    """
    scale = math.cbrt(constant / cubic)
    slope = linear / cubic / scale**2
    # y^3 + slope y - 1 is convex and positive at the start, so Newton's steps fall to the root and
    # stop within its last bits. A bracketing solver such as scipy's brentq ends a few roundings
    # away, which near the bounds of feasibility can cost a plan most of its gain.
    y = 1 + math.sqrt(-slope) if slope < 0 else min(1.0, 1 / max(slope, 1e-300))
    for _ in range(100):
        lower = (2 * y**3 + 1) / (3 * y**2 + slope)
        if not lower < y:
            break
        y = lower
    return y * scale


def clip(value: float, bounds: tuple[float, float]) -> float:
    """Return the value, or the bound that it exceeds."""
    return min(max(value, bounds[0]), bounds[1])

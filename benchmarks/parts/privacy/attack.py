"""Attacks on a printed epsilon: what one client's rows move of all that others see, beside the
noise that is found on it.

- `attack_sent`: others see what the client sends, before its codec: every leaf of its payload and
  every figure. From one message two sets of its rows are tried, all of `candidates` in pairs.
- `attack_sum`: others see the server's state. A probe within the noise sees the sum that the step
  is taken on, with the client and without it. Then the step is taken on one noisy sum in two
  worlds, in which the client has other rows: a state or a figure that differs has another source.

The test of the likelihood ratio between two normals that are `moved` apart has the exact epsilon of
`gaussian_epsilon` after so many rounds, each with the change that moves most: a lower bound on any
epsilon that holds. The spread is the upper end of its 99.9 % interval. What moves and has no noise
is an epsilon of infinity.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import torch
from scipy.optimize import brentq
from scipy.stats import chi2
from scipy.stats import norm as gaussian
from torch import Tensor

from bayesfed.data import Dataset
from bayesfed.errors import BayesfedError
from bayesfed.federated import Layer, Moment, Update
from bayesfed.federated.clients.side import ClientSide, sides_of
from bayesfed.federated.clients.turn import Outcome, Task, read
from bayesfed.federated.core import Algorithm, Fit, Info, Inner
from bayesfed.federated.engine.round_loop import rounds
from bayesfed.keys import Key
from bayesfed.trees import Tree
from tests.support.hostile.pool import Arrivals, Between
from tests.support.recipes import Tiny

VICTIM, DELTA, ROUNDS, KEYS = "client-0", 1e-5, 2, 4

Made = Callable[[float, Key, float | None], Algorithm]
"""``(noise, key, delta) -> algorithm``, a method under privacy."""


@dataclass(frozen=True)
class Found:
    """What an attack found.

    Parameters
    ----------
    bound
        Lower bound on epsilon; infinite if something has no noise.
    printed
        Epsilon that was printed.
    bare
        Names of what moved without noise.
    """

    bound: float
    printed: float
    bare: tuple[str, ...] = ()


def gaussian_epsilon(moved: float, delta: float) -> float:
    """Return the epsilon of one normal of sd 1 that may be moved so far (Balle and Wang, 2018)."""

    def over(epsilon: float) -> float:
        left, right = moved / 2 - epsilon / moved, -moved / 2 - epsilon / moved
        return float(gaussian.cdf(left) - math.exp(epsilon) * gaussian.cdf(right)) - delta

    return float(brentq(over, 0.0, 500.0)) if moved > 0 and over(0.0) > 0 else 0.0


def bound_of(moved: float, spread: float, count: int) -> float:
    """Return epsilon after `ROUNDS` of what moves so far, under noise of a spread that is known
    from so many numbers.
    """
    largest = spread * math.sqrt(count / float(chi2.ppf(5e-4, count)))
    return gaussian_epsilon(math.sqrt(ROUNDS) * moved / largest, DELTA)


def candidates(rows: Dataset) -> Iterator[Dataset]:
    """Yield rows that a client might have in place of its own, as many."""
    yield rows
    for factor in (-1.0, 30.0, -30.0):
        inputs, targets = factor * rows.inputs, rows.targets
        far = factor * targets if targets.is_floating_point() else targets.flip(0)
        yield replace(rows, inputs=inputs)
        yield replace(rows, inputs=inputs, targets=far)


def attack_sent(make: Made, tiny: Tiny, noise: float, **options: Any) -> Found:
    """Attack what one client sends; raise what the run raises."""
    turns, algorithm = list[tuple[Task, Tree]](), make(noise, Key(0, "audit"), DELTA)
    pool = tiny.pool()

    def note(task: Task, outcome: Outcome) -> Arrivals:
        if task.client == VICTIM:
            turns.append((replace(task), dict(pool.memories().get(VICTIM, {}))))
        return [(task, outcome)]

    *_, report = rounds(algorithm, Between(pool, note), rounds=ROUNDS, **options)
    quiet = [sides_of(make(noise, Key(n, "audit"), DELTA)) for n in range(KEYS)]
    worst, printed = Found(0.0, 0.0), report.server["local_epsilon"]
    for task, memory in turns:
        seen = [
            found
            for rows in candidates(tiny.data[VICTIM])
            if (found := _sent(quiet[0][task.phase], task, memory, rows)) is not None
        ]
        again = [_sent(side[task.phase], task, memory, tiny.data[VICTIM]) for side in quiet]
        here = compared(seen, [one for one in again if one is not None])
        worst = here if here.bound > worst.bound else worst
    return replace(worst, printed=printed)


def _sent(side: ClientSide, task: Task, memory: Tree, rows: Dataset) -> Tree | None:
    """Return all that a client sends from these rows; None if it fails."""
    message, options = read(replace(task), side, None)
    try:
        fit: Fit = side.fit(message, memory, rows, task.key.child("fit"), options)
    except (BayesfedError, RuntimeError):
        return None
    figures = {f"figure {name}": torch.tensor([float(one)]) for name, one in fit.info.items()}
    return {name: leaf.detach().double() for name, leaf in {**fit.payload, **figures}.items()}


def compared(seen: list[Tree], again: list[Tree]) -> Found:
    """Return what is found from what was seen of several rows under one key, and again of one set
    of rows under several keys.
    """
    noisy, squares, count = list[str](), 0.0, 0
    for name in again[0]:
        values = torch.stack([one[name] for one in again])
        if bool((values != values[0]).any()):
            noisy.append(name)
            squares += float((values - values.mean(0)).square().sum())
            count += values.numel() - values[0].numel()
    bare = {
        name
        for left, right in combinations(seen, 2)
        for name in left.keys() | right.keys()
        if name not in noisy and not _same(left.get(name), right.get(name))
    }
    if bare:
        return Found(math.inf, 0.0, tuple(sorted(bare)))
    if not count:
        return Found(0.0, 0.0)
    moved = max(
        math.sqrt(sum(float((left[name] - right[name]).square().sum()) for name in noisy))
        for left, right in combinations(seen, 2)
    )
    return Found(bound_of(moved, math.sqrt(squares / count), count), 0.0)


def _same(left: Tensor | None, right: Tensor | None) -> bool:
    return left is not None and right is not None and torch.equal(left, right)


@dataclass(frozen=True)
class Probe(Layer):
    """Look at the noisy sum, and put another in its place.

    Parameters
    ----------
    seen
        The sums.
    forced
        Sums to take in place of them, by the number of the round.
    """

    owner: str = "probe"
    seen: list[Tree] = field(default_factory=list)
    forced: Mapping[int, Update] = field(default_factory=dict)
    sums: dict[int, Update] = field(default_factory=dict)

    def step(
        self, own: Tree, moment: Moment, total: Update | None, inner: Inner
    ) -> tuple[Tree, Tree, Info]:
        """Take the step on the sum, or on the one that is forced."""
        if total is not None:
            self.seen.append({name: leaf.double() for name, leaf in total.total.items()})
            self.sums[moment.round] = total
        model, info = inner(self.forced.get(moment.round, total))
        return own, model, info


Probed = Callable[[Probe, float, Key, float | None], Algorithm]
"""``(probe, noise, key, delta) -> algorithm``, a method under privacy with the probe just within
the noise.
"""


def attack_sum(make: Probed, tiny: Tiny, noise: float, **options: Any) -> Found:
    """Attack the server's state; raise what the run raises."""

    def run(
        probe: Probe, rows: Dataset | None, much: float, key: Key, delta: float | None, count: int
    ) -> Any:
        data = {**tiny.data, VICTIM: tiny.data[VICTIM] if rows is None else rows}
        others = [name for name in data if name != VICTIM]
        chosen: dict[str, Any] = (
            {} if rows is not None else {"sampler": lambda number, clients, key: others}
        )
        *_, report = rounds(
            make(probe, much, key, delta),
            Tiny(tiny.algorithm, data, tiny.devices).pool(),
            rounds=count,
            **chosen,
            **options,
        )
        return report

    own, key, first = tiny.data[VICTIM], Key(0, "audit"), Probe()
    with_it = run(first, own, noise, key, DELTA, ROUNDS)
    printed = with_it.server["epsilon"]
    forced = Probe(forced=first.sums)
    # Who took part is not private, so that the client does in both worlds.
    _, other, *_ = candidates(own)
    world = run(forced, other, noise, key, DELTA, ROUNDS)
    bare = [name for name, leaf in with_it.state.items() if not _same(leaf, world.state[name])]
    bare += [name for name, one in with_it.server.items() if world.server.get(name) != one]
    if bare:
        return Found(math.inf, printed, tuple(bare))
    absent, again = Probe(), list[Tree]()
    run(absent, None, 1e-9, key, None, 1)
    seen = [absent.seen[0]]
    for rows in candidates(own):
        probe = Probe()
        try:
            run(probe, rows, 1e-9, key, None, 1)
        except (BayesfedError, RuntimeError):
            continue
        seen.append(probe.seen[0])
    for number in range(KEYS):
        probe = Probe()
        run(probe, own, noise, Key(number, "audit"), None, 1)
        again.append(probe.seen[0])
    pairs = [compared([seen[0], one], again) for one in seen[1:]]
    return replace(max(pairs, key=lambda one: one.bound), printed=printed)

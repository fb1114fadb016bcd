"""`private`: central differential privacy of clients, by clipped changes and Gaussian noise on
their sum (McMahan et al., 2018).

======================  ==================================================================
paper                   here
======================  ==================================================================
S, of flat clipping     `clip`, over all leaves together
z; sigma = z S          `noise`; the sd of every entry of the noise on the sum
qW, a fixed number      `participants`: the mean is the noisy sum over it, whoever came
======================  ==================================================================

The server is trusted: it sees every client's message and adds the noise. The model after each round
is private, and so is whatever is computed from it alone. Not private are the names of those who
took part, the ledger, the figures that clients return (losses, rows) and scores on their data.

Most of what would break a reported epsilon is refused when the method is made: `private` takes one
phase whose server sums, and `BoundedSum` takes nothing but one clipped update of each client. What
remains is known only when rounds start, and checked by `Promise`: who samples from which pool, what
clients remember, and what the run continues from.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from bayesfed.algorithms.wrappers.noising import CLIP, NOISE, Private, check_noise
from bayesfed.errors import ArgumentError, UndeterminedWarning, complain
from bayesfed.errors.checks import COUNT, checked
from bayesfed.errors.plurals import plural
from bayesfed.federated import Algorithm, Layer, everyone, layered
from bayesfed.federated.core import Conditions
from bayesfed.federated.engine.samplers import Uniform
from bayesfed.keys import Key


@checked(clip=CLIP, noise=NOISE, participants=COUNT, population=COUNT)
def private(
    algorithm: Algorithm,
    *,
    clip: float,
    noise: float,
    participants: int,
    key: Key,
    delta: float | None = None,
    population: int | None = None,
    at_client: bool = False,
) -> Algorithm:
    """Clip every client's change to norm `clip` and add noise with standard deviation
    ``noise * clip`` to the sum. Gradients of `SummedGradients` are clipped as changes are.

    All clients weigh alike, since a weight by rows would let one client move the sum by more than
    `clip`. The server clips what it decodes, whatever the codec did. Give `run` the sampler that
    epsilon is computed for: any without `population`, ``fraction(participants / population)`` with
    it. Where epsilon is reported, every round begins with a check that it holds
    (`Promise`); `SECURITY.md` has the list.

    Parameters
    ----------
    algorithm
        The method: an `Algorithm`, as every recipe returns.
    clip
        Largest Euclidean norm of a client's change, over all leaves together. Infinity is allowed
        without noise only; the method is then unchanged but for its weights.
    noise
        Noise multiplier z; 0 gives no privacy. `bayesfed.algorithms.noise_for` returns that of an
        epsilon and a number of rounds.
    participants
        Number of clients that the sum is divided by: the expected and largest number in a round.
    key
        Key of the noise. Whoever knows it can remove the noise: use ``Key(secrets.randbits(62))``,
        and a public key for experiments only.
    delta
        Report epsilon at this delta after each round, for all rounds so far; below one over the
        number of clients, or a run warns. Needs the extra ``dp``. Default: no report.
    population
        Number of clients of the pool, of which each round draws `participants`, see
        `bayesfed.algorithms.wrappers.accounting`. Clients must not keep a memory between rounds: it
        could tell who took part before. Default: no amplification by sampling, whoever takes part.
    at_client
        Let clients clip their changes too, before the codec, for those who do not rely on the
        server to do it.

    Raises
    ------
    ArgumentError
        If an argument is outside its domain, clients send something other than changes, values or
        gradients, there are several phases, the channel adds, or the method is private already. In
        a run, if the reported epsilon would not hold.
    MissingExtraError
        If epsilon is asked for without dp-accounting.
    """
    where, phase = f"private, {algorithm.name!r}", algorithm.phases[0]
    kind = check_noise(where, algorithm, clip, noise)
    if population is not None and delta is None:
        raise ArgumentError("private", "a delta with population", delta, "delta=1e-5")
    layer = Private(
        kind=kind,
        clip=clip,
        noise=noise,
        participants=participants,
        key=key.child("noise", phase.name),
        delta=delta,
        population=population,
        at_client=clip if at_client else math.inf,
    )
    # Fail now, and not after the first round, if epsilon cannot be computed.
    reported, made = layer.spent(1), layered(algorithm, layer, where=where)
    return promised(made, layer, participants, population, delta) if reported else made


def promised(
    algorithm: Algorithm,
    layer: Layer,
    participants: int = 0,
    population: int | None = None,
    delta: float | None = None,
) -> Algorithm:
    """Return a method that reports epsilon, with the check that it holds (`Promise`)."""
    promise = Promise(layer, participants, population, delta)
    return replace(algorithm, checks=(*algorithm.checks, promise))


@dataclass(frozen=True)
class Promise:
    """The check, before every round of a method that reports epsilon, that this epsilon holds for
    the run.

    Parameters
    ----------
    layer
        The layer that adds the noise.
    participants, population
        As of `private`, where sampling counts.
    delta
        As of `private`, where neighbours differ in a client.
    """

    layer: Layer
    participants: int = 0
    population: int | None = None
    delta: float | None = None

    def __call__(self, run: Conditions) -> None:
        """Check one round.

        Raises
        ------
        ArgumentError
            If the reported epsilon would not hold.
        """
        phases = run.algorithm.phases
        if len(phases) != 1 or not self._counts(phases[0].layers):
            around = [layer.owner for phase in phases for layer in phase.layers]
            actual = f"phases {[phase.name for phase in phases]} with the layers {around}"
            expected = (
                f"one phase with the layer that `{self.layer.owner}` made, and none around it that "
                "changes updates or takes steps"
            )
            raise self._broken(run, expected, actual, "the method as it was made, alone")
        if run.changed:
            expected = (
                "a snapshot of a run with the same settings: epsilon counts its rounds as if "
                "they had these"
            )
            actual = f"other {', '.join(run.changed)}"
            raise self._broken(run, expected, actual, "a new run")
        if run.round == 0 and (self.delta or 0.0) * len(run.profiles) >= 1:
            expected = (
                f"delta below one over {plural(len(run.profiles), 'client')}: "
                "a mechanism that tells all of "
                "one client, drawn at random, has this delta"
            )
            hint = f"delta={0.1 / len(run.profiles):.1g}"
            warnings.warn(
                complain(self.layer.owner, expected, self.delta, hint),
                UndeterminedWarning,
                stacklevel=2,
            )
        if self.population is not None:
            self._check_sampling(run, self.participants, self.population)

    def _counts(self, layers: Sequence[Layer]) -> bool:
        """Return whether the layer is among a phase's, and no layer around it changes what it is
        given.
        """
        outer = list(takewhile(lambda layer: layer is not self.layer, layers))
        # What is sent with noise may be added, chosen and stepped on by anybody.
        hooks = ("admit", "combine", "step") if self.layer.traits.noises == "sum" else ()
        return len(outer) < len(layers) and not any(
            getattr(type(layer), hook) is not getattr(Layer, hook)
            for layer in outer
            for hook in hooks
        )

    def _check_sampling(self, run: Conditions, participants: int, population: int) -> None:
        if len(run.profiles) != population:
            raise self._broken(
                run,
                f"a pool of {plural(population, 'client')}, the population",
                len(run.profiles),
                f"population={len(run.profiles)}",
            )
        drawn = (
            run.sampler.count(population)
            if isinstance(run.sampler, Uniform)
            else population
            if run.sampler is everyone
            else None
        )
        if drawn != participants:
            actual = (
                f"{drawn} a round"
                if drawn
                else (
                    f"{getattr(run.sampler, '__name__', type(run.sampler).__name__)}, of which "
                    "that is not known"
                )
            )
            hint = f"sampler=fraction({participants} / {population})"
            raise self._broken(
                run,
                f"a uniform sample of {participants} of {plural(population, 'client')}",
                actual,
                hint,
            )
        if run.remembering:
            some = f"{len(run.remembering)} with a memory, {run.remembering[0]!r} among them"
            hint = "private(...) without population, or a method and codec without memory"
            raise self._broken(
                run, "clients without memory, since it tells who took part before", some, hint
            )

    def _broken(self, run: Conditions, expected: str, actual: object, hint: str) -> ArgumentError:
        where = f"{self.layer.owner}, {run.algorithm.name!r}: epsilon would not hold"
        return ArgumentError(where, expected, actual, hint)

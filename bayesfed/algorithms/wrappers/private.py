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
"""

from __future__ import annotations

import math
from dataclasses import replace

from bayesfed.algorithms.registry import ALGORITHM
from bayesfed.algorithms.wrappers.conditions import Promise
from bayesfed.algorithms.wrappers.noising import CLIP, NOISE, Private, check_noise
from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import COUNT, KEY, checked
from bayesfed.federated import Algorithm, layered
from bayesfed.federated.clients import ClientSide
from bayesfed.keys import Key


@checked(algorithm=ALGORITHM, clip=CLIP, noise=NOISE, key=KEY, participants=COUNT, population=COUNT)
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
    ``noise * clip`` to the sum.

    All clients weigh alike, since a weight by rows would let one client move the sum by more than
    `clip`. The server clips what it decodes, whatever the codec did. Give `run` the sampler that
    epsilon is computed for: any without `population`, ``fraction(participants / population)`` with
    it. Where epsilon is reported, every round begins with a check that it holds
    (`bayesfed.algorithms.wrappers.conditions`); `SECURITY.md` has the list.

    Parameters
    ----------
    clip
        Largest Euclidean norm of a client's change, over all leaves together. Infinity is allowed
        without noise only; the method is then unchanged but for its weights.
    noise
        Noise multiplier z; 0 gives no privacy.
    participants
        Number of clients that the sum is divided by: the expected and largest number in a round.
    key
        Key of the noise. Whoever knows it can remove the noise: use ``Key(secrets.randbits(62))``,
        and a public key for experiments only.
    delta
        Report epsilon at this delta after each round, for all rounds so far. Needs the extra
        ``dp``. Default: no report.
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
        If an argument is outside its domain, clients send something other than changes or values,
        there are several phases, the channel adds, or the method is private already. In a run, if
        the reported epsilon would not hold.
    MissingExtraError
        If epsilon is asked for without dp-accounting.
    """
    where, phase = f"private, {algorithm.name!r}", algorithm.phases[0]
    check_noise(where, clip, noise)
    if population is not None and delta is None:
        raise ArgumentError("private", "a delta with population", delta, "delta=1e-5")
    layer = Private(
        kind=ClientSide.of(phase).kind,
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
    return replace(made, checks=(*made.checks, Promise(layer))) if reported else made

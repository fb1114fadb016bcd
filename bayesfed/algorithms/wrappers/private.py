"""`private`: central differential privacy of clients: changes clipped to a norm, Gaussian noise on their sum (McMahan et al., 2018).

======================  ==================================================================
paper                   here
======================  ==================================================================
S, of flat clipping     `clip`, over all leaves together
z; sigma = z S          `noise`; the sd of every entry of the noise on the sum
qW, a fixed number      `participants`: the mean is the noisy sum over it, whoever came
======================  ==================================================================

The server is trusted: it sees every client's message, and adds the noise. What is private is the model after each round, and whatever is made of it
alone. Who took part, the ledger, the figures clients return (losses, rows) and scores on their data are not.
"""

from __future__ import annotations

import math
from dataclasses import replace

from bayesfed.algorithms.wrappers.noising import Budget, Clipped, ClippedLocal, Noised
from bayesfed.algorithms.wrappers.phases import alike, check_digital, each_phase
from bayesfed.errors import ArgumentError, complain
from bayesfed.federated.core.algorithm import Algorithm, Phase
from bayesfed.federated.core.protocols import Assignment, Profile, Skip
from bayesfed.keys import Key
from bayesfed.trees import Tree


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
    """Shorten every client's change to `clip` and add noise of sd ``noise * clip`` to the sum.

    Clients weigh alike: a weight by rows would let one client move the sum by more than `clip`. The server shortens what it decodes, whatever the
    codec did. Give `run` the sampler that the figures are for: everybody by default, or ``fraction(participants / population)``.

    Parameters
    ----------
    clip
        Largest Euclidean norm of a client's change, over all leaves; infinity only without noise: then the method is as it was, weights aside.
    noise
        z. 0 is no privacy.
    participants
        What the sum is divided by: clients of a round, expected and at most.
    key
        Of the noise. Whoever knows it can take the noise off: ``Key(secrets.randbits(62))``; a public one only to try things out.
    delta
        Report epsilon at this delta, after each round, for all rounds so far; needs the extra ``dp``. Default: no epsilon.
    population
        Epsilon is that of rounds with `participants` of so many clients, by `bayesfed.algorithms.wrappers.accounting`; default: of every client in every round.
    at_client
        Clients shorten their changes too, before the codec: for who does not trust the server to.

    Raises
    ------
    ArgumentError
        If an argument is outside its domain, clients send something other than changes or values, there are several phases, or the channel adds.
    MissingExtraError
        If epsilon is asked for without dp-accounting.
    """
    if not (clip > 0 and 0 <= noise < math.inf and participants >= 1) or (noise and math.isinf(clip)):
        expected = "clip > 0, noise >= 0, participants >= 1; a finite clip with noise"
        raise ArgumentError(complain("private", expected=expected, actual=(clip, noise, participants), hint="clip=1.0, noise=1.0, participants=10"))
    if len(algorithm.phases) != 1:
        names = [phase.name for phase in algorithm.phases]
        raise ArgumentError(complain("private", expected="a method of one phase", actual=names, hint="fed_avg, fed_paq, fed_lora"))
    if population is not None and delta is None:
        raise ArgumentError(complain("private", expected="a delta with population", actual=delta, hint="delta=1e-5"))
    budget = Budget(noise, delta, participants if population is not None else None, population) if delta is not None else None
    # What cannot be computed is said now, not after the first round.
    figures = budget.after(1) if budget else {}

    def changed(phase: Phase) -> Phase:
        check_digital(phase, f"private, {algorithm.name!r}")
        assign = alike(phase.assign)

        def clipped(state: Tree, round: int, profile: Profile, key: Key) -> Assignment | Skip:
            found = assign(state, round, profile, key)
            return found if isinstance(found, Skip) else replace(found, view=Clipped(found.view, clip, state))

        server = Noised(phase.server, phase.local.kind, clip, noise, participants, key.child("noise", phase.name), budget if figures else None)
        return replace(phase, assign=clipped, server=server, local=ClippedLocal(phase.local, clip) if at_client else phase.local)

    return each_phase(algorithm, "private", changed)

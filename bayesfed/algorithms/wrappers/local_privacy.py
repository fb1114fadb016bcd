"""`local_privacy`: local differential privacy of clients, by clipping and Gaussian noise before
anything leaves a client.

======================  ==================================================================
notation                here
======================  ==================================================================
C                       `clip`, over all leaves together
z; sigma = z C          `noise`; the sd of every entry of the noise on a client's change
2 C                     how far two changes within the bound can be apart: the sensitivity
======================  ==================================================================

Nobody is trusted but the client itself: epsilon holds against the server, and against all who see
the client's messages. Neighbours are any two sets of rows of one client, its real ones and any
others. A round of a client is one Gaussian mechanism of sensitivity 2 C, so its noise multiplier is
z / 2; rounds are composed by Rényi differential privacy. Every client is accounted as if it had
taken part in every round, since a payload that was refused has been seen as well.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from bayesfed.algorithms.wrappers.accounting import epsilon
from bayesfed.algorithms.wrappers.phases import each_phase, equally_weighted
from bayesfed.data.dataset import Dataset
from bayesfed.errors import ArgumentError
from bayesfed.federated.aggregation.changes import clipped
from bayesfed.federated.core.algorithm import Algorithm, Phase, Server, published
from bayesfed.federated.core.options import LocalOptions
from bayesfed.federated.core.protocols import Fit, Info
from bayesfed.federated.core.update import Reducer, Update
from bayesfed.federated.core.wrappers import Around
from bayesfed.keys import Key
from bayesfed.trees import Tree


@dataclass(frozen=True)
class LocallyPrivate(Around):
    """A local step around another, which clips its change, adds noise and returns no figures.
    Changes of values are measured from the message.

    Parameters
    ----------
    local
        The wrapped local step.
    clip
        Largest Euclidean norm of a change.
    noise
        Noise multiplier z.
    key
        Key of the noise, known to the client alone.
    """

    clip: float
    noise: float
    key: Key

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Fit, clip, and add noise; a client without rows adds noise as well."""
        fit = self.local.fit(message, memory, data, key, options)
        payload = (
            clipped(Update(fit.payload, 1.0, self.kind), message, self.clip).total
            if math.isfinite(self.clip)
            else fit.payload
        )
        if self.noise:
            # The path of `key` names phase, round and client; the seed of the noise is that of the
            # client's own key.
            own = self.key.child(key.seed, *key.path)
            payload = {
                name: self._noisy(leaf, own.child("noise", name)) for name, leaf in payload.items()
            }
        return Fit(payload, fit.memory, {})

    def _noisy(self, leaf: torch.Tensor, key: Key) -> torch.Tensor:
        drawn = torch.randn(leaf.shape, dtype=torch.float64, generator=key.generator())
        return (leaf.double() + self.noise * self.clip * drawn.to(leaf.device)).to(leaf.dtype)


@dataclass(frozen=True)
class Accounted:
    """A server around another, which reports what every client's privacy may have cost so far.

    Parameters
    ----------
    server
        Server that takes the step.
    noise
        Noise multiplier z of the clients.
    delta
        Failure probability at which epsilon is reported.
    """

    server: Server
    noise: float
    delta: float

    def publish(self, state: Tree, round: int, version: int | None) -> Tree:
        """Return what the server publishes."""
        return published(self.server, state, round, version)

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Take the server's step, and add ``local_epsilon`` and ``local_delta`` after all rounds so
        far to the figures.
        """
        state, info = self.server.step(state, reducer, round)
        return state, {
            **info,
            "local_epsilon": local_epsilon(self.noise, round + 1, self.delta),
            "local_delta": self.delta,
        }


def local_epsilon(noise: float, rounds: int, delta: float) -> float:
    """Return epsilon of one client at `delta` after it took part in so many rounds with noise of sd
    ``noise * clip``.

    Raises
    ------
    ArgumentError, MissingExtraError
        As `epsilon`.
    """
    return epsilon(noise / 2, rounds, delta)


def local_privacy(
    algorithm: Algorithm, *, clip: float, noise: float, key: Key, delta: float | None = None
) -> Algorithm:
    """Let every client clip its change to norm `clip` and add noise with standard deviation
    ``noise * clip`` to it before it is sent.

    All clients with rows weigh alike, and no figures (losses, numbers of rows of a step) leave a
    client. The mean of K clients has noise of ``noise * clip / sqrt(K)``: at the same epsilon far
    more than `private` adds, which is the price of trusting nobody.

    Parameters
    ----------
    clip
        Largest Euclidean norm of a client's change, over all leaves together. Infinity is allowed
        without noise only.
    noise
        Noise multiplier z; 0 gives no privacy.
    key
        Key of the noise. Whoever knows it can remove the noise, so each site of a real federation
        passes its own, ``Key(secrets.randbits(62))``. In a simulation one key serves all clients:
        their noise is drawn from streams of their own.
    delta
        Report ``local_epsilon`` at this delta after each round, for a client that took part in all
        rounds so far. Needs the extra ``dp``. Default: no report.

    Raises
    ------
    ArgumentError
        If an argument is outside its domain, clients send something other than changes or values,
        or there are several phases.
    MissingExtraError
        If epsilon is asked for without dp-accounting.
    """
    where = f"local_privacy, {algorithm.name!r}"
    if not (clip > 0 and 0 <= noise < math.inf) or (noise and math.isinf(clip)):
        expected = "clip > 0 and noise >= 0; a finite clip with noise"
        raise ArgumentError(where, expected, (clip, noise), "clip=1.0, noise=4.0")
    if len(algorithm.phases) != 1:
        names = [phase.name for phase in algorithm.phases]
        raise ArgumentError(where, "a method of one phase", names, "fed_avg, fed_paq, fed_lora")
    if delta is not None:
        # Fail now, and not after the first round, if epsilon cannot be computed.
        local_epsilon(noise, 1, delta)

    def changed(phase: Phase) -> Phase:
        server = Accounted(phase.server, noise, delta) if delta is not None else phase.server
        return replace(
            phase,
            assign=equally_weighted(phase.assign),
            local=LocallyPrivate(phase.local, clip, noise, key),
            server=server,
        )

    return each_phase(algorithm, where, changed)

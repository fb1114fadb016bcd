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
z / 2; all rounds are one Gaussian mechanism. Every client is accounted as if it had
taken part in every round, since a payload that was refused has been seen as well.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from bayesfed.algorithms.wrappers.accounting import epsilon
from bayesfed.algorithms.wrappers.noising import (
    CLIP,
    NOISE,
    NOISY,
    bounded,
    check_noise,
    noised,
)
from bayesfed.algorithms.wrappers.private import promised
from bayesfed.algorithms.wrappers.robust import EqualWeights
from bayesfed.errors.checks import checked
from bayesfed.federated import Algorithm, Fit, Moment, Sent, Traits, Update, Visit, layered
from bayesfed.federated.core import Info, Inner
from bayesfed.keys import Key
from bayesfed.trees import Tree


@dataclass(frozen=True)
class LocallyPrivate(EqualWeights):
    """Every client clips its change, adds noise and returns no figures. Changes of values are
    measured from the message.

    Parameters
    ----------
    clip
        Largest Euclidean norm of a change.
    noise
        Noise multiplier z.
    key
        Key of the noise, known to the client alone.
    delta
        Failure probability at which the server reports what every client's privacy may have cost so
        far; None for no report.
    """

    owner: str = "local privacy"
    clip: float = math.inf
    noise: float = 0.0
    key: Key = Key(0)
    delta: float | None = None
    traits: ClassVar[Traits] = Traits(takes=NOISY, noises="sent")

    def send(self, visit: Visit, fit: Fit) -> Sent:
        """Clip, and add noise; a client without rows adds noise as well."""
        payload = fit.payload
        if math.isfinite(self.clip):
            payload = bounded(Update(payload, 1.0, visit.kind), visit.message, self.clip).total
        if self.noise:
            # The path of the turn's key names phase, round and client; the seed of the noise is
            # that of the client's own key.
            own = self.key.child(visit.key.seed, *visit.key.path)
            sd = self.noise * self.clip
            payload = {
                name: noised(leaf, sd, own.child("noise", name)) for name, leaf in payload.items()
            }
        return Sent(Fit(payload, fit.memory, {}))

    def step(
        self, own: Tree, moment: Moment, total: Update | None, inner: Inner
    ) -> tuple[Tree, Tree, Info]:
        """Add ``local_epsilon`` and ``local_delta`` after all rounds so far to the figures."""
        model, info = inner(total)
        if self.delta is not None:
            spent = epsilon(self.noise / 2, moment.round + 1, self.delta)
            info = {**info, "local_epsilon": spent, "local_delta": self.delta}
        return own, model, info


@checked(clip=CLIP, noise=NOISE)
def local_privacy(
    algorithm: Algorithm, *, clip: float, noise: float, key: Key, delta: float | None = None
) -> Algorithm:
    """Let every client clip its change to norm `clip` and add noise with standard deviation
    ``noise * clip`` to it before it is sent. Gradients of `SummedGradients` are clipped as changes
    are.

    All clients with rows weigh alike, and no figures (losses, numbers of rows of a step) leave a
    client. The mean of K clients has noise of ``noise * clip / sqrt(K)``: at the same epsilon far
    more than `private` adds, which is the price of trusting nobody.

    Parameters
    ----------
    algorithm
        The method: an `Algorithm`, as every recipe returns.
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
        If an argument is outside its domain, clients send something other than changes, values or
        gradients, or there are several phases.
    MissingExtraError
        If epsilon is asked for without dp-accounting.
    """
    where = f"local_privacy, {algorithm.name!r}"
    check_noise(where, algorithm, clip, noise)
    if delta is not None:
        # Fail now, and not after the first round, if epsilon cannot be computed.
        epsilon(noise / 2, 1, delta)
    layer = LocallyPrivate(clip=clip, noise=noise, key=key, delta=delta)
    made = layered(algorithm, layer, where=where)
    return made if delta is None else promised(made, layer)

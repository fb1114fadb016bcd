"""`Private`: clipped changes, noise on their sum and the report of epsilon, in one layer."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import ClassVar

import torch
from torch import Tensor

from bayesfed.algorithms.wrappers.accounting import epsilon
from bayesfed.algorithms.wrappers.robust import EqualWeights
from bayesfed.errors import ArgumentError, UpdateError
from bayesfed.errors.checks import number
from bayesfed.errors.plurals import plural
from bayesfed.federated import Algorithm, Fit, Kind, Moment, Sent, Traits, Update, Visit
from bayesfed.federated.aggregation.changes import VECTORS, clipped
from bayesfed.federated.clients import ClientSide
from bayesfed.federated.core import Info, Inner
from bayesfed.keys import Key
from bayesfed.trees import Tree

CLIP, NOISE = number("(0, inf]", "1.0"), number("[0, inf)", "1.0")
# What may be clipped and have noise, and why the rest may not.
NOISY: tuple[Kind, ...] = (*VECTORS, "gradient")
SPREADS = "spreads, precisions or sums, which noise can make negative"
FACTORS = "factors, of which a norm bounds no product"


@dataclass(frozen=True)
class Private(EqualWeights):
    """Central differential privacy: no client moves the sum by more than `clip`, and the sum has
    noise.

    The noise of a round comes from the key and the sum: a resumed run reproduces it and reveals
    nothing new, and two runs with the same key whose sums differ have independent noise, so that
    their difference reveals neither. A round in which no client was heard has noise like any other.

    Parameters
    ----------
    kind
        What clients send, one of `NOISY`.
    clip, noise
        Largest norm of a client's change, and the noise multiplier z.
    participants
        Number of clients that the sum is divided by.
    key
        Key of the noise.
    delta
        Failure probability at which epsilon is reported; None reports none.
    population
        Number of clients of which each round draws `participants`; None without amplification by
        sampling.
    at_client
        Norm to which clients clip their changes before the codec; infinity for none.
    """

    owner: str = "private"
    kind: Kind = "delta"
    clip: float = math.inf
    noise: float = 0.0
    participants: int = 1
    key: Key = Key(0)
    delta: float | None = None
    population: int | None = None
    at_client: float = math.inf
    traits: ClassVar[Traits] = Traits(
        silent=True,
        late="refused",
        needs="sum",
        apart=True,
        bounds=True,
        noises="sum",
        blind=True,
        takes=NOISY,
    )

    def spent(self, rounds: int) -> Info:
        """Return epsilon and delta after this many rounds, if they are reported."""
        if self.delta is None:
            return {}
        sampled = {"participants": self.participants, "population": self.population}
        among = sampled if self.population is not None else {}
        return {"epsilon": epsilon(self.noise, rounds, self.delta, **among), "delta": self.delta}

    @property
    def client_bound(self) -> float:
        """Norm to which clients clip their changes by themselves."""
        return self.at_client

    def tightened(self, slack: float) -> Private:
        """Return the layer with a bound at clients that is so much lower."""
        return replace(self, at_client=self.at_client - slack)

    def send(self, visit: Visit, fit: Fit) -> Sent:
        """Clip what the client sends. Changes of values are measured from the message."""
        if self.at_client == math.inf:
            return Sent(fit)
        update = Update(fit.payload, 1.0, visit.kind)
        return Sent(fit._replace(payload=bounded(update, visit.message, self.at_client).total))

    def admit(self, own: Tree, update: Update, moment: Moment) -> Update:
        """Clip an update.

        Raises
        ------
        UpdateError
            If it weighs entries one by one, or its weight is neither 0 nor 1.
        """
        if update.by_entry or update.weight not in (0.0, 1.0):
            actual, hint = (
                ("a weight for each entry", "a view that covers everything")
                if update.by_entry
                else (update.weight, "the update of one client")
            )
            raise UpdateError("private", "clients of weight 1", actual, hint)
        if not update.weight:
            zeros = {name: torch.zeros_like(leaf) for name, leaf in update.total.items()}
            return replace(update, total=zeros)
        if not math.isfinite(self.clip):
            return update
        return bounded(update, moment.shown(moment.model, moment.round, None), self.clip)

    def step(
        self, own: Tree, moment: Moment, total: Update | None, inner: Inner
    ) -> tuple[Tree, Tree, Info]:
        """Add noise, then step. A client that did not take part counts as one that changed nothing.

        Raises
        ------
        UpdateError
            If more than `participants` clients took part: the reported epsilon would not hold.
        """
        round = moment.round
        sent = moment.shown(moment.model, round, None)
        if total is None:
            floats = {name: leaf for name, leaf in sent.items() if leaf.is_floating_point()}
            zeros = {name: torch.zeros_like(leaf) for name, leaf in floats.items()}
            total = Update(zeros, 0.0, self.kind)
        came = total.number()
        if came > self.participants:
            hint = f"participants={came:g}, or a sampler of fewer"
            expected = f"at most {plural(self.participants, 'client')}"
            raise UpdateError(f"private, round {round}", expected, came, hint)
        stream, absent = self.key.child(round, _fingerprint(total.total)), self.participants - came
        summed = {
            name: self._noisy(name, leaf, sent, absent, stream)
            for name, leaf in total.total.items()
        }
        model, info = inner(Update(summed, float(self.participants), total.kind))
        return own, model, info | self.spent(round + 1)

    def _noisy(self, name: str, leaf: Tensor, state: Tree, absent: float, stream: Key) -> Tensor:
        result = leaf
        if self.kind == "value" and absent:
            if name not in state:
                hint = "a method that sends changes"
                raise UpdateError("private", "values of the state's leaves", name, hint)
            result = result + absent * state[name]
        return noised(result, self.noise * self.clip, stream.child(name)) if self.noise else result


def bounded(update: Update, state: Tree, longest: float) -> Update:
    """Return an update whose change, or gradient, has a norm of at most `longest`."""
    # Nothing is taken from a gradient.
    measured = replace(update, kind="delta") if update.kind == "gradient" else update
    return replace(clipped(measured, state, longest), kind=update.kind)


def noised(leaf: Tensor, sd: float, key: Key) -> Tensor:
    """Return a leaf with Gaussian noise on each entry."""
    drawn = torch.randn(leaf.shape, dtype=torch.float64, generator=key.generator())
    return (leaf.double() + sd * drawn.to(leaf.device)).to(leaf.dtype)


def check_noise(where: str, algorithm: Algorithm, clip: float, noise: float) -> Kind:
    """Return what clients send, to which noise is added.

    Raises
    ------
    ArgumentError
        If a bound that is infinite has noise, or what clients send may have none.
    """
    if noise and math.isinf(clip):
        raise ArgumentError(where, "a finite clip with noise", clip, "clip=1.0")
    phase = algorithm.phases[0]
    if (kind := ClientSide.of(phase).kind) not in NOISY:
        expected = "clients that send changes, values or gradients"
        why = FACTORS if kind in ("tangent", "factors") else SPREADS
        found = f"{kind!r} in phase {phase.name!r}, {why}"
        hint = "federated_svi(..., fusion=SummedGradients()), fed_avg, fed_lora"
        raise ArgumentError(where, expected, found, hint)
    return kind


def _fingerprint(tree: Tree) -> str:
    """Return a digest of all numbers of a tree."""
    content = blake2b(digest_size=16)
    for name, leaf in sorted(tree.items()):
        content.update(
            name.encode()
            + leaf.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        )
    return content.hexdigest()

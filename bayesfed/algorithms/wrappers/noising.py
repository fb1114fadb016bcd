"""The parts of `private`: clipping at the server and at clients, the sum of what was clipped,
noise, and the report of epsilon.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from hashlib import blake2b

import torch

from bayesfed.algorithms.wrappers.accounting import epsilon
from bayesfed.data.dataset import Dataset
from bayesfed.errors import ArgumentError, UpdateError
from bayesfed.federated.aggregation.changes import clipped
from bayesfed.federated.core.algorithm import Server, published
from bayesfed.federated.core.options import LocalOptions
from bayesfed.federated.core.protocols import Fit, Info, View
from bayesfed.federated.core.sums import Sum
from bayesfed.federated.core.update import Kind, Reducer, Update
from bayesfed.federated.core.wrappers import Around
from bayesfed.keys import Key
from bayesfed.trees import Tree


@dataclass(frozen=True)
class Budget:
    """The privacy budget that is reported: epsilon at `delta`."""

    noise: float
    delta: float
    participants: int | None
    population: int | None

    def after(self, rounds: int) -> Info:
        """Return epsilon and delta after this many rounds."""
        spent = epsilon(
            self.noise,
            rounds,
            self.delta,
            participants=self.participants,
            population=self.population,
        )
        return {"epsilon": spent, "delta": self.delta}


@dataclass(frozen=True)
class ClippedUpdate(Update):
    """One client's update, with a weight of 0 or 1, whose change has a norm of at most `clip`."""

    clip: float = math.inf


class ClippedSum(Sum):
    """A sum of clipped updates, one of each client, and of nothing else: what a link or a wrapper
    changes after clipping is refused.

    Parameters
    ----------
    clip
        Largest norm of a client's change.
    """

    def __init__(self, clip: float = math.inf) -> None:
        super().__init__()
        self.clip, self.clients = clip, set[str]()

    def add(self, client: str, update: Update) -> None:
        """Add one client's clipped update.

        Raises
        ------
        UpdateError
            If the update was not clipped to the norm, or the client has one in the sum already.
        """
        if (
            not isinstance(update, ClippedUpdate)
            or update.clip > self.clip
            or client in self.clients
        ):
            actual = (
                "a second one"
                if client in self.clients
                else "one that was not clipped, or was changed afterwards"
            )
            hint = "`private` as the outermost wrapper, with the link Digital()"
            raise UpdateError(f"private, client {client!r}", "one clipped update", actual, hint)
        super().add(client, update)
        self.clients.add(client)


@dataclass(frozen=True)
class Clipped:
    """A view around another, through which no client moves the sum by more than `clip`.

    Parameters
    ----------
    state
        The server's state at the start of the round. Changes of clients that send values are
        measured from it.
    """

    view: View
    clip: float
    state: Tree

    def restrict(self, tree: Tree) -> Tree:
        """Return what the inner view returns."""
        return self.view.restrict(tree)

    def lift(self, payload: Tree, weight: float, kind: Kind) -> Update:
        """Lift through the inner view, then clip.

        Raises
        ------
        UpdateError
            As the inner view does, and if it weighs entries one by one or the weight is neither 0
            nor 1.
        """
        update = self.view.lift(payload, weight, kind)
        if update.by_entry or update.weight not in (0.0, 1.0):
            actual = "a weight for each entry" if update.by_entry else update.weight
            raise UpdateError(
                "private", "clients of weight 1", actual, "a view that covers everything"
            )
        if not update.weight:
            update = Update(
                {name: torch.zeros_like(leaf) for name, leaf in update.total.items()}, 0.0, kind
            )
        elif math.isfinite(self.clip):
            update = clipped(update, self.state, self.clip)
        return ClippedUpdate(update.total, update.weight, update.kind, self.clip)


@dataclass(frozen=True)
class ClippedLocal(Around):
    """A local step around another, which clips the payload before it is coded. Changes of values
    are measured from the message.

    Parameters
    ----------
    clip
        Largest Euclidean norm of the change.
    """

    clip: float

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Fit, then clip."""
        fit = self.local.fit(message, memory, data, key, options)
        return fit._replace(
            payload=clipped(Update(fit.payload, 1.0, self.kind), message, self.clip).total
        )


@dataclass(frozen=True)
class Noised:
    """A server around another, which steps on the noisy sum divided by a fixed number of clients.

    The noise of a round comes from the key and the sum: a resumed run reproduces it and reveals
    nothing new, and two runs with the same key whose sums differ have independent noise, so that
    their difference reveals neither. A round in which no client was heard has noise like any other.

    Parameters
    ----------
    server
        The inner server.
    kind
        What clients send: "delta" or "value".
    clip, noise
        Largest norm of a client's change, and the noise multiplier z.
    participants
        Number of clients that the sum is divided by.
    key
        Key of the noise.
    budget
        The privacy budget to report; None reports none.
    """

    server: Server
    kind: Kind
    clip: float
    noise: float
    participants: int
    key: Key
    budget: Budget | None
    steps_alone: bool = field(default=True, init=False)

    def publish(self, state: Tree, round: int, version: int | None) -> Tree:
        """Return what the inner server publishes."""
        return published(self.server, state, round, version)

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Add noise, then step. A client that did not take part counts as one that changed nothing.

        Raises
        ------
        UpdateError
            If the updates were not summed, or more than `participants` clients took part: the
            reported epsilon would not hold.
        """
        if not isinstance(reducer, Sum):
            raise UpdateError("private", "a sum", type(reducer).__name__, "private(algorithm, ...)")
        nobody = Update(
            {name: torch.zeros_like(leaf) for name, leaf in state.items()}, 0.0, self.kind
        )
        total = reducer.total or nobody
        came = total.number()
        if came > self.participants:
            hint = f"participants={came:g}, or a sampler of fewer"
            raise UpdateError(
                f"private, round {round}", f"at most {self.participants} clients", came, hint
            )
        stream = self.key.child(round, _fingerprint(total.total))
        summed = {
            name: self._noisy(name, leaf, state, self.participants - came, stream)
            for name, leaf in total.total.items()
        }
        state, info = self.server.step(
            state, Sum(Update(summed, float(self.participants), total.kind)), round
        )
        return state, {**info, **(self.budget.after(round + 1) if self.budget else {})}

    def _noisy(
        self, name: str, leaf: torch.Tensor, state: Tree, absent: float, stream: Key
    ) -> torch.Tensor:
        result = leaf
        if self.kind == "value" and absent:
            if name not in state:
                raise UpdateError(
                    "private", "values of the state's leaves", name, "a method that sends changes"
                )
            result = result + absent * state[name]
        if self.noise:
            drawn = torch.randn(
                leaf.shape, dtype=torch.float64, generator=stream.child(name).generator()
            )
            result = (result.double() + self.noise * self.clip * drawn.to(leaf.device)).to(
                leaf.dtype
            )
        return result


def _fingerprint(tree: Tree) -> str:
    """Return a digest of all numbers of a tree."""
    content = blake2b(digest_size=16)
    for name, leaf in sorted(tree.items()):
        content.update(
            name.encode()
            + leaf.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        )
    return content.hexdigest()


def check_not_private(server: Server | None, where: str, hint: str) -> None:
    """Raise `ArgumentError` if noise for privacy is added below this server."""
    while server is not None:
        if isinstance(server, Noised):
            raise ArgumentError(where, "a method without `private`", "a private one", hint)
        server = getattr(server, "server", None)

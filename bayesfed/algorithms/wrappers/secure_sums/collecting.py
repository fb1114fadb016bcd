"""How the answers of the four phases are collected: integers and bytes, which `Digital` refuses,
are checked by a `Letter` and gathered or added.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, cast

import numpy as np
import torch

from bayesfed.algorithms.wrappers.secure_sums.primitives import (
    LIMBS,
    PUBLIC,
    Agreement,
    Bits,
    fresh,
)
from bayesfed.algorithms.wrappers.secure_sums.unmasking import LostRoundError, Roster
from bayesfed.compress import Codec
from bayesfed.errors import UpdateError
from bayesfed.federated import Arrival, Kind, Reducer, Update, View
from bayesfed.federated.core import Cost, Scalar, seams
from bayesfed.federated.links.digital import decoded
from bayesfed.keys import Key
from bayesfed.trees import Tree, check_shapes

Expected = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]


@dataclass(frozen=True)
class Letter:
    """A view of what one client is sent, and of what its answer looks like.

    Parameters
    ----------
    content
        Leaves for the client; or the view that gives them.
    expected
        Types and shapes of the answer's leaves.
    roster
        The round so far, for the last phase.
    """

    content: Tree | View
    expected: Expected
    roster: Roster | None = None

    def restrict(self, tree: Tree) -> Tree:
        """Return what the client gets."""
        return self.content if isinstance(self.content, dict) else self.content.restrict(tree)

    def lift(self, payload: Tree, weight: float, kind: Kind) -> Update:
        """Check an answer, and return it as it is."""
        check_shapes(
            payload, {name: shape for name, (_, shape) in self.expected.items()}, where="payload"
        )
        for name, (dtype, _) in self.expected.items():
            if payload[name].dtype is not dtype:
                raise UpdateError(
                    f"payload, leaf {name!r}",
                    dtype,
                    payload[name].dtype,
                    "bayesfed of the same version",
                    field="dtype",
                )
        return Update(payload, 1.0, kind)


@dataclass
class Gathered:
    """A reducer that keeps the answers of all clients. They are keys and sealed shares, no updates.

    Parameters
    ----------
    answers
        By client: its answer, as arrays.
    """

    answers: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)

    def add(self, client: str, update: Update) -> None:
        """Keep one client's answer."""
        self.answers[client] = {name: leaf.numpy() for name, leaf in update.total.items()}


@dataclass
class GatheredKeys(Gathered):
    """A reducer of public keys, which must be sound and not those of another client: others would
    fail over them.
    """

    def add(self, client: str, update: Update) -> None:
        """Keep one client's keys.

        Raises
        ------
        UpdateError
            If a key is unsound, or was sent before.
        """
        keys = [half.tobytes() for half in update.total["keys"].numpy().reshape(2, PUBLIC)]
        for key in keys:
            Agreement(fresh(), "trial").key(key)
        others = {
            half.tobytes()
            for answer in self.answers.values()
            for half in answer["keys"].reshape(2, PUBLIC)
        }
        if keys[0] == keys[1] or others & set(keys):
            raise UpdateError(
                "public keys",
                "two keys of its own",
                "one that was sent before",
                "keys drawn at random",
                field="values",
            )
        super().add(client, update)


@dataclass
class ModularSum:
    """A reducer that adds vectors of integers modulo ``2 ** bits``.

    Parameters
    ----------
    bits
        Bits of an integer.
    total
        The sum so far, unsigned; None before the first vector.
    clients
        Names of the clients in the sum.
    """

    bits: Bits
    total: np.ndarray | None = None
    clients: list[str] = field(default_factory=list)

    def add(self, client: str, update: Update) -> None:
        """Add one client's vector."""
        vector = update.total["vector"].numpy().view(LIMBS[self.bits])
        self.total = vector.copy() if self.total is None else self.total + vector
        self.clients.append(client)


@dataclass
class Unmasked(ModularSum):
    """A sum that masks are taken off once all shares have come.

    Parameters
    ----------
    shares
        By client: what it gave.
    reason
        Why there is no sum.
    """

    shares: dict[str, np.ndarray] = field(default_factory=dict)
    reason: str = "no client gave its shares"

    def add(self, client: str, update: Update) -> None:
        """Keep one client's shares."""
        self.shares[client] = update.total["shares"].numpy()

    def finish(self, roster: Roster) -> None:
        """Unmask the total of a round, or say why that is not possible."""
        places = {name: place for place, name in enumerate(roster.names)}
        answers = {places[name]: given for name, given in self.shares.items()}
        total = roster.total.view(LIMBS[self.bits])
        try:
            self.total, self.reason = total - roster.masks(answers, total.size, self.bits), ""
        except LostRoundError as problem:
            self.reason = f"the round is lost: {problem}"
        self.clients = [name for name, place in places.items() if roster.active[place]]


@dataclass(frozen=True)
class Gather:
    """A link for one phase: every answer is a message, and is checked and added by itself."""

    one_by_one: ClassVar[bool] = True

    def pack(self, payload: Tree, codec: Codec, meta: Mapping[str, Scalar], key: Key) -> bytes:
        """Return the payload as the codec encodes it."""
        return codec.encode(payload, meta, key)

    def collect(self, arrivals: Iterable[Arrival], reducer: Reducer, key: Key) -> Iterator[Arrival]:
        """Add every answer that is sound. Refuse the others, each with a reason."""
        for arrival in arrivals:
            arrival.cost = Cost(8 * len(arrival.packed))
            try:
                reducer.add(
                    arrival.client,
                    arrival.assignment.view.lift(
                        decoded(arrival), arrival.assignment.weight, arrival.kind
                    ),
                )
            except Exception as problem:
                # Only the client itself is refused, whatever it sent.
                arrival.refuse(problem)
            yield arrival


@dataclass(frozen=True)
class Open(Gather):
    """The link of the last phase, which unmasks the sum. If that is not possible, nobody is heard,
    and the reason is given for each client.
    """

    one_by_one: ClassVar[bool] = False

    def collect(self, arrivals: Iterable[Arrival], reducer: Reducer, key: Key) -> Iterator[Arrival]:
        """Gather all answers, then unmask."""
        came = [*super().collect(arrivals, reducer, key)]
        sums = seams.gathered(reducer, Unmasked)
        if sums and came and (roster := cast(Letter, came[0].assignment.view).roster):
            sums.finish(roster)
        for arrival in came:
            if sums and not arrival.refusal:
                arrival.silence = sums.reason
            yield arrival

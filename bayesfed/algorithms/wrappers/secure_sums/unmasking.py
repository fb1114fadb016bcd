"""What the server knows of a round of secure sums, `Roster`, how it gathers what clients answer,
and how it takes the masks off the sum.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Self, cast

import numpy as np
import torch

from bayesfed.algorithms.wrappers.secure_sums import primitives
from bayesfed.algorithms.wrappers.secure_sums.primitives import (
    DIGEST,
    LIMBS,
    PUBLIC,
    Agreement,
    Bits,
    digest,
    fresh,
)
from bayesfed.algorithms.wrappers.secure_sums.sessions import MASKS
from bayesfed.algorithms.wrappers.secure_sums.sums import Gather, Letter, ModularSum
from bayesfed.errors import UpdateError
from bayesfed.federated import Arrival, Reducer, Update
from bayesfed.federated.core import seams
from bayesfed.keys import Key
from bayesfed.trees import Tree, under

# Prefix of the leaves of the server's state that the phases of a round pass on. None is left at the
# end of a round.
ROUND = "secure/round/"


class LostRoundError(Exception):
    """A sum that cannot be unmasked, with the reason."""


def nothing() -> np.ndarray:
    """Return what has not been sent yet."""
    return np.zeros(0, np.uint8)


@dataclass(frozen=True)
class Roster:
    """The clients of a round in the order of their names, and what they have sent. All of it is
    public, or sealed for others.

    Parameters
    ----------
    names
        Clients that sent keys.
    threshold
        Number of shares that open a secret.
    keys
        Public keys, ``(n, 64)``.
    neighbours
        Neighbours of each client, ``(n, k)``.
    boxes, digests, seed
        Sealed shares ``(n, k, 48)``, digests of the shares ``(n, k, 32)`` and digests of the seeds
        ``(n, 16)``; zeros for clients that sent none.
    sharing, active
        ``(n,)``: who sent shares, and whose masked vector is in the sum.
    total
        Sum of the masked vectors; empty if there is none.
    reason
        Why the round is lost; empty if it is not.
    """

    names: tuple[str, ...]
    threshold: int
    keys: np.ndarray
    neighbours: np.ndarray
    reason: str = ""
    boxes: np.ndarray = field(default_factory=nothing)
    digests: np.ndarray = field(default_factory=nothing)
    seed: np.ndarray = field(default_factory=nothing)
    sharing: np.ndarray = field(default_factory=nothing)
    active: np.ndarray = field(default_factory=nothing)
    total: np.ndarray = field(default_factory=nothing)

    def write(self) -> Tree:
        """Return the roster as leaves of the server's state."""
        text = json.dumps([self.names, self.threshold, self.reason]).encode()
        arrays = {
            name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)
        }
        return {
            f"{ROUND}text": torch.tensor(list(text), dtype=torch.uint8),
            **{f"{ROUND}{name}": torch.from_numpy(a) for name, a in arrays.items()},
        }

    @classmethod
    def read(cls, state: Tree) -> Self:
        """Return the roster in the server's state."""
        leaves = {name: leaf.numpy() for name, leaf in under(state, ROUND).items()}
        names, threshold, reason = json.loads(leaves.pop("text").tobytes())
        return cls(names=tuple(names), threshold=threshold, reason=reason, **leaves)

    def place(self, client: str) -> int | None:
        """Return the place of a client; None if it sent no keys."""
        return self.names.index(client) if client in self.names else None

    def partners(self, place: int) -> np.ndarray:
        """Return for each neighbour of a client whether its mask is in that client's vector,
        ``(k,)``.
        """
        return np.asarray(self.sharing[self.neighbours[place]])

    def at(self, place: int, neighbour: int) -> int:
        """Return the place of a client among the neighbours of another one."""
        return int(np.flatnonzero(self.neighbours[neighbour] == place)[0])

    def masks(self, answers: Mapping[int, np.ndarray], length: int, bits: Bits) -> np.ndarray:
        """Return the sum of the masks in the total.

        Parameters
        ----------
        answers
            By the place of a client: the shares that it gave, ``(k, 16)``, zeros where it had none.
            A share that differs from its digest is left out.
        length
            Number of integers in the total.
        bits
            Bits of an integer.

        Raises
        ------
        LostRoundError
            If too few shares of a secret are there, or they are not those of the secret.
        """
        total = np.zeros(length, LIMBS[bits])
        for place in np.flatnonzero(self.active).tolist():
            seed = self._opened(place, answers, 1, "the seed")
            if digest(seed) != self.seed[place].tobytes():
                raise LostRoundError(
                    f"client {self.names[place]!r} shared another seed than its own"
                )
            total += primitives.seed_stream(seed, length, bits)
        for place in np.flatnonzero(self.sharing & ~self.active).tolist():
            # Active neighbours have added what this client would have taken away.
            others = [other for other in self.neighbours[place] if self.active[other]]
            if not others:
                continue
            masking = Agreement(self._opened(place, answers, 0, "the key"), MASKS)
            if masking.public != self.keys[place][PUBLIC:].tobytes():
                raise LostRoundError(
                    f"client {self.names[place]!r} shared another key than its own"
                )
            for other in others:
                total -= masking.mask(self.keys[other][PUBLIC:].tobytes(), length, bits)
        return total

    def _opened(
        self, place: int, answers: Mapping[int, np.ndarray], which: int, what: str
    ) -> bytes:
        shares = list[tuple[int, bytes]]()
        for number, neighbour in enumerate(self.neighbours[place]):
            if neighbour in answers and len(shares) < self.threshold:
                share = answers[neighbour][self.at(place, neighbour)].tobytes()
                promised = self.digests[
                    place, number, which * DIGEST : (which + 1) * DIGEST
                ].tobytes()
                if digest(share) == promised:
                    shares.append((number + 1, share))
        if len(shares) < self.threshold:
            raise LostRoundError(
                f"{len(shares)} of at least {self.threshold} shares of {what} of client "
                f"{self.names[place]!r} came"
            )
        return primitives.combine(shares)


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

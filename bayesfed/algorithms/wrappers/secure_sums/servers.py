"""The servers of the phases: who may go on, the sum of the masked vectors, and the wrapped server's
step on the sum without masks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch

from bayesfed.algorithms.wrappers.secure_sums.collecting import Gathered, GatheredKeys, ModularSum
from bayesfed.algorithms.wrappers.secure_sums.fixed_point import FixedPoint
from bayesfed.algorithms.wrappers.secure_sums.graphs import Degree, neighbours
from bayesfed.algorithms.wrappers.secure_sums.primitives import DIGEST
from bayesfed.algorithms.wrappers.secure_sums.sessions import BOX, KEYS, PAIR
from bayesfed.algorithms.wrappers.secure_sums.unmasking import Roster
from bayesfed.errors import UpdateError
from bayesfed.federated import Reducer, Server, Sum, published
from bayesfed.federated.core import Info, seams
from bayesfed.trees import Tree, without

# Prefix of all leaves that secure sums add to the server's state; the only one between rounds has
# the numbers of lost rounds.
PREFIX = "secure/"
LOST = f"{PREFIX}lost"


@dataclass(frozen=True)
class RosterServer:
    """The server of a phase before the last, which enters in the roster what clients sent.

    Parameters
    ----------
    enter
        ``(state, reducer, round) -> roster``.
    """

    enter: Callable[[Tree, Reducer, int], Roster]
    steps_alone: ClassVar[bool] = True

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Return the state with the roster."""
        return state | self.enter(state, reducer, round).write(), {}


@dataclass(frozen=True)
class MaskedServer(RosterServer):
    """The server of the third phase. Clients get what the wrapped server publishes to newcomers.

    Parameters
    ----------
    server
        The wrapped server.
    """

    server: Server

    def publish(self, state: Tree, round: int, version: int | None) -> Tree:
        """Return what the wrapped server publishes to a client that has not heard of it, since all
        have heard other phases of this round.
        """
        return published(self.server, without(state, PREFIX), round, None)


@dataclass(frozen=True)
class SummedServer:
    """The wrapped server's step on a sum of integers.

    The figure ``summed`` is the number of clients in the sum; 0 if there is none, as in a lost
    round. The wrapped server then steps only if it steps alone.

    Parameters
    ----------
    server
        The wrapped server.
    point
        How numbers are written.
    """

    server: Server
    point: FixedPoint
    steps_alone: ClassVar[bool] = True

    def publish(self, state: Tree, round: int, version: int | None) -> Tree:
        """Return what the wrapped server publishes."""
        return published(self.server, without(state, PREFIX), round, version)

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Return the wrapped server's next state, and with masks the numbers of lost rounds."""
        came, info = seams.gathered(reducer, ModularSum), Info()
        total = came.total if came else None
        summed = len(came.clients) if came and total is not None else 0
        check_count(summed, self.point, round)
        lost = {LOST: _lost(state, round, total)} if LOST in state else {}
        after = without(state, PREFIX)
        if total is not None:
            after, info = self.server.step(after, Sum(self.point.decode(total)), round)
        elif seams.steps_alone(self.server):
            after, info = self.server.step(after, Sum(), round)
        return after | lost, {**info, "summed": float(summed)}


def enter_keys(
    point: FixedPoint,
    choose: Callable[[int], Degree | None],
    state: Tree,
    reducer: Reducer,
    round: int,
) -> Roster:
    """Return the roster of those who sent keys, with a graph of neighbours."""
    came = seams.gathered(reducer, GatheredKeys)
    names = tuple(sorted(came.answers)) if came else ()
    check_count(len(names), point, round)
    keys = [came.answers[name]["keys"] for name in names] if came else []
    stacked = np.array(keys, np.uint8).reshape(-1, KEYS)
    if chosen := choose(len(names)):
        return Roster(names, chosen.threshold, stacked, neighbours(len(names), chosen.neighbours))
    reason = (
        f"the round is lost: {len(names)} clients sent keys, too few to hide one among the others"
    )
    return Roster(names, 0, stacked, np.zeros((len(names), 0), np.int64), reason)


def enter_shares(state: Tree, reducer: Reducer, round: int) -> Roster:
    """Return the roster with what clients have shared, to be passed on."""
    roster, came = Roster.read(state), seams.gathered(reducer, Gathered)
    answers, (count, degree) = came.answers if came else {}, roster.neighbours.shape
    shapes = {"boxes": (degree, BOX), "digests": (degree, PAIR), "seed": (DIGEST,)}
    sent: dict[str, Any] = {
        leaf: np.zeros((count, *shape), np.uint8) for leaf, shape in shapes.items()
    }
    for place, name in enumerate(roster.names):
        if name in answers:
            for leaf, array in sent.items():
                array[place] = answers[name][leaf]
    return replace(roster, sharing=_among(roster, answers), **sent)


def enter_total(state: Tree, reducer: Reducer, round: int) -> Roster:
    """Return the roster with the sum of the masked vectors."""
    roster, came = Roster.read(state), seams.gathered(reducer, ModularSum)
    if came is None or came.total is None:
        return replace(roster, active=_among(roster, ()))
    return replace(roster, active=_among(roster, came.clients), total=came.total.view(np.uint8))


def check_count(clients: int, point: FixedPoint, round: int) -> None:
    """Raise `UpdateError` if there are more clients than the range is for."""
    if clients > point.participants:
        hint = f"participants={clients}, or a sampler of fewer"
        raise UpdateError(
            f"secure, round {round}", f"at most {point.participants} clients", clients, hint
        )


def _among(roster: Roster, clients: Collection[str]) -> np.ndarray:
    return np.array([name in clients for name in roster.names], bool)


def _lost(state: Tree, round: int, total: np.ndarray | None) -> torch.Tensor:
    if total is not None or not Roster.read(state).active.any():
        return state[LOST]
    return torch.cat([state[LOST], torch.tensor([round])])

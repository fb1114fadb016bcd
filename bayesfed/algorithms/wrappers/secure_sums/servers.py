"""The servers of the phases: who may go on, the sum of the masked vectors, and the wrapped server's
step on the sum without masks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from bayesfed.algorithms.wrappers.secure_sums.collecting import (
    Gathered,
    GatheredKeys,
    ModularSum,
    Unmasked,
)
from bayesfed.algorithms.wrappers.secure_sums.fixed_point import FixedPoint
from bayesfed.algorithms.wrappers.secure_sums.graphs import Degree, neighbours
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
class KeysServer:
    """The server of the first phase: draw the graph of neighbours."""

    point: FixedPoint
    choose: Callable[[int], Degree | None]
    steps_alone: bool = field(default=True, init=False)

    def publish(self, state: Tree, round: int, version: int | None) -> Tree:
        """Return nothing: letters are written in the plan."""
        return {}

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Return the state with the roster of those who sent keys."""
        came = seams.gathered(reducer, GatheredKeys)
        keys = {name: one["keys"] for name, one in came.answers.items()} if came else {}
        check_count(len(keys), self.point, round)
        if (chosen := self.choose(len(keys))) is None:
            reason = (
                f"the round is lost: {len(keys)} clients sent keys, too few to hide one among "
                "the others"
            )
            return state | Roster.of(
                keys, np.zeros((len(keys), 0), np.int64), 0, reason
            ).write(), {}
        return state | Roster.of(
            keys, neighbours(len(keys), chosen.neighbours), chosen.threshold
        ).write(), {}


@dataclass(frozen=True)
class SharesServer:
    """The server of the second phase: keep the sealed shares, to pass them on."""

    steps_alone: bool = field(default=True, init=False)

    def publish(self, state: Tree, round: int, version: int | None) -> Tree:
        """Return nothing: letters are written in the plan."""
        return {}

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Return the state with what clients have shared."""
        roster, came = Roster.read(state), seams.gathered(reducer, Gathered)
        answers = came.answers if came else {}
        boxes, digests, seeds, sharing = (
            array.copy() for array in (roster.boxes, roster.digests, roster.seeds, roster.sharing)
        )
        for place, name in enumerate(roster.names):
            if name in answers:
                answer = answers[name]
                boxes[place], digests[place], seeds[place], sharing[place] = (
                    answer["boxes"],
                    answer["digests"],
                    answer["seed"],
                    True,
                )
        return state | replace(
            roster, boxes=boxes, digests=digests, seeds=seeds, sharing=sharing
        ).write(), {}


@dataclass(frozen=True)
class MaskedServer:
    """The server of the third phase: keep the sum of the masked vectors. Clients get what the
    wrapped server publishes to newcomers.
    """

    server: Server
    point: FixedPoint
    steps_alone: bool = field(default=True, init=False)

    def publish(self, state: Tree, round: int, version: int | None) -> Tree:
        """Return what the wrapped server publishes to a client that has not heard of it, since all
        have heard other phases of this round.
        """
        return published(self.server, without(state, PREFIX), round, None)

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Return the state with the sum."""
        roster = Roster.read(state)
        came = seams.gathered(reducer, ModularSum)
        if came and came.total is not None:
            active = np.array([name in came.clients for name in roster.names])
            roster = replace(roster, active=active, total=came.total.view(np.uint8))
        return state | roster.write(), {}


@dataclass(frozen=True)
class OpenServer:
    """The server of the last phase: the wrapped server's step on the sum without masks.

    The figure ``summed`` is the number of clients in the sum; 0 if the round is lost. The wrapped
    server then steps only if it steps alone.

    Parameters
    ----------
    server
        The wrapped server.
    point
        How numbers are written.
    """

    server: Server
    point: FixedPoint
    steps_alone: bool = field(default=True, init=False)

    def publish(self, state: Tree, round: int, version: int | None) -> Tree:
        """Return nothing: letters are written in the plan."""
        return {}

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Return the wrapped server's next state, and the numbers of lost rounds."""
        roster, own = Roster.read(state), without(state, PREFIX)
        came = seams.gathered(reducer, Unmasked)
        total = came.total if came else None
        stepped, info = step_on(self.server, self.point, own, total, round)
        lost = (
            state[LOST]
            if total is not None or not roster.active.any()
            else torch.cat([state[LOST], torch.tensor([round])])
        )
        return stepped | {LOST: lost}, {
            **info,
            "summed": float(roster.active.sum()) if total is not None else 0.0,
        }


@dataclass(frozen=True)
class FixedPointServer:
    """The server of a method whose sums are in fixed point without masks.

    Parameters
    ----------
    server
        The wrapped server.
    point
        How numbers are written.
    """

    server: Server
    point: FixedPoint
    steps_alone: bool = field(default=True, init=False)

    def publish(self, state: Tree, round: int, version: int | None) -> Tree:
        """Return what the wrapped server publishes."""
        return published(self.server, state, round, version)

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Return the wrapped server's next state."""
        came = seams.gathered(reducer, ModularSum)
        clients = len(came.clients) if came else 0
        check_count(clients, self.point, round)
        total = came.total if came else None
        state, info = step_on(self.server, self.point, state, total, round)
        return state, {**info, "summed": float(clients)}


def step_on(
    server: Server, point: FixedPoint, state: Tree, total: np.ndarray | None, round: int
) -> tuple[Tree, Info]:
    """Return a server's step on a sum of integers; without a sum, only one that steps alone takes a
    step.
    """
    if total is not None:
        return server.step(state, Sum(point.decode(total)), round)
    return server.step(state, Sum(), round) if seams.steps_alone(server) else (state, {})


def check_count(clients: int, point: FixedPoint, round: int) -> None:
    """Raise `UpdateError` if there are more clients than the range is for."""
    if clients > point.participants:
        hint = f"participants={clients}, or a sampler of fewer"
        raise UpdateError(
            f"secure, round {round}", f"at most {point.participants} clients", clients, hint
        )

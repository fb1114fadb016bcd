"""The phases of masked sums: whom the server asks for what, and what it makes of the answers."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch

from bayesfed.algorithms.wrappers.secure_sums.fixed_point import FixedPoint
from bayesfed.algorithms.wrappers.secure_sums.graphs import Degree, neighbours
from bayesfed.algorithms.wrappers.secure_sums.locals import (
    KeysLocal,
    MaskedLocal,
    SessionLocal,
    Vault,
    opened,
    shares,
)
from bayesfed.algorithms.wrappers.secure_sums.primitives import DIGEST, SECRET
from bayesfed.algorithms.wrappers.secure_sums.sessions import BOX, KEYS, PAIR, session_name
from bayesfed.algorithms.wrappers.secure_sums.sums import (
    PREFIX,
    FixedPointPlan,
    Letter,
    ModularSum,
    SummedServer,
    check_count,
)
from bayesfed.algorithms.wrappers.secure_sums.unmasking import (
    Gathered,
    GatheredKeys,
    Open,
    Roster,
    Unmasked,
)
from bayesfed.errors.plurals import plural
from bayesfed.federated import Assignment, Phase, Profile, Reducer, Server, Skip, published
from bayesfed.federated.core import Info, seams
from bayesfed.keys import Key
from bayesfed.trees import Tree, without

# The only leaf that is added to the server's state between rounds: the numbers of lost rounds.
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
class OpenServer:
    """The server of the last phase, which steps on the sum without masks.

    Parameters
    ----------
    summed
        The server of sums in fixed point.
    asks
        Whether clients were asked alone: no memory hangs on whether the round is lost.
    """

    summed: SummedServer
    asks: bool
    steps_alone: ClassVar[bool] = True

    @property
    def server(self) -> Server:
        """The server of sums."""
        return self.summed

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Return the wrapped server's next state, and the numbers of lost rounds."""
        after, info = self.summed.step(without(state, PREFIX), reducer, round)
        lost = state[LOST]
        if not (self.asks or info["summed"]) and Roster.read(state).active.any():
            lost = torch.cat([lost, torch.tensor([round])])
        return after | {LOST: lost}, info


@dataclass(frozen=True)
class Plans:
    """The plans of the four phases.

    Parameters
    ----------
    plain
        The plan without masks.
    """

    plain: FixedPointPlan

    def keys(self, state: Tree, round: int, profile: Profile, key: Key) -> Assignment | Skip:
        """Ask for keys whoever has a turn in this round."""
        planned = self.plain.planned(state, round, profile, key)
        return (
            planned
            if isinstance(planned, Skip)
            else Assignment(Letter({"lost": state[LOST]}, {"keys": (KEYS,)}), 1.0)
        )

    def shares(self, state: Tree, round: int, profile: Profile, key: Key) -> Assignment | Skip:
        """Ask for shares those who sent keys."""
        roster = Roster.read(state)
        place = roster.place(profile.name)
        if roster.reason or place is None:
            return Skip(roster.reason or "it sent no keys")
        others = torch.from_numpy(roster.keys[roster.neighbours[place]])
        content = {
            "session": _row(roster, place),
            "neighbours": others,
            "threshold": torch.tensor(roster.threshold),
        }
        count = len(others)
        expected = {"boxes": (count, BOX), "digests": (count, PAIR), "seed": (DIGEST,)}
        return Assignment(Letter(content, expected), 1.0)

    def masked(self, state: Tree, round: int, profile: Profile, key: Key) -> Assignment | Skip:
        """Ask for masked vectors those who sent shares and have enough neighbours who did."""
        roster = Roster.read(state)
        place = roster.place(profile.name)
        if roster.reason or place is None or not roster.sharing[place]:
            return Skip(roster.reason or "it sent no shares")
        partners = roster.partners(place)
        if (count := int(partners.sum())) < roster.threshold:
            return Skip(
                f"{count} of its neighbours sent shares, and at least {roster.threshold} "
                "are needed to open a secret"
            )
        session = session_name(roster.keys[place].tobytes())
        flags = "".join("1" if partner else "0" for partner in partners)
        return self.plain(state, round, profile, key, session=session, partners=flags)

    def open(self, state: Tree, round: int, profile: Profile, key: Key) -> Assignment | Skip:
        """Ask for shares of their neighbours' secrets those whose vectors are in the sum."""
        roster = Roster.read(state)
        place = roster.place(profile.name)
        if roster.reason or place is None or not roster.active[place]:
            return Skip(roster.reason or "its vector is not in the sum")
        around, partners = roster.neighbours[place], roster.partners(place)
        boxes = np.stack([roster.boxes[other, roster.at(place, other)] for other in around])
        active, dropped = (
            torch.from_numpy(np.flatnonzero(partners & there))
            for there in (roster.active[around], ~roster.active[around])
        )
        content = {
            "session": _row(roster, place),
            "boxes": torch.from_numpy(boxes),
            "active": active,
            "dropped": dropped,
        }
        return Assignment(Letter(content, {"shares": (len(around), SECRET)}, roster=roster), 1.0)


def _row(roster: Roster, place: int) -> torch.Tensor:
    return torch.from_numpy(roster.keys[place : place + 1])


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
    sent = f"{plural(len(names), 'client')} sent keys"
    reason = f"the round is lost: {sent}, too few to hide one among the others"
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


def _among(roster: Roster, clients: Collection[str]) -> np.ndarray:
    return np.array([name in clients for name in roster.names], bool)


def masked_phases(
    summed: Phase,
    plain: FixedPointPlan,
    vault: Vault,
    choose: Callable[[int], Degree | None],
    asks: bool,
) -> tuple[Phase, ...]:
    """Return the four phases, given the one in fixed point without masks, and its plan."""
    name, local, point, plans = summed.name, plain.phase.local, plain.point, Plans(plain)
    return (
        replace(
            summed,
            name=f"{name}-keys",
            assign=plans.keys,
            local=KeysLocal(local, vault),
            server=RosterServer(partial(enter_keys, point, choose)),
            reducer=GatheredKeys,
        ),
        replace(
            summed,
            name=f"{name}-shares",
            assign=plans.shares,
            local=SessionLocal(local, vault, shares),
            server=RosterServer(enter_shares),
            reducer=Gathered,
        ),
        replace(
            summed,
            assign=plans.masked,
            local=MaskedLocal(summed.local, vault, point.bits),
            server=MaskedServer(enter_total, plain.phase.server),
        ),
        replace(
            summed,
            name=f"{name}-open",
            assign=plans.open,
            local=SessionLocal(local, vault, opened),
            server=OpenServer(SummedServer(plain.phase.server, plain), asks),
            link=Open(),
            reducer=partial(Unmasked, point.bits),
        ),
    )

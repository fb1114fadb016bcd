"""What each client is asked in each of the four phases: plans around that of the wrapped method."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch

from bayesfed.algorithms.wrappers.secure_sums.collecting import Letter
from bayesfed.algorithms.wrappers.secure_sums.fixed_point import WIRE, FixedPoint
from bayesfed.algorithms.wrappers.secure_sums.locals import told
from bayesfed.algorithms.wrappers.secure_sums.primitives import DIGEST, SECRET
from bayesfed.algorithms.wrappers.secure_sums.refusals import check_plan
from bayesfed.algorithms.wrappers.secure_sums.servers import LOST, PREFIX
from bayesfed.algorithms.wrappers.secure_sums.sessions import BOX, KEYS, PAIR, session_name
from bayesfed.algorithms.wrappers.secure_sums.unmasking import Roster
from bayesfed.compress import Cast
from bayesfed.errors import ArgumentError
from bayesfed.federated import Assignment, LocalOptions, Phase, Profile, Skip
from bayesfed.keys import Key
from bayesfed.trees import Tree, without


@dataclass(frozen=True)
class Plans:
    """The plans of a wrapped method.

    Parameters
    ----------
    phase
        The phase of the wrapped method.
    point
        How numbers are written.
    where
        Beginning of error messages.
    """

    phase: Phase
    point: FixedPoint
    where: str

    def fixed_point(
        self,
        state: Tree,
        round: int,
        profile: Profile,
        key: Key,
        *,
        session: str = "",
        partners: str = "",
    ) -> Assignment | Skip:
        """Return the method's own plan, with what the client needs to weigh and to mask."""
        planned = self._planned(state, round, profile, key)
        if isinstance(planned, Skip):
            return planned
        options: LocalOptions = told(type(planned.options))(
            **vars(planned.options),
            secure_weight=float(planned.weight),
            secure_session=session,
            secure_partners=partners,
        )
        view = Letter(planned.view, {"vector": (WIRE[self.point.bits], (self.point.length,))})
        return replace(planned, view=view, weight=1.0, up=Cast(32), options=options)

    def keys(self, state: Tree, round: int, profile: Profile, key: Key) -> Assignment | Skip:
        """Ask for keys whoever has a turn in this round."""
        planned = self._planned(state, round, profile, key)
        return (
            planned
            if isinstance(planned, Skip)
            else _asked({"lost": state[LOST]}, {"keys": (torch.uint8, (KEYS,))})
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
        sent = (
            (torch.uint8, (len(others), BOX)),
            (torch.uint8, (len(others), PAIR)),
            (torch.uint8, (DIGEST,)),
        )
        return _asked(content, dict(zip(("boxes", "digests", "seed"), sent, strict=True)))

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
        session, flags = (
            session_name(roster.keys[place].tobytes()),
            "".join("1" if partner else "0" for partner in partners),
        )
        return self.fixed_point(state, round, profile, key, session=session, partners=flags)

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
        return _asked(content, {"shares": (torch.uint8, (len(around), SECRET))}, roster)

    def _planned(self, state: Tree, round: int, profile: Profile, key: Key) -> Assignment | Skip:
        # The key of the method's own phase, so that all phases have one plan.
        planned = self.phase.assign(
            without(state, PREFIX), round, profile, Key(key.seed, self.phase.name, *key.path[1:])
        )
        if isinstance(planned, Skip):
            return planned
        leaves, by_entry = check_plan(planned, self.where)
        if leaves != self.point.leaves or by_entry != self.point.by_entry:
            expected, hint = (
                "the leaves that the run began with",
                "a method whose clients send the same leaves in every round",
            )
            raise ArgumentError(f"{self.where}, client {profile.name!r}", expected, "others", hint)
        if not (math.isfinite(planned.weight) and 0 <= planned.weight <= self.point.heaviest):
            expected, hint = (
                f"a weight of at most {self.point.heaviest:g}",
                f"heaviest={planned.weight:g}, or equal_weights(algorithm)",
            )
            raise ArgumentError(
                f"{self.where}, client {profile.name!r}", expected, f"{planned.weight:g}", hint
            )
        return planned


def _asked(
    content: Tree,
    expected: dict[str, tuple[torch.dtype, tuple[int, ...]]],
    roster: Roster | None = None,
) -> Assignment:
    return Assignment(Letter(content, expected, roster), 1.0)


def _row(roster: Roster, place: int) -> torch.Tensor:
    return torch.from_numpy(roster.keys[place : place + 1])

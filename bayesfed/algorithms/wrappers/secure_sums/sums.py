"""Sums in fixed point, without masks: what a client is asked, what it answers, and the server's
step on the sum of integers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, make_dataclass, replace
from functools import cache
from typing import Any, ClassVar

import numpy as np
import torch

from bayesfed.algorithms.wrappers.secure_sums.fixed_point import SIGNED, WIRE, FixedPoint
from bayesfed.algorithms.wrappers.secure_sums.primitives import LIMBS, Bits
from bayesfed.algorithms.wrappers.secure_sums.refusals import check_plan, example_plan
from bayesfed.compress import Cast, Codec
from bayesfed.data import Dataset
from bayesfed.errors import ArgumentError, UpdateError
from bayesfed.errors.plurals import plural
from bayesfed.federated import (
    Arrival,
    Assignment,
    Fit,
    Kind,
    LocalOptions,
    Phase,
    Profile,
    Reducer,
    Server,
    Skip,
    Sum,
    Update,
    View,
    published,
)
from bayesfed.federated.core import Around, Cost, Info, Scalar, options_of, seams, unwired
from bayesfed.federated.links.digital import decoded
from bayesfed.keys import Key
from bayesfed.trees import Shapes, Tree, check_shapes, without

# Prefix of all leaves that secure sums add to the server's state.
PREFIX = "secure/"


@dataclass(frozen=True)
class Letter:
    """A view of what one client is sent, and of what its answer looks like.

    Parameters
    ----------
    content
        Leaves for the client; or the view that gives them.
    expected, dtype
        Names and shapes of the answer's leaves, and their type.
    roster
        The `Roster` of the round so far, for the last phase.
    """

    content: Tree | View
    expected: Shapes
    dtype: torch.dtype = torch.uint8
    roster: Any = None

    def restrict(self, tree: Tree) -> Tree:
        """Return what the client gets."""
        return self.content if isinstance(self.content, dict) else self.content.restrict(tree)

    def lift(self, payload: Tree, weight: float, kind: Kind) -> Update:
        """Check an answer, and return it as it is."""
        check_shapes(payload, self.expected, where="payload")
        for name, leaf in payload.items():
            if leaf.dtype is not self.dtype:
                where, hint = f"payload, leaf {name!r}", "bayesfed of the same version"
                raise UpdateError(where, self.dtype, leaf.dtype, hint, field="dtype")
        return Update(payload, 1.0, kind)


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


@cache
def told(record: type[Any]) -> type[Any]:
    """Return a method's record of options with what a client needs to weigh and to mask."""
    extra: list[tuple[str, type, Any]] = [
        ("secure_weight", float, -1.0),
        ("secure_session", str, ""),
        ("secure_partners", str, ""),
        ("secure_leaves", str, ""),
    ]
    return make_dataclass(f"Secure{record.__name__}", extra, bases=(record,), frozen=True)


@dataclass(frozen=True)
class FixedPointPlan:
    """The plan of a wrapped method, with what a client needs to weigh and to mask.

    Parameters
    ----------
    phase
        The phase of the wrapped method.
    point
        How numbers are written.
    where
        Beginning of error messages.
    profile
        A client whose plan says which leaves all send.
    """

    phase: Phase
    point: FixedPoint
    where: str
    profile: Profile | None = None

    def point_at(self, state: Tree, round: int) -> FixedPoint:
        """Return how numbers are written in a round: its leaves may be others than the first's."""
        given = example_plan(self.phase, self.profile, self.where, without(state, PREFIX), round)
        own = None if isinstance(given, Skip) else check_plan(given, self.where)[0]
        return self.point.of(own or self.point.leaves)

    def __call__(
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
        planned = self.planned(state, round, profile, key)
        if isinstance(planned, Skip):
            return planned
        record = told(type(planned.options))  # type: ignore[arg-type]
        point = self.point_at(state, round)
        options: LocalOptions = record(
            **vars(planned.options),
            secure_weight=float(planned.weight),
            secure_session=session,
            secure_partners=partners,
            secure_leaves="" if point is self.point else json.dumps(point.leaves),
        )
        view = Letter(planned.view, {"vector": (point.length,)}, WIRE[point.bits])
        return replace(planned, view=view, weight=1.0, up=Cast(32), options=options)

    def planned(self, state: Tree, round: int, profile: Profile, key: Key) -> Assignment | Skip:
        """Return the method's own plan."""
        # The key of the method's own phase, so that all phases have one plan.
        planned = self.phase.assign(
            without(state, PREFIX), round, profile, Key(key.seed, self.phase.name, *key.path[1:])
        )
        if isinstance(planned, Skip):
            return planned
        where = f"{self.where}, client {profile.name!r}"
        leaves, by_entry = check_plan(planned, self.where)
        if leaves != self.point_at(state, round).leaves or by_entry != self.point.by_entry:
            expected = "the leaves that all clients send in this round"
            hint = "a method whose clients send the same leaves"
            raise ArgumentError(where, expected, "others", hint)
        if not (math.isfinite(planned.weight) and 0 <= planned.weight <= self.point.heaviest):
            actual = f"{planned.weight:g}"
            hint = f"heaviest={actual}, or equal_weights(algorithm)"
            raise ArgumentError(where, f"a weight of at most {self.point.heaviest:g}", actual, hint)
        return planned


@dataclass(frozen=True)
class FixedPointLocal(Around):
    """A local step around another, whose payload is weighed, lifted and written as integers at the
    client. It returns no figures.

    Parameters
    ----------
    local
        The wrapped local step.
    point
        How numbers are written.
    """

    point: FixedPoint

    @property
    def options(self) -> type[LocalOptions]:
        """The options of the wrapped step, and those of secure sums."""
        return told(options_of(self.local))  # type: ignore[arg-type]

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Fit, weigh, lift and round."""
        fit = self.local.fit(message, memory, data, key, options)
        payload, _ = unwired(fit.payload)
        weight: float = options.secure_weight  # type: ignore[attr-defined]
        leaves: str = options.secure_leaves  # type: ignore[attr-defined]
        others = tuple((name, tuple(shape)) for name, shape in json.loads(leaves or "[]"))
        point = self.point.of(others or self.point.leaves)
        vector = point.encode(payload, weight).view(SIGNED[point.bits])
        return Fit({"vector": torch.from_numpy(vector)}, fit.memory, {})


@dataclass(frozen=True)
class SummedServer:
    """The wrapped server's step on a sum of integers.

    The figure ``summed`` is the number of clients in the sum; 0 if there is none, as in a lost
    round. The wrapped server then steps only if it steps alone.

    Parameters
    ----------
    server
        The wrapped server.
    plan
        The plan, which says how numbers are written.
    """

    server: Server
    plan: FixedPointPlan
    steps_alone: ClassVar[bool] = True

    def publish(self, state: Tree, round: int, version: int | None) -> Tree:
        """Return what the wrapped server publishes."""
        return published(self.server, state, round, version)

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Return the wrapped server's next state."""
        came, info = seams.gathered(reducer, ModularSum), Info()
        total = came.total if came else None
        summed = len(came.clients) if came and total is not None else 0
        point = self.plan.point_at(state, round)
        check_count(summed, point, round)
        if total is not None:
            state, info = self.server.step(state, Sum(point.decode(total)), round)
        elif seams.steps_alone(self.server):
            state, info = self.server.step(state, Sum(), round)
        return state, {**info, "summed": float(summed)}


def check_count(clients: int, point: FixedPoint, round: int) -> None:
    """Raise `UpdateError` if there are more clients than the range is for."""
    if clients > point.participants:
        raise UpdateError(
            f"secure, round {round}",
            f"at most {plural(point.participants, 'client')}",
            clients,
            f"participants={clients}, or a sampler of fewer",
        )

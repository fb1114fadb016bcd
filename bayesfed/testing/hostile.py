"""One hostile client of several: 26 ways to spoil a round, and what must become of each.

A refused client must be out of the round with a typed reason, and the state must be, bit for bit, that of a run without it; a second answer is
refused and the first one counts. Only numbers of another width may be taken instead, cast by the codec: then the state is that of the honest run.
To run them on an algorithm of your own::

    check_hostile(algorithm, lambda: InProcess(clients), "client-0")
"""

from __future__ import annotations

import json
import os
import pickle
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from bayesfed.compress.wire import MAGIC, Leaf, pack, seal, unseal
from bayesfed.errors import BayesfedError, WireError
from bayesfed.federated.clients.envelopes import masked
from bayesfed.federated.clients.pools import ClientPool
from bayesfed.federated.clients.turn import Outcome, Reply, Task
from bayesfed.federated.core.algorithm import Algorithm
from bayesfed.federated.core.protocols import Local, Profile
from bayesfed.federated.engine.reports import RoundReport, Snapshot
from bayesfed.federated.engine.round_loop import rounds
from bayesfed.keys import Key
from bayesfed.testing.law import LawError, law
from bayesfed.testing.mutations import reseal
from bayesfed.trees import Tree

TRAP = os.path.join(tempfile.gettempdir(), "bayesfed-read-a-pickle")
Arrivals = Iterable[tuple[Task, Outcome]]


@dataclass(frozen=True)
class Between:
    """A pool whose outcomes pass through a function on their way: each becomes what the function makes of it, none, one or several."""

    pool: ClientPool
    act: Callable[[Task, Outcome], Arrivals]

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """Those of the pool."""
        return self.pool.profiles

    def map(self, locals: Mapping[str, Local], tasks: Iterable[Task]) -> Iterator[tuple[Task, Outcome]]:
        """Answer as the pool does, then act."""
        for task, outcome in self.pool.map(locals, tasks):
            yield from self.act(task, outcome)

    def settle(self, client: str, accepted: bool) -> None:
        """Settle as the pool does."""
        self.pool.settle(client, accepted)

    def memories(self) -> dict[str, Tree]:
        """Return the pool's."""
        return self.pool.memories()

    def restore(self, memories: Mapping[str, Tree]) -> None:
        """Put them back into the pool."""
        self.pool.restore(memories)


@dataclass(frozen=True)
class Remembering(Between):
    """A pool that answers a message it has seen before as it did then, without training: its memories do not count."""

    seen: dict[tuple[str, bytes], Outcome] = field(default_factory=dict)

    def map(self, locals: Mapping[str, Local], tasks: Iterable[Task]) -> Iterator[tuple[Task, Outcome]]:
        """Answer, then act."""
        for task in tasks:
            place = (task.client, task.message)
            if place not in self.seen:
                ((_, self.seen[place]),) = self.pool.map(locals, [task])
            yield from self.act(task, self.seen[place])


@dataclass(frozen=True)
class Turn:
    """What a hostile client has in its hands: its task, its honest answer, its answer of the round before, and its secret."""

    task: Task
    reply: Reply
    before: Reply
    secret: bytes | None = None

    @property
    def message(self) -> bytes:
        """The honest message, out of its envelope."""
        return masked(self.reply.packed, self.task.envelope("up"), self.secret)

    @property
    def key(self) -> Key:
        """What its codec draws from."""
        return self.task.key.child("up")

    def decoded(self) -> tuple[Tree, dict[str, Any]]:
        """Return payload and meta of the honest message."""
        return self.task.up.decode(self.message, self.key)

    def sending(self, message: bytes) -> Arrivals:
        """Answer with a message of one's own, in a valid envelope."""
        return [(self.task, replace(self.reply, packed=masked(message, self.task.envelope("up"), self.secret)))]

    def raw(self, packed: bytes) -> Arrivals:
        """Answer with these very bytes."""
        return [(self.task, replace(self.reply, packed=packed))]

    def leaf(self) -> str:
        """Name the leaf to spoil: one whose transpose has another shape, if there is any."""
        tree, _ = self.decoded()
        floats = {name: leaf for name, leaf in tree.items() if leaf.is_floating_point() and leaf.numel() > 1}
        oblong = [name for name, leaf in floats.items() if leaf.ndim > 1 and leaf.shape != leaf.mT.shape]
        return (oblong or sorted(floats, key=lambda name: -floats[name].numel()) or list(tree))[0]

    def with_leaf(self, change: Callable[[Tensor], Tensor]) -> Arrivals:
        """Answer with one leaf changed, as the codec writes it, or where it cannot, as numbers as they are."""
        tree, meta = self.decoded()
        return self.sending(self.written({**tree, self.leaf(): change(tree[self.leaf()])}, meta))

    def written(self, tree: Tree, meta: Mapping[str, Any]) -> bytes:
        """Return a message by the client's codec, or without."""
        try:
            return self.task.up.encode(tree, meta, self.key)
        except Exception:
            return pack(tree, meta)

    def rewritten(self, change: Callable[[Leaf], Leaf]) -> Arrivals:
        """Answer with what the header or a section says of one leaf changed, everything else in order."""
        leaves, meta = unseal(self.message)
        return self.sending(seal([change(leaf) if leaf.name == self.leaf() else leaf for leaf in leaves], meta))

    def declaring(self, weight: float) -> Arrivals:
        """Answer with a weight of one's own in the message."""
        body = self.message[: -len(reseal(b""))]
        (length,) = struct.unpack_from("<I", body, 4)
        header = json.loads(body[8 : 8 + length])
        header["meta"]["weight"] = weight
        text = json.dumps(header, separators=(",", ":")).encode()
        return self.sending(reseal(MAGIC + struct.pack("<I", len(text)) + text + body[8 + length :]))


@dataclass(frozen=True)
class Case:
    """One way to spoil a round."""

    name: str
    act: Callable[[Turn], Arrivals]
    cast: bool = False
    counts: bool = False


def cases() -> list[Case]:
    """Return the 26."""
    found = [
        Case("one NaN", lambda turn: _with_number(turn, float("nan"))),
        Case("one Inf", lambda turn: _with_number(turn, float("inf"))),
        Case("values 1e30", lambda turn: turn.with_leaf(lambda leaf: torch.full_like(leaf, 1e30))),
        Case("one row", lambda turn: turn.with_leaf(lambda leaf: leaf[:1].clone())),
        Case("a scalar", lambda turn: turn.with_leaf(lambda leaf: leaf.sum())),
        Case("a leading dimension", lambda turn: turn.with_leaf(lambda leaf: leaf[None].clone())),
        Case("transposed", lambda turn: turn.with_leaf(_transposed)),
        Case("empty", lambda turn: turn.with_leaf(lambda leaf: leaf[:0].clone())),
        Case("complex", lambda turn: turn.rewritten(lambda leaf: replace(leaf, dtype="c8", section=bytes(leaf.section) * 2))),
        Case("integers", lambda turn: _as_another(turn, lambda leaf: (16 * leaf).round().long())),
        Case("booleans", lambda turn: _as_another(turn, lambda leaf: leaf > 0)),
        Case("float64", _as_float64, cast=True),
        Case("a leaf missing", lambda turn: turn.sending(_without(turn))),
        Case("a leaf more", lambda turn: turn.sending(_with_stranger(turn))),
        *(Case(f"weight {weight:g}", _declaring(weight)) for weight in (-99.0, 1e18, float("nan"), 0.0)),
        Case("another shape declared", lambda turn: turn.rewritten(_taller)),
        Case("truncated", lambda turn: turn.raw(turn.reply.packed[:-3])),
        Case("garbage", lambda turn: turn.raw(turn.key.child("garbage").numpy().bytes(len(turn.reply.packed)))),
        Case("a pickle", lambda turn: turn.raw(pickle.dumps(Trap(TRAP)))),
        Case("an unknown type", lambda turn: turn.rewritten(lambda leaf: replace(leaf, dtype="O"))),
        Case("a header bomb", lambda turn: turn.rewritten(lambda leaf: replace(leaf, shape=(1 << 20, 1 << 20), section=b""))),
        Case("a duplicate", lambda turn: [*turn.raw(turn.reply.packed), *turn.raw(turn.reply.packed)], counts=True),
        Case("a stale one", lambda turn: turn.raw(turn.before.packed)),
    ]
    law(len(found) == 26, f"{len(found)} cases")
    return found


@dataclass(frozen=True)
class Trap:
    """What a pickle may do: make a directory when it is read."""

    path: str

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return os.mkdir, (self.path,)


@dataclass(frozen=True)
class Verdict:
    """What became of a case: `field` of the refusal, "cast", or in capitals what should not be; `good` if it is as it should be."""

    field: str
    good: bool
    reason: str = ""


class Hostilities:
    """A run with one hostile client: an honest round, then one that it spoils in one way or another.

    Parameters
    ----------
    make
        Makes a fresh pool.
    client
        Who is hostile.
    secrets
        Keyed mode: the pool's clients need the same.
    """

    def __init__(self, algorithm: Algorithm, make: Callable[[], ClientPool], client: str, *, secrets: Mapping[str, bytes] | None = None) -> None:
        self.algorithm, self.make, self.client, self.secrets = algorithm, make, client, secrets
        self._before: dict[str, Reply] = {}
        self._seen: dict[tuple[str, bytes], Outcome] = {}
        others = [profile.name for profile in make().profiles if profile.name != client]
        first = self._run(1, None, self._remember).snapshot
        # Where a second answer of the same rows changes nothing, they are heard for the first time in round 1.
        for start in (first, replace(first, state=algorithm.initial, versions={}, memories={})):
            self.start, self._seen = start, {}
            self.honest, self.without = self._run(2, start), self._run(2, start, chosen=others)
            if not _same(self.honest.state, self.without.state):
                return
        raise LawError(f"{algorithm.name}: client {client!r} makes no difference")

    def suffer(self, case: Case) -> Verdict:
        """Run the round with the client spoiling it."""
        secret = self.secrets[self.client] if self.secrets is not None else None

        def act(task: Task, outcome: Outcome) -> Arrivals:
            if task.client != self.client or not isinstance(outcome, Reply):
                return [(task, outcome)]
            return case.act(Turn(task, outcome, self._before[task.phase], secret))

        try:
            report = self._run(2, self.start, act)
        except Exception as problem:
            return Verdict("ABORT", False, f"{type(problem).__name__}: {problem}")
        refusals = [row for row in report.refusals if row.client == self.client]
        like = self.honest if case.counts or not refusals else self.without
        if not refusals and not case.cast:
            return Verdict("TAKEN", False)
        if not _same(report.state, like.state) or {row.client for row in report.refusals} - {self.client}:
            return Verdict("SILENT", False, str(report.refused))
        if case.counts == bool(report.refused) and refusals:
            return Verdict("OUT", False, str(report.refused))
        return Verdict(refusals[0].field if refusals else "cast", True, refusals[0].reason if refusals else "")

    def _remember(self, task: Task, outcome: Outcome) -> Arrivals:
        if task.client == self.client and isinstance(outcome, Reply):
            self._before[task.phase] = outcome
        return [(task, outcome)]

    def _run(
        self,
        count: int,
        resume: Snapshot | None,
        act: Callable[[Task, Outcome], Arrivals] | None = None,
        chosen: Sequence[str] | None = None,
    ) -> RoundReport:
        def sampler(number: int, clients: Sequence[str], key: Key) -> Sequence[str]:
            return chosen if chosen is not None else clients

        def honest(task: Task, outcome: Outcome) -> Arrivals:
            return [(task, outcome)]

        placed = Remembering(self.make(), act or honest, self._seen)
        *_, report = rounds(self.algorithm, placed, rounds=count, resume=resume, sampler=sampler, on_client_error="drop", secrets=self.secrets)
        return report


def check_hostile(
    algorithm: Algorithm, make: Callable[[], ClientPool], client: str, *, secrets: Mapping[str, bytes] | None = None
) -> dict[str, Verdict]:
    """Run the 26 cases; return what became of each.

    Raises
    ------
    LawError
        If one ended the run, was taken, or changed what the others' sum is.
    """
    found, suffered = Hostilities(algorithm, make, client, secrets=secrets), {}
    for case in cases():
        verdict = suffered[case.name] = found.suffer(case)
        law(verdict.good, f"{algorithm.name}, {case.name}: {verdict.field} {verdict.reason}")
        law(not os.path.exists(TRAP), "a pickle was read")
    return suffered


def _with_number(turn: Turn, number: float) -> Arrivals:
    """Put a number that is none where the codec keeps numbers, so that the message is in order but for it."""
    tree, meta = turn.decoded()
    leaves, _ = unseal(turn.message)
    for place, leaf in enumerate(leaves):
        for kind in ("<d",) if leaf.dtype == "f8" else ("<f", "<e"):
            bits = struct.pack(kind, number)
            for offset in range(min(len(leaf.section), 12)):
                section = bytes(leaf.section[:offset]) + bits + bytes(leaf.section[offset + len(bits) :])
                if len(section) == len(leaf.section):
                    message = seal([*leaves[:place], replace(leaf, section=section), *leaves[place + 1 :]], meta)
                    if _refused_for(turn, message) == "values":
                        return turn.sending(message)
    spoilt = tree[turn.leaf()].clone().float().contiguous()
    spoilt.view(-1)[0] = number
    return turn.sending(pack({**tree, turn.leaf(): spoilt}, meta))


def _refused_for(turn: Turn, message: bytes) -> str:
    try:
        turn.task.up.decode(message, turn.key)
    except WireError as problem:
        return problem.field
    except BayesfedError:
        return ""
    return ""


def _transposed(leaf: Tensor) -> Tensor:
    """Return the transpose, or where its shape is the leaf's own, one column."""
    return leaf.mT.contiguous() if leaf.ndim > 1 and leaf.shape != leaf.mT.shape else leaf.reshape(-1, 1).clone()


def _as_another(turn: Turn, change: Callable[[Tensor], Tensor]) -> Arrivals:
    """Send a leaf of another dtype, without the codec where that makes floats of it."""
    tree, meta = turn.decoded()
    spoilt = {**tree, turn.leaf(): change(tree[turn.leaf()])}
    message = turn.written(spoilt, meta)
    try:
        if turn.task.up.decode(message, turn.key)[0][turn.leaf()].is_floating_point():
            message = pack(spoilt, meta)
    except BayesfedError:
        pass
    return turn.sending(message)


def _as_float64(turn: Turn) -> Arrivals:
    tree, meta = turn.decoded()
    return turn.sending(pack({name: leaf.double() if leaf.is_floating_point() else leaf for name, leaf in tree.items()}, meta))


def _without(turn: Turn) -> bytes:
    tree, meta = turn.decoded()
    return turn.written({name: leaf for name, leaf in tree.items() if name != turn.leaf()}, meta)


def _with_stranger(turn: Turn) -> bytes:
    tree, meta = turn.decoded()
    return turn.written({**tree, "stranger": torch.ones(2)}, meta)


def _declaring(weight: float) -> Callable[[Turn], Arrivals]:
    return lambda turn: turn.declaring(weight)


def _taller(leaf: Leaf) -> Leaf:
    return replace(leaf, shape=(leaf.shape[0] + 1, *leaf.shape[1:]) if leaf.shape else (2,))


def _same(left: Tree, right: Tree) -> bool:
    return left.keys() == right.keys() and all(torch.equal(leaf, right[name]) for name, leaf in left.items())

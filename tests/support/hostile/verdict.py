"""One hostile client of several: the round it tries to spoil, and what became of each case.

A refused client must be out of the round with a typed reason, and the state must be, bit for bit,
that of a run without it. Of two answers the first counts and the second is refused. One case may be
taken: numbers of another width, which the codec casts, so that the state is that of the honest run.
To run the cases on an algorithm of your own::

    check_hostile(algorithm, lambda: InProcess(clients), "client-0")
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from bayesfed.federated.clients.pools import ClientPool
from bayesfed.federated.clients.turn import Outcome, Reply, Task
from bayesfed.federated.core.algorithm import Algorithm
from bayesfed.federated.engine.reports import RoundReport, Snapshot
from bayesfed.federated.engine.round_loop import rounds
from bayesfed.keys import Key
from bayesfed.testing.law import LawError, law
from bayesfed.trees import Tree
from tests.support.hostile.cases import TRAP, Case, cases
from tests.support.hostile.pool import Arrivals, Remembering
from tests.support.hostile.turn import Turn


@dataclass(frozen=True)
class Verdict:
    """What became of a case.

    Parameters
    ----------
    field
        The field of the refusal, or "cast". In capitals what must not happen: "ABORT", "TAKEN",
        "SILENT" or "OUT".
    good
        Whether the outcome is the right one.
    reason
        The text of the refusal or of the fault.
    """

    field: str
    good: bool
    reason: str = ""


class Hostilities:
    """A run with one hostile client: an honest round, and then a round for each case.

    Parameters
    ----------
    algorithm
        The algorithm to attack.
    make
        ``() -> pool``, a fresh one each time.
    client
        Name of the hostile client.
    secrets
        Keys by client for a keyed run; the clients of the pool need the same.

    Raises
    ------
    LawError
        If the rounds with and without this client end in the same state, so that nothing could be
        learned.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        make: Callable[[], ClientPool],
        client: str,
        *,
        secrets: Mapping[str, bytes] | None = None,
    ) -> None:
        self.algorithm, self.make, self.client, self.secrets = algorithm, make, client, secrets
        self._before: dict[str, Reply] = {}
        self._seen: dict[tuple[str, bytes], Outcome] = {}
        others = [profile.name for profile in make().profiles if profile.name != client]
        first = self._run(1, None, self._remember).snapshot
        # With some algorithms a second answer from the same rows changes nothing; then the second
        # round starts from the initial state.
        for start in (first, replace(first, state=algorithm.initial, versions={}, memories={})):
            self.start, self._seen = start, {}
            self.honest, self.without = self._run(2, start), self._run(2, start, chosen=others)
            if not _same(self.honest.state, self.without.state):
                return
        raise LawError(f"{algorithm.name}: client {client!r} makes no difference")

    def judge(self, case: Case) -> Verdict:
        """Run the round of one case and return the verdict."""
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
        if not _same(report.state, like.state) or {row.client for row in report.refusals} - {
            self.client
        }:
            return Verdict("SILENT", False, str(report.refused))
        if case.counts == bool(report.refused) and refusals:
            return Verdict("OUT", False, str(report.refused))
        return Verdict(
            refusals[0].field if refusals else "cast", True, refusals[0].reason if refusals else ""
        )

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

        pool = Remembering(self.make(), act or honest, self._seen)
        *_, report = rounds(
            self.algorithm,
            pool,
            rounds=count,
            resume=resume,
            sampler=sampler,
            on_client_error="drop",
            secrets=self.secrets,
        )
        return report


def check_hostile(
    algorithm: Algorithm,
    make: Callable[[], ClientPool],
    client: str,
    *,
    secrets: Mapping[str, bytes] | None = None,
) -> dict[str, Verdict]:
    """Run the 26 cases and return the verdict on each, by name.

    Parameters
    ----------
    algorithm
        The algorithm to attack.
    make
        ``() -> pool``, a fresh one each time.
    client
        Name of the hostile client.
    secrets
        Keys by client for a keyed run; the clients of the pool need the same.

    Raises
    ------
    LawError
        If a case ended the run, was taken, or changed the sum of the other clients.
    """
    hostilities, verdicts = Hostilities(algorithm, make, client, secrets=secrets), {}
    for case in cases():
        verdict = verdicts[case.name] = hostilities.judge(case)
        law(verdict.good, f"{algorithm.name}, {case.name}: {verdict.field} {verdict.reason}")
        law(not os.path.exists(TRAP), "a pickle was read")
    return verdicts


def _same(left: Tree, right: Tree) -> bool:
    return left.keys() == right.keys() and all(
        torch.equal(leaf, right[name]) for name, leaf in left.items()
    )

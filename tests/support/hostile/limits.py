"""Values that no rows can say, in every leaf of every phase of a method: each must be refused by a
bound of that phase, and leave the round as if the client had failed there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from bayesfed.algorithms.baselines.fed_avg import fed_avg
from bayesfed.algorithms.wrappers.chosen_prior import OWN, ROUNDS
from bayesfed.errors import ClientError
from bayesfed.federated.clients.pools import ClientPool
from bayesfed.federated.clients.turn import Outcome, Reply, Task
from bayesfed.federated.core.algorithm import Algorithm
from bayesfed.federated.engine.reports import RoundReport, Snapshot
from bayesfed.federated.engine.round_loop import rounds
from bayesfed.federated.training.local_work import Training
from bayesfed.trees import Tree
from tests.support.hostile.pool import Arrivals, Remembering
from tests.support.hostile.turn import Turn
from tests.support.recipes import Tiny, net, rows


def choosing() -> dict[str, Callable[[], Tiny]]:
    """Return a method that chooses its prior on held-out rows, which no list of recipes has."""
    work = Training(steps=2, batch_size=8, prior_precision="auto", observations=48)
    return {"fed_avg, its prior chosen": lambda: Tiny(fed_avg(net(), training=work), rows())}


def start_of(algorithm: Algorithm) -> Snapshot | None:
    """Return where a round has all phases: before the one in which a prior is scored."""
    if not any(name.startswith(OWN) for name in algorithm.initial):
        return None
    return Snapshot(algorithm.name, 0, ROUNDS - 1, algorithm.initial, owned=True)


VALUES = (1e12, -1e12, 1e30, float("nan"), float("inf"))


@dataclass(frozen=True)
class Attack:
    """One value in one leaf of a phase, in all its entries or in the last alone.

    Parameters
    ----------
    phase, leaf
        Where.
    value
        What is put there.
    whole
        Whether in all entries.
    """

    phase: str
    leaf: str
    value: float
    whole: bool

    def __call__(self, turn: Turn) -> Arrivals:
        """Answer with the value."""
        tree, meta = turn.decoded()
        leaf = tree[self.leaf].clone().contiguous()
        leaf.view(-1)[slice(None) if self.whole else slice(-1, None)] = self.value
        return turn.sending(turn.written({**tree, self.leaf: leaf}, meta))


class Attacked:
    """A round of a method, in which one client attacks one phase.

    Parameters
    ----------
    algorithm
        The method.
    pool
        The clients; they train once.
    client
        The hostile one.
    start
        Snapshot to begin with. Default: the beginning.
    """

    def __init__(
        self, algorithm: Algorithm, pool: ClientPool, client: str, start: Snapshot | None = None
    ) -> None:
        self.algorithm, self.pool, self.client, self.start = algorithm, pool, client, start
        self._seen: dict[tuple[str, bytes], Outcome] = {}
        self._leaves: dict[str, list[str]] = {}
        self._without: dict[str, Tree] = {}
        self._run("", None)

    def attacks(self) -> Iterator[Attack]:
        """Yield every attack: whole leaves, and last entries."""
        for phase, leaves in self._leaves.items():
            for leaf in leaves:
                for value in VALUES:
                    yield from (Attack(phase, leaf, value, whole) for whole in (True, False))

    def judge(self, attack: Attack) -> str:
        """Return what is wrong with the outcome; empty if the client was refused."""
        phase = attack.phase
        if phase not in self._without:
            failed = self._run(phase, None)
            self._without[phase] = failed.state
        report = self._run(phase, attack)
        if [(row.client, row.phase) for row in report.refusals] != [(self.client, phase)]:
            return f"taken: {report.refused}"
        alike = all(
            torch.equal(leaf, report.state[name]) for name, leaf in self._without[phase].items()
        )
        return "" if alike else "refused, but it left a trace"

    def _run(self, phase: str, attack: object) -> RoundReport:
        def act(task: Task, outcome: Outcome) -> Arrivals:
            if task.client != self.client or not isinstance(outcome, Reply):
                return [(task, outcome)]
            turn = Turn(task, outcome, outcome)
            if not phase:
                tree, _ = turn.decoded()
                self._leaves[task.phase] = [
                    name for name, leaf in tree.items() if leaf.is_floating_point() and leaf.numel()
                ]
            if task.phase != phase:
                return [(task, outcome)]
            if isinstance(attack, Attack):
                return attack(turn)
            return [(task, ClientError(task.client, task.round, "fit", "left out"))]

        done = self.start.round if self.start else 0
        (report,) = rounds(
            self.algorithm,
            Remembering(self.pool, act, self._seen),
            rounds=done + 1,
            resume=self.start,
            resume_anyway=True,
            on_client_error="drop",
        )
        return report

"""`Window`: what takes the place of a round in an asynchronous run, from one step of the server to
the next.

Clients are asked by the exchange of synchronous rounds, which checks and lifts their answers. An
answer is computed when the client is asked, and added when it arrives in simulated time; the
client's new memory is settled then as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import cast

import torch

from bayesfed.federated.aggregation.reducers import Keep
from bayesfed.federated.clients import ClientPool, Outcome, Reply, Roster, Sides, Task
from bayesfed.federated.core import Info, Update, seams
from bayesfed.federated.engine.assembly import ServerSide
from bayesfed.federated.engine.asynchronous.fed_buff import FedBuff, Flight, from_tree, to_tree
from bayesfed.federated.engine.entries import Entries, Occasion
from bayesfed.federated.engine.exchange import Plan, collect, stepped
from bayesfed.keys import Key
from bayesfed.trees import Tree


@dataclass
class Window:
    """The clients at work, and the server's buffer.

    Parameters
    ----------
    buffer
        How the run goes.
    pool, roster
        The clients.
    sides
        The clients' halves by phase.
    secrets
        Secrets of the clients in keyed mode.
    begun
        Flights of a snapshot to continue from.
    """

    buffer: FedBuff
    pool: ClientPool
    roster: Roster
    sides: Sides
    secrets: Mapping[str, bytes]
    begun: Tree = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.clock, self._flights = from_tree(self.begun)
        # A pool has no unsettled answers of an earlier run, and nobody at work reads its memory. So
        # it gets the new memories now, and snapshots have the old ones until the answers arrive.
        self._before: dict[str, Tree] = {}
        if self._flights:
            known = dict(self.pool.memories())
            self._before = {
                flight.row.client: known.get(flight.row.client, {}) for flight in self._flights
            }
            known |= {flight.row.client: flight.memory for flight in self._flights}
            self.pool.restore({name: tree for name, tree in known.items() if tree})

    def memories(self) -> Mapping[str, Tree]:
        """Return what each client remembers, by the answers that have arrived."""
        known = self.pool.memories()
        if not self._before:
            return known
        return {name: tree for name, tree in sorted((dict(known) | self._before).items()) if tree}

    def in_flight(self) -> Tree:
        """Return everything that is on its way as tensors, for a snapshot."""
        return to_tree(self.clock, self._flights)

    def step(
        self, occasion: Occasion, versions: Mapping[str, int]
    ) -> tuple[Tree, Info, Entries, dict[str, int]]:
        """Wait until the buffer is full, and take the server's step.

        Returns
        -------
        tuple
            The next state, the server's figures, the entries, and by client the round in which it
            was asked for what was added.

        Raises
        ------
        ClientError
            Under the policy "raise", if a client failed or was refused.
        TooFewClientsError
            If fewer clients than `Occasion.least` are in the sum, since nobody else can be asked.
        """
        entries, taken, asked, draws = Entries(occasion), list[Flight](), set[str](), 0
        phase, state = occasion.phase, occasion.state
        current = cast(ServerSide, phase.server).shown(state, occasion.round)
        base = current if seams.stale(phase.server) == "rebased" else {}
        while len(taken) < self.buffer.size:
            # Whoever arrived and is still in the line is at the server already.
            free = self.buffer.concurrency - sum(
                flight.due > self.clock for flight in self._flights
            )
            if chosen := self._drawn(
                free, asked, Key(occasion.seed, "sample", occasion.round), draws
            ):
                draws, asked = draws + 1, asked | set(chosen)
                self._ask(chosen, occasion, versions, entries, base)
            elif not self._flights:
                break
            if self._flights:
                self.clock = max(self.clock, self._flights[0].due)
                arrived = [flight for flight in self._flights if flight.due <= self.clock][
                    : self.buffer.size - len(taken)
                ]
                taken += arrived
                self._flights = self._flights[len(arrived) :]
                for flight in arrived:
                    if self._before.pop(flight.row.client, None) is None:
                        self.pool.settle(flight.row.client, True)
        # In the order of the names, as in every sum.
        taken.sort(key=lambda flight: (flight.row.client, flight.row.round))
        reducer = phase.reducer()
        for flight in taken:
            entries.rows.append(flight.row)
            entries.infos[flight.row.client] = flight.info
            reducer.add(flight.row.client, self._counted(flight, occasion, current))
        state, info = stepped(occasion, reducer, entries)
        late = [float(occasion.round - flight.row.round) for flight in taken]
        info |= {
            "simulated_s": self.clock,
            "staleness": sum(late) / max(len(late), 1),
            "at_work": float(len(self._flights)),
        }
        return state, info, entries, {flight.row.client: flight.row.round for flight in taken}

    def _drawn(self, count: int, asked: set[str], key: Key, draws: int) -> list[str]:
        """Draw clients that are not at work and were not asked for this step, as `fraction` does if
        all are free.
        """
        names, out = self.roster.names, asked | {flight.row.client for flight in self._flights}
        if count < 1 or len(out) >= len(names):
            return []
        order = torch.randperm(
            len(names), generator=(key.child(draws) if draws else key).generator()
        )
        chosen = list[str]()
        # No more than these can be met before enough are found.
        for place in order[: count + len(out)].tolist():
            if len(chosen) < count and names[place] not in out:
                chosen.append(names[place])
        return chosen

    def _ask(
        self,
        chosen: list[str],
        occasion: Occasion,
        versions: Mapping[str, int],
        entries: Entries,
        base: Tree,
    ) -> None:
        """Let clients compute their answers, and note when they arrive."""
        asked = [(self.roster[name], versions.get(name)) for name in sorted(chosen)]
        plan, gathered, kept = Plan(occasion, self.secrets, asked), Keep(), dict[str, Tree]()

        def answers() -> Iterator[tuple[Task, Outcome]]:
            for task, outcome in self.pool.map(self.sides, plan.tasks()):
                if isinstance(outcome, Reply):
                    kept[task.client] = outcome.memory
                yield task, outcome

        def settle(client: str, accepted: bool) -> None:
            # Other memories are settled when the answers arrive.
            if not accepted:
                self.pool.settle(client, False)

        collect(plan, settle, answers(), gathered)
        own = plan.entries
        entries.silent |= own.silent
        for row in own.rows:
            if row.direction == "down" or not row.accepted:
                entries.rows.append(row)
                continue
            due = self.clock + self.buffer.took(self.roster[row.client], row.cost)
            info, update = own.infos[row.client], gathered.updates[row.client]
            self._flights.append(Flight(due, row, info, update, kept[row.client], base))
        # By time, then by name.
        self._flights.sort(key=lambda flight: (flight.due, flight.row.client, flight.row.round))

    def _counted(self, flight: Flight, occasion: Occasion, current: Tree) -> Update:
        """Return an answer as it counts now: unchanged, bit for bit, if the server took no step
        since it was asked.
        """
        steps, update = occasion.round - flight.row.round, flight.update
        factor = self.buffer.factor(steps)
        if not steps or (factor == 1 and not flight.base):
            return update
        total = dict(update.total)
        for name, leaf in update.total.items():
            weight = update.weight_of(name)
            total[name] = (
                weight * current[name] + factor * (leaf - weight * flight.base[name])
                if flight.base
                else factor * leaf
            )
        return replace(update, total=total)

"""`FedBuff`: how an asynchronous run goes, and which methods can be run so; `Flight`: an answer
that is on its way to the server in simulated time, and flights as tensors, for snapshots.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import torch

from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import checked_class, whole
from bayesfed.errors.plurals import plural
from bayesfed.federated.clients import ClientPool, Ranks
from bayesfed.federated.core import Algorithm, Cost, Info, Profile, Update, of, owned, seams
from bayesfed.federated.core.layering import only_phase
from bayesfed.federated.engine.assembly import assembled
from bayesfed.federated.engine.reports import Row
from bayesfed.federated.engine.samplers import Sampler, everyone
from bayesfed.trees import Tree

Seconds = Callable[[Profile, Cost], float]
"""``(profile, cost of the answer) -> seconds`` from the moment a client is asked until its answer
arrives.
"""


@checked_class({}, size=whole(1, "10"), concurrency=whole(1, "100"))
@dataclass(frozen=True)
class FedBuff:
    """Asynchronous rounds in simulated time: `concurrency` clients are at work at any moment, and
    the server steps once `size` of them have answered.

    A client that has answered makes room for another one, which is drawn uniformly from those that
    are not at work and starts from the server's state at that moment. A client is asked at most
    once between two steps of the server. An answer that was begun tau steps ago counts with s(tau).
    Where a method averages values, an answer counts as the change from the state that the client
    began with. Answers that arrive at the same moment are taken in the order of the clients' names.
    With equal seconds for all clients, and ``size == concurrency``, a run has the bits of the
    synchronous one with ``fraction(concurrency / clients)``.

    Parameters
    ----------
    size
        Number of answers K in a step of the server.
    concurrency
        Number of clients that are at work at the same time.
    staleness
        s(tau): "polynomial" is ``(1 + tau) ** -0.5``, "constant" is 1. Methods with factors (`PVI`)
        need "constant", since a client keeps its factor as it sent it.
    seconds
        Simulated seconds of a client's turn. Default: those of the device model, for methods that
        have a `Load` (`timed`).

    Raises
    ------
    ArgumentError
        If `size` or `concurrency` is below 1, or there is no such staleness. When a run starts, if
        the method cannot be run asynchronously; during a run, if no seconds are known.

    References
    ----------
    Nguyen et al., "Federated learning with buffered asynchronous aggregation" (AISTATS 2022),
    Algorithm 1; s(tau) as in its section 5.
    """

    size: int
    concurrency: int
    staleness: Literal["polynomial", "constant"] = "polynomial"
    seconds: Seconds | None = None

    def factor(self, steps: int) -> float:
        """Return s(tau) of an answer that was begun so many steps ago."""
        return 1.0 if self.staleness == "constant" else (1.0 + steps) ** -0.5

    def took(self, profile: Profile, cost: Cost) -> float:
        """Return the seconds of a client's turn.

        Raises
        ------
        ArgumentError
            If they are not known, negative or not finite.
        """
        seconds = self.seconds(profile, cost) if self.seconds else cost.latency_s
        if not 0 <= seconds < math.inf or (not self.seconds and not seconds):
            raise ArgumentError(
                f"FedBuff, client {profile.name!r}",
                "finite seconds of its turn",
                seconds if self.seconds else "a method without a load",
                "timed(algorithm, macs), or FedBuff(seconds=lambda profile, cost: ...)",
            )
        return seconds

    def check(self, algorithm: Algorithm, pool: ClientPool, sampler: Sampler, clients: int) -> None:
        """Check that a method can be run asynchronously on a pool of so many clients.

        Raises
        ------
        ArgumentError
            If it cannot; the message says why.
        """
        where = f"FedBuff, {algorithm.name!r}"
        only_phase(algorithm, where, "fed_avg, stc, federated_svi")
        if max(self.size, self.concurrency) > clients:
            raise ArgumentError(
                where,
                f"at most the {plural(clients, 'client of the pool')}",
                f"size {self.size}, concurrency {self.concurrency}",
                f"FedBuff({min(self.size, clients)}, {min(self.concurrency, clients)})",
            )
        if sampler is not everyone:
            raise ArgumentError(
                "sampler",
                "none: FedBuff draws clients as others finish",
                getattr(sampler, "__name__", type(sampler).__name__),
                "no sampler",
            )
        if isinstance(pool, Ranks):
            raise ArgumentError(
                "asynchronous", "clients of one process", "Ranks", "InProcess(clients)"
            )
        phase = assembled(algorithm.phases[0])
        stale = seams.stale(phase.server)
        if stale is None:
            expected = "a server that adds changes of single clients, old ones too"
            layers = (repr(layer.owner) for layer in reversed(algorithm.phases[0].layers))
            raise ArgumentError(
                where,
                expected,
                " in ".join([type(algorithm.phases[0].server).__name__, *layers]),
                "fed_avg, fed_prox, stc, federated_svi with PVI",
            )
        if stale == "as sent" and self.staleness != "constant":
            raise ArgumentError(
                where,
                "staleness 'constant': clients keep the change that they sent",
                repr(self.staleness),
                "FedBuff(..., staleness='constant')",
            )
        if (deadline := seams.deadline_s(phase.link)) < math.inf:
            raise ArgumentError(
                where,
                "no deadline: late answers count",
                f"{deadline:g} s",
                "timed(algorithm, macs)",
            )
        if not seams.one_by_one(phase.link):
            raise ArgumentError(
                where,
                "answers that arrive one by one",
                type(phase.link).__name__,
                "the link Digital()",
            )


ABOUT = "about"


@dataclass(frozen=True)
class Flight:
    """An answer on its way.

    Parameters
    ----------
    due
        Simulated second in which it arrives.
    row
        Its row of the ledger, which names the client and the round in which it was asked.
    info
        Figures of the client.
    update
        What it adds to the sum.
    memory
        What the client keeps once the answer has arrived.
    base
        What the server published when the client was asked, if it takes values as the change from
        that; else empty.
    """

    due: float
    row: Row
    info: Info
    update: Update
    memory: Tree
    base: Tree


def to_tree(clock: float, flights: Sequence[Flight]) -> Tree:
    """Return flights as tensors by name.

    Parameters
    ----------
    clock
        Simulated seconds so far.
    flights
        The flights.
    """
    entries = [
        {
            "due": flight.due,
            "row": asdict(flight.row),
            "info": flight.info,
            "kind": flight.update.kind,
            "weight": None if flight.update.by_entry else flight.update.weight,
        }
        for flight in flights
    ]
    about = {"clock": clock, "flights": entries}
    tree = {ABOUT: torch.frombuffer(bytearray(json.dumps(about).encode()), dtype=torch.uint8)}
    for number, flight in enumerate(flights):
        update = flight.update
        tree |= of(f"{number}/total", update.total) | of(f"{number}/memory", flight.memory)
        if isinstance(update.weight, dict):
            tree |= of(f"{number}/weight", update.weight)
        # Those of one round are the same.
        tree |= of(f"base/{flight.row.round}", flight.base)
    return tree


def from_tree(tree: Tree) -> tuple[float, list[Flight]]:
    """Return clock and flights that `to_tree` made a tree of."""
    if not tree:
        return 0.0, []
    about, flights = json.loads(tree[ABOUT].numpy().tobytes()), []
    for number, entry in enumerate(about["flights"]):
        leaves = owned(tree, f"{number}")
        weight = owned(leaves, "weight") if entry["weight"] is None else entry["weight"]
        row = Row(**{**entry["row"], "cost": Cost(**entry["row"]["cost"])})
        update = Update(owned(leaves, "total"), weight, entry["kind"])
        memory, base = owned(leaves, "memory"), owned(tree, f"base/{row.round}")
        flights.append(Flight(entry["due"], row, entry["info"], update, memory, base))
    return about["clock"], flights

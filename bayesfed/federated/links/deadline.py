"""`Cell`: a link that knows what clients spend, and a deadline that it holds them to."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from bayesfed.compress.codecs import Codec
from bayesfed.errors import ArgumentError, UpdateError, complain
from bayesfed.federated.core.protocols import Arrival, Link, Scalar
from bayesfed.federated.core.update import Reducer
from bayesfed.federated.links.digital import Digital
from bayesfed.keys import Key
from bayesfed.trees import Tree


@dataclass(frozen=True)
class Cell:
    """Count the seconds and joules of every client from the bytes that it really sends; leave out who comes after the deadline.

    A late client's payload is not in the sum, its energy is in the ledger, and the report says by how much it was late. Messages longer than planned
    are in the ledger with the overrun.

    Parameters
    ----------
    deadline_s
        Of training and sending together, T_max of AnycostFL (10a).
    link
        What carries the payloads that are in time.

    Raises
    ------
    ArgumentError
        If the deadline is not positive.
    UpdateError
        In the run, if an assignment has no `Load`.
    """

    deadline_s: float
    link: Link = Digital()

    def __post_init__(self) -> None:
        if not self.deadline_s > 0:
            raise ArgumentError(complain("Cell.deadline_s", expected="a positive number of seconds", actual=self.deadline_s, hint="5.0"))

    def pack(self, payload: Tree, codec: Codec, meta: Mapping[str, Scalar], key: Key) -> bytes:
        """Pack as the link does."""
        return self.link.pack(payload, codec, meta, key)

    def collect(self, arrivals: Iterable[Arrival], reducer: Reducer, key: Key) -> Iterator[Arrival]:
        """Pass on those in time, in order."""
        late = list[Arrival]()

        def timely() -> Iterator[Arrival]:
            for arrival in arrivals:
                spent = _spent(arrival)
                if spent.cost.latency_s <= self.deadline_s:
                    yield spent
                else:
                    spent.silence = f"deadline: {spent.cost.latency_s:.4g} s, had {self.deadline_s:g} s"
                    late.append(spent)

        for arrival in self.link.collect(timely(), reducer, key):
            yield from _taken(late)
            yield _spent(arrival)
        yield from _taken(late)


def _spent(arrival: Arrival) -> Arrival:
    """Enter what the client spent; the link that carries a payload enters the rest."""
    load = arrival.assignment.load
    if load is None:
        raise UpdateError(
            complain(f"Cell, client {arrival.client!r}", expected="an assignment with a load", actual=None, hint="on_devices(algorithm)")
        )
    bits = 8 * len(arrival.packed)
    spent, over = load.cost(bits), math.ceil(bits - load.bits) if load.bits < bits else 0
    arrival.cost = replace(
        arrival.cost,
        bits=arrival.cost.bits or bits,
        compute_s=spent.compute_s,
        uplink_s=spent.uplink_s,
        compute_j=spent.compute_j,
        uplink_j=spent.uplink_j,
        macs=load.macs,
        alpha=load.alpha,
        beta=load.beta,
        overrun_bits=over,
    )
    return arrival


def _taken(late: list[Arrival]) -> Iterator[Arrival]:
    while late:
        yield late.pop(0)
